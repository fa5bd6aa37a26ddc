"""Whether a client is still there: heartbeats to it, and deadlines for it.

nsqd's rules: a client that asked for heartbeats gets one each interval, and is given up when nothing has come from it
for two intervals. It is also given up when it takes nothing of what it is sent from one heartbeat to the next. One
timer does all of it, and at the end sees to it that a connection which is closing does close.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from headrace.doors.nsq.nsqd import frames

if TYPE_CHECKING:
    from headrace.doors.nsq.nsqd.connection import Connection

log = structlog.get_logger("headrace.nsq")

# A timer that is due now is due a moment later, or it could be so for ever.
MOMENT_SECONDS = 0.001


class Heartbeat:
    """Of one connection."""

    __slots__ = ("_connection", "_last_sent", "_timer", "_waiting", "last_received")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.last_received = self._last_sent = connection.door.loop.time()
        # Bytes that the client had not taken at the last heartbeat.
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Set the next heartbeat and the deadline for the client's next bytes, as the client wants them by now."""
        self.stop()
        interval = self._connection.identity.heartbeat_ms / 1000
        if interval:
            loop = self._connection.door.loop
            due = min(self._last_sent + interval, self.last_received + 2 * interval)
            self._timer = loop.call_at(max(due, loop.time() + MOMENT_SECONDS), self._beat)

    def stop(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort_after(self, seconds: float) -> None:
        """The connection is closing: see to it that it does."""
        self.stop()
        self._timer = self._connection.door.loop.call_later(seconds, self._connection.transport.abort)

    def _beat(self) -> None:
        connection = self._connection
        self._timer = None
        interval = connection.identity.heartbeat_ms / 1000
        now = connection.door.loop.time()
        if connection.is_read_late:
            # It may have sent something that was not read.
            self.last_received = now
        if now - self.last_received >= 2 * interval:
            log.debug("connection closed: it is silent", client=connection.name)
            connection.abort()
            return
        if now - self._last_sent >= interval:
            self._last_sent = now
            waiting = connection.transport.get_write_buffer_size()
            if waiting and waiting == self._waiting:
                log.debug("connection closed: it does not read", client=connection.name)
                connection.abort()
                return
            self._waiting = waiting
            if connection.begun and not connection.upgrading and not waiting:
                connection.write(frames.HEARTBEAT)
        self.watch()
