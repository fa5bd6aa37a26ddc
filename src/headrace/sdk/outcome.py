"""What becomes of a message: a handler returns one of these, or raises it. Nothing returned is `Ack()`."""

from __future__ import annotations

from headrace.sdk.values import Duration, seconds_of

ACK, RETRY, REJECT = "ack", "retry", "reject"


class Outcome(Exception):
    """The root of the three. They are exceptions so that code deep inside a handler can decide."""

    operation = ACK
    """In logs and metrics."""


class Ack(Outcome):
    """Done: never delivered to this group again."""


class Retry(Outcome):
    """Deliver it again: after so many seconds, or by the subscription's retry schedule."""

    operation = RETRY

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after = None if after is None else seconds_of("after", after)


class Reject(Outcome):
    """Another attempt is of no use: to the dead letters, with the reason."""

    operation = REJECT
