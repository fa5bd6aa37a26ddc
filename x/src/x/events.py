"""What the messages are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """In JSON on the wire. What does not fit goes to the dead letters, with the reason."""

    id: str
    text: str = ""
