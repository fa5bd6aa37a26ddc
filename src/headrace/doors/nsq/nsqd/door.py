"""The NSQ door: listens, admits connections, and holds what they share.

They share the receive buffer, a few spare buffers for large commands, the counters, and the end of a loop turn, at
which the OKs that became ready during it go out together.

What a client can make the door hold: nothing while it is idle; the bytes that have arrived of a cut command, at most
doubled and never more than `nsq_max_body_size`; 256 KiB of commands behind one that waits; and a megabyte of replies
that it does not read, which count against what all doors may hold of such (`unread_max_bytes`).
"""

from __future__ import annotations

import asyncio
import ssl

import structlog

from headrace.doors.door import DoorContext
from headrace.doors.nsq.nsqd.auth import Authority
from headrace.doors.nsq.nsqd.codec import Limits
from headrace.doors.nsq.nsqd.connection import Connection
from headrace.doors.nsq.nsqd.topics import Births
from headrace.doors.receiving import Buffers, EndOfTurn
from headrace.doors.roster import Roster
from headrace.doors.tls import Handshakes

log = structlog.get_logger("headrace.nsq")

BUFFER_BYTES = 262_144
# The largest buffer of a large command that is kept for the next one.
SPARE_BYTES_MAX = 8_388_608
STOP_SECONDS = 5.0


class Nsqd:
    """nsqd's TCP protocol in front of a broker."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, context: DoorContext) -> None:
        broker, config = context.broker, context.config
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
        self.connections: Roster[Connection] = Roster(
            config.connections_max, broker.metrics.door("nsq"), context.capacity
        )
        self.handshakes = Handshakes(broker.metrics.door("nsq"))
        self.buffers = Buffers(SPARE_BYTES_MAX)
        self.soon = EndOfTurn().soon
        self.pub = broker.metrics.api("nsq", "PUB")
        self.mpub = broker.metrics.api("nsq", "MPUB")
        self.dpub = broker.metrics.api("nsq", "DPUB")
        self.fin = broker.metrics.api("nsq", "FIN")
        self.address: tuple[str, int] = ("", 0)
        self.http_port = int(context.addresses.get("http", ":0").rpartition(":")[2])
        """Where the broker is managed (the HTTP door, not NSQ's own API); 0: nowhere."""
        self._numbers = 0
        self._errors = broker.metrics.api("nsq", "any")
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen; port 0 picks one, which `address` then tells. Clients ask for TLS by IDENTIFY."""
        self.loop = asyncio.get_running_loop()
        self.tls = tls
        self._server = await self.loop.create_server(lambda: Connection(self), host, port, backlog=1024)
        bound = self._server.sockets[0].getsockname()
        self.address = (str(bound[0]), int(bound[1]))

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        if self._server is None:
            return
        self._server.close()
        await self.connections.close(Connection.close_when_idle, STOP_SECONDS)
        self._server = None

    # --- connections --------------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Count a new connection in, unless there are too many, and give it a number."""
        if not self.connections.admit(connection):
            return False
        self._numbers += 1
        connection.session.number = self._numbers
        return True

    def count(self, command: str) -> None:
        """Count a command that is rare enough to be looked up."""
        self.broker.metrics.api("nsq", command).requests += 1

    def failed(self, code: str) -> None:
        """Count an error that was answered."""
        self._errors.failed(code)
