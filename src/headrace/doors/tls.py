"""TLS in front of a door: the handshake, and the log line of one that fails.

A loop's own server does the handshake itself, and reports none that fails: an operator would see clients that
cannot connect and a broker that logs nothing. So connections are accepted here, and the loop is asked for TLS on each
of them by a call that raises.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import structlog

from headrace.broker.metrics import DoorMetrics
from headrace.broker.rate_limit import RateLimit
from headrace.doors.capacity import Capacity
from headrace.doors.listeners import bind
from headrace.runtime.disk import NO_DESCRIPTORS

log = structlog.get_logger("headrace.doors")

HANDSHAKE_SECONDS = 60.0
# Until the next try, where there is no descriptor, or no memory, for another connection.
NOTHING_LEFT = (*NO_DESCRIPTORS, errno.ENOBUFS, errno.ENOMEM)
NOTHING_LEFT_SECONDS = 1.0


class Contexts(NamedTuple):
    """The TLS of the doors; None where they speak in the clear."""

    usual: ssl.SSLContext | None
    """Asks clients for a certificate, where there is an authority for theirs."""
    without_client_certificates: ssl.SSLContext | None
    """Never does."""
    on_reloaded: list[Callable[[], None]]
    """Called when the files were read again; the contexts follow by themselves."""


NO_TLS = "the client does not speak TLS"
UNTRUSTED = "the client does not trust this broker's certificate, or its authority"
# By the names that OpenSSL gives them; others are logged in OpenSSL's words.
REASONS = {
    "HTTP_REQUEST": NO_TLS,
    "HTTPS_PROXY_REQUEST": NO_TLS,
    "PACKET_LENGTH_TOO_LONG": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "WRONG_VERSION_NUMBER": NO_TLS,
    "NO_SHARED_CIPHER": "the client offers no cipher that this broker takes",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate, and tls_client_ca asks for one",
    "SSLV3_ALERT_BAD_CERTIFICATE": UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client reports that this broker's certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": UNTRUSTED,
    "TLSV1_ALERT_DECRYPT_ERROR": UNTRUSTED,
    "TLSV1_ALERT_UNKNOWN_CA": UNTRUSTED,
    "UNSUPPORTED_PROTOCOL": "the client offers no version of TLS from 1.2 on",
}


def reason_of(error: OSError) -> str:
    """Why a handshake failed, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return REASONS.get(error.reason, error.reason.lower().replace("_", " "))
    return str(error) or type(error).__name__


class Handshakes:
    """Counts and logs the failed handshakes of one door."""

    def __init__(self, metrics: DoorMetrics) -> None:
        self._metrics = metrics
        self._limits: dict[str, RateLimit] = {}

    def failed(self, client: str, error: OSError) -> None:
        """Count a handshake that failed, and log why, each reason at a limited rate."""
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            # It sent nothing, as a probe that only looks whether the port is open.
            log.debug("no TLS handshake", door=self._metrics.name, client=client)
            return
        self._metrics.handshakes_failed += 1
        reason = reason_of(error)
        limit = self._limits.setdefault(reason, RateLimit())
        count = limit.count(asyncio.get_running_loop().time())
        if count:
            log.warning("TLS handshake failed", door=self._metrics.name, client=client, reason=reason, count=count)


class TlsServer:
    """Listens, and gives those who come a protocol of their own once their handshake is done."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext,
        metrics: DoorMetrics,
        capacity: Capacity,
    ) -> None:
        self._protocol = protocol
        self._context = context
        self._metrics = metrics
        self._capacity = capacity
        self._door = metrics.name
        self._handshakes = Handshakes(metrics)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.sockets: Sequence[socket.socket] = ()

    async def start(self, host: str, port: int, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen on every address that the host has, or on `sockets`, which do. Raises OSError where that cannot be."""
        self.sockets = sockets or await bind(host, port)
        for each in self.sockets:
            each.setblocking(False)
            self._run(self._accept(each))

    def close(self) -> None:
        """Accept no more, and give up the handshakes under way."""
        for task in list(self._tasks):
            task.cancel()
        for each in self.sockets:
            each.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                # Otherwise the client is gone already. The loop has its turn before the next, for this may go on.
                pause = 0.0
                if error.errno in NOTHING_LEFT:
                    what = "descriptors left (ulimit -n)" if error.errno in NO_DESCRIPTORS else "memory"
                    log.error(f"no {what}: clients wait", door=self._door)
                    pause = NOTHING_LEFT_SECONDS
                await asyncio.sleep(pause)
                continue
            if not self._capacity.take():
                accepted.close()
                self._metrics.connections_refused += 1
                self._capacity.refused(self._door, loop.time())
                continue
            self._run(self._greet(accepted, f"{address[0]}:{address[1]}"))

    async def _greet(self, accepted: socket.socket, client: str) -> None:
        """Shake hands; until then the descriptor is not yet a connection's."""
        try:
            # As a loop's own server has it.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, accepted, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:
            accepted.close()
            self._handshakes.failed(client, error)
        except asyncio.CancelledError:
            accepted.close()
            raise
        finally:
            self._capacity.give_back()
