"""The quotas of one client: what it has used of each, and how long it must wait.

A kernel beside that of its buckets."""

from __future__ import annotations

import cython

from headrace.broker.quotas.kinds import Kind
from headrace.errors import QuotaExceeded

if cython.compiled:
    from cython.cimports.headrace.broker.quotas.bucket import Bucket
else:
    from headrace.broker.quotas.bucket import Bucket


@cython.final
@cython.cclass
class Meter:
    """The buckets that a client draws on. Which ones they are changes with the quotas: ask for another meter then."""

    def __init__(
        self, produce: Bucket | None, consume: Bucket | None, request: Bucket | None, mutate: Bucket | None
    ) -> None:
        self.produce = produce
        self.consume = consume
        self.mutate = mutate
        self.request = request
        """What its requests take of the loop, in seconds; None: that is not limited."""

    # --- for doors that hold a client back after what it has done -----------------------------------------------------

    @cython.ccall
    def produced(self, size: cython.double, now: cython.double) -> cython.double:
        """Count bytes that the client has produced; the seconds for which it is held back."""
        wait: cython.double = 0.0
        if self.produce is not None:
            wait = self.produce.charge(size, now)
        if self.request is not None:
            wait = max(wait, self.request.wait(now))
        return wait

    @cython.ccall
    def consumed(self, size: cython.double, now: cython.double) -> cython.double:
        """Count bytes that the client is sent; the seconds for which it is held back."""
        wait: cython.double = 0.0
        if self.consume is not None:
            wait = self.consume.charge(size, now)
        if self.request is not None:
            wait = max(wait, self.request.wait(now))
        return wait

    def asked(self, now: float) -> float:
        """The seconds for which the client is held back after a request that moves no messages."""
        return 0.0 if self.request is None else self.request.wait(now)

    def wait_to_consume(self, now: float) -> float:
        """The seconds until the client may be sent more."""
        wait = 0.0 if self.consume is None else self.consume.wait(now)
        return wait if self.request is None else max(wait, self.request.wait(now))

    def mutated(self, partitions: int, now: float) -> None:
        """Count partitions that the client is about to have made, added or deleted."""
        if self.mutate is not None:
            self.mutate.count(partitions, now)

    def wait_to_mutate(self, now: float) -> float:
        """The seconds for which the client is held back for those."""
        return 0.0 if self.mutate is None else self.mutate.wait(now)

    # --- for doors that refuse what is too much -----------------------------------------------------------------------

    def take_produce(self, size: int, now: float) -> None:
        """Count bytes that the client is about to produce. Raises QuotaExceeded where it must come again later."""
        self.take_request(now)
        if self.produce is not None and (wait := self.produce.take(size, now)):
            raise QuotaExceeded(Kind.PRODUCE, wait)

    def take_consume(self, now: float) -> None:
        """Before messages are read for the client, whose bytes are then counted by `consumed`. Raises QuotaExceeded."""
        self.take_request(now)
        if self.consume is not None and (wait := self.consume.take(0, now)):
            raise QuotaExceeded(Kind.CONSUME, wait)

    def take_mutate(self, partitions: int, now: float) -> None:
        """Count partitions that are about to be made, added or deleted. Raises QuotaExceeded."""
        if self.mutate is not None and (wait := self.mutate.take(partitions, now)):
            raise QuotaExceeded(Kind.MUTATE, wait)

    def take_request(self, now: float) -> None:
        """Before a request whose time is counted by `request`. Raises QuotaExceeded."""
        if self.request is not None and (wait := self.request.take(0, now)):
            raise QuotaExceeded(Kind.REQUEST, wait)
