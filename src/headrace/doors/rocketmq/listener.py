"""A listening address of the RocketMQ door: its connections, and the handlers of their requests."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping, Sequence

from headrace.broker.metrics import ApiMetrics
from headrace.broker.security.rights import Declaration
from headrace.doors.acceptor import BufferedAcceptor
from headrace.doors.door import DoorContext
from headrace.doors.rocketmq.codes import Request
from headrace.doors.rocketmq.connection import Handlers, RemotingConnection
from headrace.doors.rocketmq.gate import Gate
from headrace.doors.rocketmq.settings import RocketMqSettings

BUFFER_BYTES = 524_288
# The largest buffer of a large request that is kept for the next one.
SPARE_BYTES_MAX = 4_194_304
STOP_SECONDS = 5.0


class RemotingListener(BufferedAcceptor[RemotingConnection]):
    """What the name server and the broker have in common."""

    title: str
    """What it is, in errors."""
    handlers: Handlers
    take: Callable[[RemotingConnection, bytearray, int, int], bool]
    """Handles the frame between two positions where it lies; False: it is handled as a command."""

    def __init__(
        self, context: DoorContext[RocketMqSettings], name: str, declarations: Mapping[int, Declaration]
    ) -> None:
        self.broker = context.broker
        self.settings = context.settings
        super().__init__(
            self.broker.metrics.door(name),
            context.shared.connections_max,
            context.capacity,
            buffer_bytes=BUFFER_BYTES,
            spare_bytes_max=SPARE_BYTES_MAX,
        )
        self.seconds = self.broker.runtime.clock.boot_seconds
        """The clock by which the time that requests take of the loop is counted."""
        self.frame_max = context.settings.rocketmq_frame_max_bytes
        self._name = name
        self.gate = Gate(self.broker, declarations, is_required=context.settings.rocketmq_authentication == "required")
        self._tls = context.tls
        self._idle_seconds = context.shared.connections_idle_ms / 1000
        self._by_code: dict[int, ApiMetrics] = {}
        self._numbers = 0
        self.broker.quotas.on_changed.append(self.unmute)
        self.take = _take_none

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, sockets: Sequence[socket.socket] = ()
    ) -> None:
        """Listen; over TLS alone where a certificate is configured. Raises OSError where that cannot be."""
        await super().listen(host, port, self._tls, sockets)
        self.close_idle(self._idle_seconds)

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        await self.close(STOP_SECONDS)

    def connect(self) -> RemotingConnection:
        """A connection for a client that has come."""
        self._numbers += 1
        return RemotingConnection(self, self._numbers)

    def metrics_of(self, code: int) -> ApiMetrics:
        """Where requests of a code are counted."""
        found = self._by_code.get(code)
        if found is None:
            found = self._by_code[code] = self.broker.metrics.api(self._name, Request(code).name.lower())
        return found


def _take_none(connection: RemotingConnection, buffer: bytearray, position: int, stop: int) -> bool:
    """All frames are handled as commands."""
    return False
