"""The NSQ door: listens, admits connections, and holds what they share.

They share what an acceptor has, the settings and the counters.

What a client can make the door hold: nothing while it is idle; the bytes that have arrived of a cut command, at most
doubled and never more than `nsq_max_body_size`, of which all clients together have `receiving_max_bytes`, unless they
compress; 256 KiB of commands behind one that waits; and a megabyte of replies that it does not read, which count
against what all doors may hold of such (`unread_max_bytes`).
"""

from __future__ import annotations

from itertools import count

from headrace.doors.acceptor import BufferedAcceptor
from headrace.doors.door import DoorContext
from headrace.doors.nsq.nsqd.auth import Authority
from headrace.doors.nsq.nsqd.connection import Connection
from headrace.doors.nsq.nsqd.topics import NsqTopics
from headrace.doors.nsq.settings import NsqSettings
from headrace.doors.tls import Handshakes

BUFFER_BYTES = 262_144
# The largest buffer of a large command that is kept for the next one.
SPARE_BYTES_MAX = 8_388_608
STOP_SECONDS = 5.0


class Nsqd(BufferedAcceptor[Connection]):
    """nsqd's TCP protocol in front of a broker."""

    def __init__(self, context: DoorContext[NsqSettings], topics: NsqTopics) -> None:
        broker, settings = context.broker, context.settings
        super().__init__(
            broker.metrics.door("nsq"),
            context.shared.connections_max,
            context.capacity,
            buffer_bytes=BUFFER_BYTES,
            spare_bytes_max=SPARE_BYTES_MAX,
        )
        self.broker = broker
        self.settings = settings
        self.clock = broker.runtime.clock
        self.topics = topics
        self.authority = Authority(settings.auth_http) if settings.auth_http else None
        self.takes_clear = context.shared.sasl_plain_without_tls
        """Secrets come without TLS from other machines, too."""
        self.tls = context.tls
        """For clients that ask for it by IDENTIFY."""
        self.tls_required = settings.nsq_tls_required or bool(context.shared.tls_client_ca)
        self.handshakes = Handshakes(self.metrics)
        self.pub = broker.metrics.api("nsq", "PUB")
        self.mpub = broker.metrics.api("nsq", "MPUB")
        self.dpub = broker.metrics.api("nsq", "DPUB")
        self.fin = broker.metrics.api("nsq", "FIN")
        self.http_port = int(context.addresses.get("http", ":0").rpartition(":")[2])
        """Where the broker is managed (the HTTP door, not NSQ's own API); 0: nowhere."""
        self.numbers = count(1)
        """Of connections."""
        self.errors = broker.metrics.api("nsq", "any")
        broker.quotas.on_changed.append(self.unmute)

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        await self.close(STOP_SECONDS)

    def connect(self) -> Connection:
        """A connection for a client that has come."""
        return Connection(self)

    def count(self, command: str) -> None:
        """Count a command that is rare enough to be looked up."""
        self.broker.metrics.api("nsq", command).requests += 1
