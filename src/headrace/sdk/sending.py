"""The local send queue of a producer: messages gather for a moment and go out together.

`send` puts a message in line and gives a future; `flush` waits until all that came before it is out. The line is
bounded, and whoever finds it full waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from headrace.sdk.message import Outgoing

Publish = Callable[[Sequence[Outgoing]], Awaitable[None]]
# Told what went out together, in how many seconds, or why it did not.
Told = Callable[[Sequence[Outgoing], float, Exception | None], None]

# What goes out in one call of the transport.
BATCH_MESSAGES = 1_000
# What may be in line.
LINE_MESSAGES = 100_000


class Sender:
    """One line, to one transport."""

    def __init__(self, publish: Publish, told: Told, line_max: int = LINE_MESSAGES) -> None:
        self._publish = publish
        self._told = told
        self._line_max = line_max
        self._line: list[tuple[Outgoing, asyncio.Future[None]]] = []
        self._sending: asyncio.Task[None] | None = None
        self._room = asyncio.Condition()

    async def send(self, message: Outgoing) -> asyncio.Future[None]:
        """Put a message in line; the future is done when it is durable, or says why it is not."""
        while len(self._line) >= self._line_max:
            async with self._room:
                await self._room.wait_for(lambda: len(self._line) < self._line_max)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((message, done))
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._drain())
        return done

    @property
    def waiting(self) -> int:
        """Messages in line."""
        return len(self._line)

    async def flush(self) -> None:
        """Wait until everything in line is out, one way or the other."""
        while self._sending is not None:
            await asyncio.shield(self._sending)

    async def _drain(self) -> None:
        try:
            # What is sent in this turn of the loop goes out together.
            await asyncio.sleep(0)
            while self._line:
                batch, self._line = self._line[:BATCH_MESSAGES], self._line[BATCH_MESSAGES:]
                messages = [message for message, _ in batch]
                began = time.perf_counter()
                try:
                    await self._publish(messages)
                except Exception as error:
                    self._told(messages, time.perf_counter() - began, error)
                    for _, done in batch:
                        if not done.done():
                            done.set_exception(error)
                            # Nobody need wait for it: whoever does hears of it all the same.
                            done.exception()
                else:
                    self._told(messages, time.perf_counter() - began, None)
                    for _, done in batch:
                        if not done.done():
                            done.set_result(None)
                async with self._room:
                    self._room.notify_all()
        finally:
            self._sending = None
