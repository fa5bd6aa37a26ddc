"""What becomes of a message: a handler returns one of these, or raises it. Nothing returned is `Ack()`."""

from __future__ import annotations

from headrace.sdk.values import Duration, seconds_of


class Outcome(Exception):
    """The root of the three. They are exceptions so that code deep inside a handler can decide."""


class Ack(Outcome):
    """Done: never delivered to this group again."""


class Retry(Outcome):
    """Deliver it again: after so many seconds, or as the subscription's retries say."""

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after = None if after is None else seconds_of("after", after)


class Reject(Outcome):
    """No use in trying again: to the dead letters, with the reason."""
