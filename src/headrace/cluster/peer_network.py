"""How nodes reach each other: a listener for the other nodes, and connections to them, with TLS or without.

A loop's own server reports no handshake that fails. So with TLS connections are accepted here, and each is asked for
its handshake by a call that raises. One that begins without TLS is answered in the clear why it is refused: what it
runs is a node of the same group, most likely, whose operator has to know.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from headrace.addresses import format_address
from headrace.broker.rate_limit import RateLimit
from headrace.cluster.connection import PeerConnection
from headrace.cluster.figures import Figures
from headrace.cluster.peer_tls import NO_TLS, NOT_ACCEPTED, PeerTls, names_host, reason_of
from headrace.cluster.wire import OPENING_MAX_BYTES, Refusal, encode

logger = structlog.get_logger("headrace.cluster")

HANDSHAKE_S = 10.0
# At the same time: as many strangers can keep the others waiting, and no more memory than that.
HANDSHAKES_MAX = 64
# After accepting failed: the loop has its turn.
PAUSE_S = 0.2
# The first byte of TLS; the length of a node's first message begins with another one.
TLS_HANDSHAKE = b"\x16"
# Sentences whose times are remembered, so that each is logged now and then only.
SENTENCES_MAX = 64

PLAIN_REFUSED = "this node speaks TLS with its peers. Give all nodes of the group peer_tls_ca"


class PeerNetwork:
    """Of one node."""

    def __init__(self, tls: PeerTls | None, figures: Figures) -> None:
        self._tls = tls
        self._figures = figures
        self._limits: dict[str, RateLimit] = {}
        self._listening: asyncio.Server | TlsListener | None = None

    async def listen(self, factory: Callable[[], PeerConnection], host: str, port: int) -> str:
        """Accept connections of other nodes; HOST:PORT of the listener. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self._tls is None:
            server = self._listening = await loop.create_server(factory, host, port)
            return format_address(*server.sockets[0].getsockname()[:2])
        listener = self._listening = TlsListener(factory, self._tls.server, self.refused)
        return await listener.start(host, port)

    def close(self) -> None:
        """Accept no more."""
        if self._listening is not None:
            self._listening.close()

    async def connect(self, connection: PeerConnection, address: tuple[str, int]) -> None:
        """Connect to another node. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self._tls is None:
            await loop.create_connection(lambda: connection, *address)
            return
        peer = format_address(*address)
        # The handshake is over for this side before the other one has looked at its certificate, and a loop does not
        # send the alert that would say more.
        connection.on_unheard = lambda error: self.refused(
            "the node at", peer, error if isinstance(error, ssl.SSLError) else NOT_ACCEPTED
        )
        try:
            await loop.create_connection(
                lambda: connection,
                *address,
                ssl=self._tls.client,
                server_hostname=address[0],
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            self.refused("the node at", peer, error)
            raise

    def refusal(self, connection: PeerConnection, node: int, place: tuple[str, int] | None) -> str | None:
        """Why a peer that says it is this node, with this peer address in etcd, is not believed; None if it is."""
        if self._tls is None:
            return None
        if place is None:
            # It registers itself within a moment, and asks again.
            return f"etcd does not have the peer address of node {node}, which its certificate has to name"
        host = place[0]
        if names_host(connection.certificate, host):
            return None
        self.refused("the peer at", connection.peer, f"its certificate is not for {host}, where node {node} is")
        return f"the certificate that this node got is not for {host}, the host of node {node}'s peer address"

    def refused(self, who: str, peer: str, reason: OSError | str) -> None:
        """Count a connection that TLS or a certificate refused, and log why, each reason now and then."""
        self._figures.peers_refused += 1
        shown = reason if isinstance(reason, str) else reason_of(reason)
        # A peer comes from another port each time.
        if count := self.due(f"{peer.rpartition(':')[0]} {shown}"):
            logger.warning(f"no TLS with {who} {peer}: {shown}", count=count)

    def due(self, sentence: str) -> int:
        """Of a sentence that comes again and again, how many to log now: 0 while the last one is fresh."""
        if sentence not in self._limits and len(self._limits) >= SENTENCES_MAX:
            self._limits.clear()
        return self._limits.setdefault(sentence, RateLimit()).count(asyncio.get_running_loop().time())


class TlsListener:
    """Accepts, and gives those who come a connection of their own once their handshake is done."""

    def __init__(
        self,
        factory: Callable[[], PeerConnection],
        context: ssl.SSLContext,
        refused: Callable[[str, str, OSError | str], None],
    ) -> None:
        self._factory = factory
        self._context = context
        self._refused = refused
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []

    async def start(self, host: str, port: int) -> str:
        """HOST:PORT of it. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            self._sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(HANDSHAKES_MAX)
            listening.setblocking(False)
        for each in self._sockets:
            self._spawn(self._accept(each))
        return format_address(*self._sockets[0].getsockname()[:2])

    def close(self) -> None:
        """Accept no more, and give up the handshakes under way."""
        for task in list(self._tasks):
            task.cancel()
        for each in self._sockets:
            each.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                logger.warning("a peer cannot be accepted", error=str(error))
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._tasks) >= HANDSHAKES_MAX:
                accepted.close()
                self._refused("the peer at", format_address(*address[:2]), "too many handshakes are under way")
            else:
                self._spawn(self._greet(accepted, format_address(*address[:2])))

    async def _greet(self, accepted: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(HANDSHAKE_S):
                first = await _peek(accepted)
            if not first:
                accepted.close()  # a probe, which only looks whether the port is open
                return
            if first != TLS_HANDSHAKE:
                await self._refuse_plain(accepted, peer)
                return
            await loop.connect_accepted_socket(
                self._factory, accepted, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except TimeoutError:
            accepted.close()
            self._refused("the peer at", peer, "it began no handshake")
        except OSError as error:
            accepted.close()
            self._refused("the peer at", peer, error)
        except asyncio.CancelledError:
            accepted.close()
            raise

    async def _refuse_plain(self, accepted: socket.socket, peer: str) -> None:
        with accepted:
            # What was not read would have the connection reset, and the answer lost with it.
            accepted.recv(OPENING_MAX_BYTES)
            await asyncio.get_running_loop().sock_sendall(accepted, encode(Refusal(PLAIN_REFUSED, 0)))
            accepted.shutdown(socket.SHUT_WR)
        self._refused("the peer at", peer, NO_TLS)


async def _peek(accepted: socket.socket) -> bytes:
    """The first byte, which stays where it is; nothing where the peer has gone."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(accepted, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(accepted)
    return accepted.recv(1, socket.MSG_PEEK)
