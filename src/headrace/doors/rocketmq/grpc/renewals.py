"""Leases that are renewed while their consumer lives.

A push consumer does not say how long it takes for a message: its leases are short, and the door renews them, as
RocketMQ's proxy does. The consumer keeps the handle that it got, which is one of a renewed lease: it is good for the
whole attempt. After a restart of the broker such a lease ends by itself, unless its message is settled before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.broker.queues import Handle, Queue
from headrace.doors.rocketmq.grpc.clients import Clients
from headrace.runtime import Clock

RENEWED_MS = 60_000
# How often leases are looked at; those that end before the second look from now on are renewed.
LOOK_MS = 15_000
# A message is not renewed for ever.
LONGEST_MS = 3 * 3_600_000
# Leases that are renewed; those beyond end like any other.
RENEWALS_MAX = 1_000_000

# The queue, the lane, the offset and the attempt.
_Key = tuple[int, int, int, int]


class Renewals:
    """The leases of push consumers."""

    def __init__(self, clients: Clients, clock: Clock) -> None:
        self._clients = clients
        self._clock = clock
        # The client, until when it is renewed, the queue, and the handle of now.
        self._entries: dict[_Key, tuple[str, int, Queue, Handle]] = {}
        self._running: asyncio.Task[None] | None = None

    def add(self, client_id: str, queue: Queue, handles: Sequence[Handle]) -> None:
        """Renew leases while a client lives."""
        until = self._clock.now_ms() + LONGEST_MS
        for handle in handles:
            if len(self._entries) < RENEWALS_MAX:
                self._entries[_key(handle)] = (client_id, until, queue, handle)
        if self._entries and self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    def forget(self, handle: Handle) -> None:
        """A message is settled, or its consumer has said how long it takes."""
        self._entries.pop(_key(handle), None)

    def stop(self) -> None:
        """Renew no more."""
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        while self._entries:
            await asyncio.sleep(LOOK_MS / 1_000)
            now = self._clock.now_ms()
            for key, (client_id, until, queue, handle) in list(self._entries.items()):
                if self._clients.find(client_id) is None or until < now or not queue.leases.is_current(handle):
                    self._entries.pop(key, None)
                elif handle.until_ms < now + 2 * LOOK_MS:
                    renewed = queue.leases.extend(handle, RENEWED_MS)
                    if renewed is not None:
                        self._entries[key] = (client_id, until, queue, renewed)
        self._running = None


def _key(handle: Handle) -> _Key:
    return handle.queue, handle.lane, handle.offset, handle.attempt
