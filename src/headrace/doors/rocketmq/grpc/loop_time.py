"""What a gRPC client's calls take of the loop, where that is limited (`request_percentage`).

Calls are refused, but for those by which a client keeps what it has: their answers come later. A stream of telemetry is
not counted: it lasts for as long as its client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.quotas.steps import timed
from headrace.broker.security import Session
from headrace.doors.rocketmq.grpc.protocol import Proto
from headrace.doors.rocketmq.loop_time import KEPT_METHODS


class LoopTime:
    """The time of the loop that the calls of one listener take."""

    def __init__(self, broker: Broker) -> None:
        self._quotas = broker.quotas
        self._clock = broker.runtime.clock.boot_seconds

    async def once(
        self, method: str, session: Session, wait_max_ms: int, work: Callable[[], Awaitable[Proto]]
    ) -> Proto:
        """Do a call. Raises QuotaExceeded where its client must come again later."""
        bucket = self._quotas.loop_time(session)
        if bucket is None:
            return await work()
        if method not in KEPT_METHODS:
            self._quotas.take_request(session)
        answer = await timed(_await(work), bucket, self._clock)
        if method in KEPT_METHODS and (wait := bucket.wait(asyncio.get_running_loop().time())):
            await asyncio.sleep(min(wait, wait_max_ms / 1000))
        return answer

    async def often(self, session: Session, answers: AsyncIterator[Proto]) -> AsyncIterator[Proto]:
        """The answers of a call, which has asked for the quota itself."""
        bucket = self._quotas.loop_time(session)
        stream: Any = answers
        async with aclosing(stream):
            while True:
                answer = await timed(_next(answers), bucket, self._clock)
                if answer is None:
                    return
                yield answer


async def _await(work: Callable[[], Awaitable[Proto]]) -> Proto:
    return await work()


async def _next(answers: AsyncIterator[Proto]) -> Proto | None:
    return await anext(answers, None)
