"""NSQ's names of topics and channels, and the log's.

NSQ marks what lives in memory by `#ephemeral` at the end of a name, which the log's names (Kafka's) cannot hold: there
it is `.ephemeral`. That ending is kept for this, so the mapping is one to one: `x#ephemeral` is the log's
`x.ephemeral`, and `x.ephemeral` is no name in NSQ; nor are `.` and `..`, which are none in the log. A topic that NSQ
cannot name (longer than 64 characters, or the broker's own) is not seen through its doors.
"""

from __future__ import annotations

import re

from headrace.broker.internal import is_protected

NAME_MAX = 64
EPHEMERAL = "#ephemeral"
_EPHEMERAL_IN_LOG = ".ephemeral"
_KEPT = frozenset((".", ".."))
_LEGAL = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?\Z")


def is_topic_name(name: str) -> bool:
    """Whether NSQ's clients may name a topic so."""
    if name in _KEPT or is_protected(name) or name.endswith(_EPHEMERAL_IN_LOG):
        return False
    return is_channel_name(name)


def is_channel_name(name: str) -> bool:
    """Whether NSQ's clients may name a channel so."""
    return len(name) <= NAME_MAX and _LEGAL.match(name) is not None


def is_ephemeral(name: str) -> bool:
    """Whether the topic or channel lives in memory alone."""
    return name.endswith(EPHEMERAL)


def log_name(topic: str) -> str:
    """The log's name of a topic that NSQ calls `topic`."""
    if topic.endswith(EPHEMERAL):
        return topic[: -len(EPHEMERAL)] + _EPHEMERAL_IN_LOG
    return topic


def nsq_name(topic: str) -> str | None:
    """NSQ's name of the log's topic, or None where it is not to be seen."""
    if topic.endswith(_EPHEMERAL_IN_LOG):
        topic = topic[: -len(_EPHEMERAL_IN_LOG)] + EPHEMERAL
    return topic if is_topic_name(topic) else None
