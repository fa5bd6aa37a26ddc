"""A subscription whose handler takes lists, over Kafka's wire: messages that were fetched together stay together.

Fetched batches (fetched_batch.py) wait for workers, and no object is made for a message of a batch that is acked. A
batch of which a message fails is handled like any other subscription's messages, one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headrace.sdk.fetched_batch import FetchedBatch, Span, join_parts, overlap
from headrace.sdk.message import Outgoing
from headrace.sdk.observer import clock
from headrace.sdk.outcome import Ack, Outcome
from headrace.sdk.payload import BadPayload
from headrace.sdk.runner import SubscriptionRunner
from headrace.sdk.transport import Delivery


class BatchRunner(SubscriptionRunner):
    """One subscription."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # What workers have, by the end of it.
        self._at_work: dict[asyncio.Future[None], Sequence[Span]] = {}

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        if self.tuning.at_most_once:
            _ack(deliveries)
            self._seen.on_settled(deliveries, Ack(), 0.0)
        self._ready.append(deliveries)
        self._seen.on_received(len(deliveries))
        self._wake(1)

    @property
    def ahead(self) -> int:
        return sum(map(len, list(self._ready)))

    @property
    def waiting(self) -> int:
        return self.ahead + self._busy

    async def _gather(self) -> Sequence[Delivery]:
        wanted = self.tuning.batch
        loop = asyncio.get_running_loop()
        parts: list[Sequence[Delivery]] = []
        size = 0
        end = loop.time() + self.tuning.batch_wait
        while True:
            while self._ready and (not parts or size + len(self._ready[0]) <= wanted):
                part = self._ready.popleft()
                if len(part) > wanted:
                    # They are fewer than when it was fetched.
                    self._ready.appendleft(part[wanted:])
                    part = part[:wanted]
                parts.append(part)
                size += len(part)
                self._busy += len(part)
            self._check_room()
            if parts and (size >= wanted or self._ready or loop.time() >= end):
                return join_parts(parts)
            await self._more(end)

    def _return(self, taken: Sequence[Delivery]) -> None:
        self._ready.appendleft(taken)

    def _touch(self, waiting: Any) -> bool:
        return not isinstance(waiting, FetchedBatch) or waiting.touch()

    async def _handle(self, taken: Sequence[Delivery]) -> None:
        if not isinstance(taken, FetchedBatch) or not taken.whole:
            await super()._handle(taken)
            return
        async with self._alone(taken.spans()):
            try:
                payloads = self._handler.decode_all(taken.values())
            except BadPayload:
                await super()._handle(list(taken))
                return
            self._settle(taken, await self._call(taken.messages, payloads, 1))

    @asynccontextmanager
    async def _alone(self, spans: Sequence[Span]) -> AsyncIterator[None]:
        """Wait until no other worker has any of these: a partition that was taken away and given back is read again
        while its messages are still being handled."""
        while other := next((done for done, mine in self._at_work.items() if overlap(mine, spans)), None):
            await asyncio.wait([other])
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._at_work[done] = spans
        try:
            yield
        finally:
            del self._at_work[done]
            done.set_result(None)

    def _settle(self, deliveries: Sequence[Delivery], outcome: Outcome, sent: Sequence[Outgoing] = ()) -> None:
        if not isinstance(outcome, Ack):
            super()._settle(deliveries, outcome, sent)
            return
        self.handled += len(deliveries)
        if not self.tuning.at_most_once:
            began = clock()
            _ack(deliveries)
            self._seen.on_settled(deliveries, outcome, clock() - began)


def _ack(deliveries: Sequence[Delivery]) -> None:
    if isinstance(deliveries, FetchedBatch):
        deliveries.ack()
        return
    for each in deliveries:
        each.ack()
