"""The send buffer of a producer: messages of one turn of the loop are sent together.

`send` buffers a message and returns a future; `flush` waits until all that was buffered is sent. The buffer is bounded,
and `send` waits while it is full.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from headrace.sdk.message import Outgoing, Receipt
from headrace.sdk.transport import PublishFailed


class Publish(Protocol):
    """How a transport sends."""

    def __call__(self, messages: Sequence[Outgoing], *, receipts: bool = False) -> Awaitable[Sequence[Receipt]]: ...


# Called with what was sent together, in how many seconds, and the error if it failed.
OnSent = Callable[[Sequence[Outgoing], float, Exception | None], None]

# A message, or several that were sent as one, and the future of their caller: a receipt, or nothing for several.
Entry = tuple[Outgoing | Sequence[Outgoing], asyncio.Future[Any]]

# What goes out in one call of the transport.
BATCH_MESSAGES = 1_000
# What the buffer holds at most.
BUFFER_MESSAGES = 100_000


class SendBuffer:
    def __init__(self, publish: Publish, on_sent: OnSent, buffer_max: int = BUFFER_MESSAGES) -> None:
        self._publish = publish
        self._on_sent = on_sent
        self._buffer_max = buffer_max
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Entry] = deque()
        self._count = 0
        self._sending: asyncio.Task[None] | None = None
        self._room = asyncio.Condition()

    async def send(self, message: Outgoing) -> asyncio.Future[Receipt]:
        """Buffer a message; the future is done when it is durable, or raises why it is not."""
        if self._count >= self._buffer_max:
            await self._wait_for_room()
        return self._put(message, 1)

    async def send_all(self, messages: Sequence[Outgoing]) -> None:
        """Send messages together; returns when they are durable."""
        parts = []
        for first in range(0, len(messages), BATCH_MESSAGES):
            if self._count >= self._buffer_max:
                await self._wait_for_room()
            part = messages[first : first + BATCH_MESSAGES]
            parts.append(self._put(part, len(part)))
        for done in parts:
            await done

    @property
    def waiting(self) -> int:
        """Messages in the buffer."""
        return self._count

    async def flush(self) -> None:
        """Wait until everything in the buffer is sent or has failed."""
        while self._sending is not None:
            await asyncio.shield(self._sending)

    async def _wait_for_room(self) -> None:
        async with self._room:
            await self._room.wait_for(lambda: self._count < self._buffer_max)

    def _put(self, what: Outgoing | Sequence[Outgoing], count: int) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self._loop.create_future()
        self._buffer.append((what, done))
        self._count += count
        if self._sending is None:
            # It begins in the next turn of the loop: what is sent in this one goes out together.
            self._sending = self._loop.create_task(self._drain())
        return done

    def _next(self) -> tuple[list[Outgoing], list[Entry]]:
        """The messages that are sent together, and their entries in the buffer."""
        messages: list[Outgoing] = []
        entries = []
        while self._buffer and len(messages) < BATCH_MESSAGES:
            entry = self._buffer.popleft()
            entries.append(entry)
            if isinstance(entry[0], Outgoing):
                messages.append(entry[0])
            else:
                messages += entry[0]
        return messages, entries

    async def _drain(self) -> None:
        try:
            while self._buffer:
                messages, entries = self._next()
                self._count -= len(messages)
                began = time.perf_counter()
                wanted = any(isinstance(what, Outgoing) for what, _ in entries)
                try:
                    receipts = await self._publish(messages, receipts=wanted)
                except Exception as error:
                    self._fail(entries, time.perf_counter() - began, error)
                else:
                    self._on_sent(messages, time.perf_counter() - began, None)
                    _resolve(entries, receipts)
                async with self._room:
                    self._room.notify_all()
        finally:
            self._sending = None

    def _fail(self, entries: Sequence[Entry], seconds: float, failure: Exception) -> None:
        """Not all of it was sent. What is known to be sent did not fail, even where others of its batch did."""
        sent: list[Entry] = []
        failed: list[Entry] = []
        for each in entries:
            concerned = not isinstance(failure, PublishFailed) or any(map(failure.concerns, _messages(each)))
            (failed if concerned else sent).append(each)
        if sent:
            messages = [one for each in sent for one in _messages(each)]
            self._on_sent(messages, seconds, None)
            _resolve(sent, [Receipt(one.topic) for one in messages])
        if failed:
            self._on_sent([one for each in failed for one in _messages(each)], seconds, failure)
            _refuse(failed, failure)


def _messages(entry: Entry) -> Sequence[Outgoing]:
    return (entry[0],) if isinstance(entry[0], Outgoing) else entry[0]


def _resolve(entries: Sequence[Entry], receipts: Sequence[Receipt]) -> None:
    at = 0
    for what, done in entries:
        if not done.done():
            done.set_result(receipts[at] if isinstance(what, Outgoing) else None)
        at += 1 if isinstance(what, Outgoing) else len(what)


def _refuse(entries: Sequence[Entry], failure: Exception) -> None:
    for _, done in entries:
        if not done.done():
            done.set_exception(failure)
            # Marked as seen: a caller that does not wait for it is not warned of an error that was never retrieved.
            done.exception()
