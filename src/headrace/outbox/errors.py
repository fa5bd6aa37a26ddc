"""What can go wrong between an outbox and the log.

Three kinds, by what the relay does: it retries without end (`Unavailable`), it handles one message (`MessageRefused`),
or it ends and an operator decides (all others).
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import HeadraceError


class OutboxError(HeadraceError):
    """The root of the outbox's errors."""


class InvalidMessage(OutboxError):
    """A message that no broker could take; raised in the application that adds it."""


class NoOutbox(OutboxError):
    """The database has no such table."""


class Unavailable(OutboxError):
    """The database or the broker cannot be reached or cannot answer now. What was under way is open until it can."""


class MessageRefused(OutboxError):
    """The broker will not take one of the messages. None of them is out."""

    def __init__(self, why: str, suspects: Sequence[int]) -> None:
        super().__init__(why)
        self.suspects = suspects
        """The ids of the messages of which it is one; a single one is it."""


class RelayFenced(OutboxError):
    """Another relay of the same outbox has begun: this one must end."""


class InDoubt(OutboxError):
    """Database and broker do not agree on what is out, so that a message might be lost or sent twice."""
