"""Waiting for an append. The log calls back only if an append is not durable when it returns (which one to a `memory`
topic mostly is, and to an `async` one sometimes). Callers that append through here need not know the difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from headrace.errors import HeadraceError
from headrace.log.interface import Appended, Done, Log, Write

Result = TypeVar("Result")


def durable(result: Result) -> tuple[asyncio.Future[Result], Done]:
    """A future that has the result once an append is durable, or the reason why not; and what to give to the append."""
    waiter: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if waiter.done():
            return
        if error is None:
            waiter.set_result(result)
        else:
            waiter.set_exception(error)

    return waiter, done


def append(log: Log, writes: Sequence[Write], done: Done) -> list[Appended]:
    """Append all or nothing. `done` is always called, and never before this returns. Raises an AppendRefused."""
    return call_later(log.append(writes, done), done)


def call_later(appended: list[Appended], done: Done) -> list[Appended]:
    """Call `done` in the next turn of the loop if these answers are durable; the answers as of before that."""
    if not appended[0].durable:
        return appended
    asyncio.get_running_loop().call_soon(done, None)
    return [each._replace(durable=False) for each in appended]


def submit(log: Log, writes: Sequence[Write]) -> asyncio.Future[list[Appended]]:
    """Append all or nothing, now, in the order of the calls. The future is done once that is durable, or fails."""
    appended: list[Appended] = []
    waiter, done = durable(appended)
    try:
        appended += log.append(writes, done)
    except (HeadraceError, OSError) as error:
        done(error)
    else:
        appended[0].complete(done)
    return waiter
