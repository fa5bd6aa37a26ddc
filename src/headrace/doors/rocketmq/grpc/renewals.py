"""Leases that are renewed while their consumer lives.

A push consumer does not say how long it takes for a message: its leases are short, and the door renews them, as
RocketMQ's proxy does. The consumer keeps the handle that it got; this knows what has become of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.doors.rocketmq.grpc.clients import Clients
from headrace.doors.rocketmq.grpc.leases import Handle, Leases
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

    def __init__(self, leases: Leases, clients: Clients, clock: Clock) -> None:
        self._leases = leases
        self._clients = clients
        self._clock = clock
        # The client, until when it is renewed, and the handle of now.
        self._entries: dict[_Key, tuple[str, int, Handle]] = {}
        self._running: asyncio.Task[None] | None = None

    def add(self, client_id: str, handles: Sequence[Handle]) -> None:
        """Renew leases while a client lives."""
        until = self._clock.now_ms() + LONGEST_MS
        for handle in handles:
            if len(self._entries) < RENEWALS_MAX:
                self._entries[_key(handle)] = (client_id, until, handle)
        if self._entries and self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    def current(self, handle: Handle) -> Handle:
        """What has become of a handle."""
        entry = self._entries.get(_key(handle))
        return handle if entry is None or entry[2].start != handle.start else entry[2]

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
            for key, (client_id, until, handle) in list(self._entries.items()):
                if self._clients.find(client_id) is None or until < now:
                    self._entries.pop(key, None)
                elif handle.until_ms < now + 2 * LOOK_MS:
                    self._renew(key, client_id, until, handle)
        self._running = None

    def _renew(self, key: _Key, client_id: str, until: int, handle: Handle) -> None:
        renewed = self._leases.change_visibility(handle, RENEWED_MS)
        if renewed is None:
            del self._entries[key]
        else:
            self._entries[key] = (client_id, until, renewed)


def _key(handle: Handle) -> _Key:
    return handle.queue, handle.lane, handle.offset, handle.attempt
