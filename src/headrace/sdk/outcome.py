"""What becomes of a message: a handler returns one of these, or raises it. Nothing returned is `Ack()`."""

from __future__ import annotations


class Outcome(Exception):
    """The root of the three. They are exceptions so that code deep inside a handler can decide."""


class Ack(Outcome):
    """Done: never delivered to this group again."""


class Retry(Outcome):
    """Deliver it again: after so many seconds, or as the subscription's retries say."""

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason)
        if after is not None and after < 0:
            raise ValueError(f"a retry cannot be due {-after} s ago: give 0 or more seconds")
        self.after = after


class Reject(Outcome):
    """No use in trying again: to the dead letters, with the reason."""
