"""Waiting for an append. The log calls back only if an append is not durable when it returns (which one to a `memory`
topic mostly is, and to an `async` one sometimes). Callers that append through here need not know the difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.log.interface import Appended, Done, Log, Write


def durable() -> tuple[asyncio.Future[None], Done]:
    """A future that is done once the append is durable, or fails with the reason; and what to give to the append."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)

    return waiter, done


def append(log: Log, writes: Sequence[Write], done: Done | None) -> list[Appended]:
    """Append all or nothing. `done` is always called, and never before this returns. Raises an AppendRefused."""
    appended = log.append(writes, done)
    if done is not None and appended[0].durable:
        asyncio.get_running_loop().call_soon(done, None)
    return appended


async def append_durably(log: Log, writes: Sequence[Write]) -> list[Appended]:
    """Append all or nothing, and return once it is durable. Raises an AppendRefused."""
    waiter, done = durable()
    appended = log.append(writes, done)
    if not appended[0].durable:
        await waiter
    return appended
