"""Waiting for an append: a future, and the callback by which the log settles it."""

from __future__ import annotations

import asyncio

from headrace.log.interface import Done


def durable() -> tuple[asyncio.Future[None], Done]:
    """A future that is done once the append is durable, or says why it is not; and what to give to the append."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)

    return waiter, done
