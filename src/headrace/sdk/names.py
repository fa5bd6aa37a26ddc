"""Which names topics, groups and applications may have, so that a wrong one fails before it reaches a system."""

from __future__ import annotations

import re

TOPIC_MAX = 249
"""What Kafka's wire takes."""
QUEUE_MAX = 64
"""What NSQ's wire takes, of topics and of channels."""
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def check_name(what: str, name: str, most: int = TOPIC_MAX) -> None:
    """Raise ValueError unless it may be the name of a topic or group."""
    if not name:
        raise ValueError(f"a {what}'s name must not be empty")
    if name in (".", ".."):
        raise ValueError(f"{name!r} cannot be a {what}'s name: it means a folder. Choose another")
    if len(name) > most:
        raise ValueError(f"a {what}'s name has at most {most} characters here, and {name[:40]!r}... has {len(name)}")
    if not _LEGAL.match(name):
        raise ValueError(f"a {what}'s name is made of ASCII letters, digits, '.', '_' and '-' alone: {name!r} is not")
