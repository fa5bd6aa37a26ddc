"""What a coroutine takes of the loop: the time of its steps, without that in which it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from headrace.broker.quotas.bucket import Bucket

T = TypeVar("T")


async def timed(work: Coroutine[Any, Any, T], bucket: Bucket | None, clock: Callable[[], float]) -> T:
    """Do something, and count what its steps take of the loop where a client's quota limits that."""
    if bucket is None:
        return await work
    steps = Steps(work, clock)
    try:
        return await steps
    finally:
        bucket.count(steps.taken, asyncio.get_running_loop().time())


class Steps(Generic[T]):
    """A coroutine that is awaited through this once; `taken` has the seconds."""

    def __init__(self, work: Coroutine[Any, Any, T], clock: Callable[[], float]) -> None:
        self.taken = 0.0
        self._work = work
        self._clock = clock

    def __await__(self) -> Generator[Any, Any, T]:
        work = self._work
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            began = self._clock()
            try:
                waited_for = work.send(sent) if thrown is None else work.throw(thrown)
            except StopIteration as stop:
                result: T = stop.value
                return result
            finally:
                self.taken += self._clock() - began
            sent = thrown = None
            try:
                sent = yield waited_for
            except BaseException as error:
                thrown = error
