"""The NSQ door: listens, admits connections, and holds what they share.

They share the receive buffer, a few spare buffers for large commands, the counters, and the end of a loop turn, at
which the OKs that became ready during it go out together.

What a client can make the door hold: nothing while it is idle; the bytes that have arrived of a cut command, at most
doubled and never more than `nsq_max_body_size`; 256 KiB of commands behind one that waits; and a megabyte of replies
that it does not read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import structlog

from headrace.broker.broker import Broker
from headrace.config import Config
from headrace.doors.nsq.auth import Authority
from headrace.doors.nsq.codec import Limits
from headrace.doors.nsq.connection import Connection
from headrace.doors.nsq.topics import Births

log = structlog.get_logger("headrace.nsq")

BUFFER_BYTES = 262_144
# Buffers of large commands that are kept for the next ones: how many, and how large each may be.
SPARE_MAX = 4
SPARE_BYTES_MAX = 8_388_608
STOP_SECONDS = 5.0


class NsqDoor:
    """nsqd's TCP protocol in front of a broker."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, broker: Broker, config: Config) -> None:
        self.broker = broker
        self.config = config
        self.clock = broker.ground.clock
        self.limits = Limits.of(config)
        self.births = Births(broker, config)
        self.authority = Authority(config.auth_http) if config.auth_http else None
        self.tls: ssl.SSLContext | None = None
        self.tls_required = config.nsq_tls_required or bool(config.tls_client_ca)
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self.connections: dict[Connection, None] = {}
        self.metrics = broker.metrics.door("nsq")
        self.pub = broker.metrics.api("nsq", "PUB")
        self.mpub = broker.metrics.api("nsq", "MPUB")
        self.dpub = broker.metrics.api("nsq", "DPUB")
        self.fin = broker.metrics.api("nsq", "FIN")
        self.address: tuple[str, int] = ("", 0)
        self._numbers = 0
        self._errors = broker.metrics.api("nsq", "any")
        self._spare: list[bytearray] = []
        self._ready: list[Callable[[], None]] = []
        self._server: asyncio.Server | None = None
        self._stopping = False
        # Done when a stopping door has no connection left.
        self._emptied: asyncio.Future[None] | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen; port 0 picks one, which `address` then tells. Clients ask for TLS by IDENTIFY."""
        self.loop = asyncio.get_running_loop()
        self.tls = tls
        self._server = await self.loop.create_server(lambda: Connection(self), host, port, backlog=1024)
        bound = self._server.sockets[0].getsockname()
        self.address = (str(bound[0]), int(bound[1]))

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        self._stopping = True
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.connections):
            connection.close_when_idle()
        if self.connections:
            self._emptied = self.loop.create_future()
            await asyncio.wait([self._emptied], timeout=STOP_SECONDS)
        for connection in list(self.connections):
            connection.abort()
        self._server = None

    # --- connections --------------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Count a new connection in, unless there are too many."""
        if len(self.connections) >= self.config.connections_max or self._stopping:
            self.metrics.connections_refused += 1
            return False
        self.connections[connection] = None
        self._numbers += 1
        connection.number = self._numbers
        self.metrics.connections_accepted += 1
        self.metrics.connections = len(self.connections)
        return True

    def forget(self, connection: Connection) -> None:
        """Count a lost connection out."""
        self.connections.pop(connection, None)
        if self._emptied is not None and not self.connections and not self._emptied.done():
            self._emptied.set_result(None)
        self.metrics.connections = len(self.connections)

    def count(self, command: str) -> None:
        """Count a command that is rare enough to be looked up."""
        self.broker.metrics.api("nsq", command).requests += 1

    def failed(self, code: str) -> None:
        """Count an error that was answered."""
        self._errors.failed(code)

    def soon(self, call: Callable[[], None]) -> None:
        """Call at the end of this turn, together with all others that asked."""
        self._ready.append(call)
        if len(self._ready) == 1:
            self.loop.call_soon(self._run_ready)

    def _run_ready(self) -> None:
        ready, self._ready = self._ready, []
        for call in ready:
            try:
                call()
            except Exception:
                log.exception("a reply failed")

    # --- buffers of large commands ------------------------------------------------------------------------------------

    def take(self, first: int, need: int) -> bytearray:
        """A buffer for a command of `need` bytes: a spare one that holds it all, or a small beginning."""
        for index, spare in enumerate(self._spare):
            if len(spare) >= need:
                return self._spare.pop(index)
        return bytearray(min(first, need))

    def grow(self, buffer: bytearray, need: int) -> bytearray:
        """The same bytes with more room: never more than twice what has arrived."""
        grown = bytearray(min(need, 2 * len(buffer)))
        grown[: len(buffer)] = buffer
        return grown

    def give_back(self, buffer: bytearray) -> None:
        """Keep a buffer for the next large command."""
        if len(self._spare) < SPARE_MAX and len(buffer) <= SPARE_BYTES_MAX:
            self._spare.append(buffer)
