"""What a follower passes on to the leader: requests that clients send to any broker, and only the leader can answer.

Kafka's clients ask any broker for producer ids, for settings, for topics that are to be made; in Kafka such a broker
asks its controller. Here the frame goes to the leader's Kafka door as it came, and the reply comes back as it is. One
connection serves all clients; where rights are asked for, all of one user at one address: the node proves what it is,
and says for whom it asks. They are opened when first needed, and closed when another node leads.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict, deque

from headrace.broker.broker import Broker
from headrace.broker.security import Session
from headrace.doors.kafka.mechanisms import NODE, client_of, tag_of
from headrace.doors.kafka.placement import Endpoint, other_leader
from headrace.doors.kafka.registry import SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.doors.kafka.settings import MAIN
from headrace.doors.kafka.wire import INT16, INT32
from headrace.doors.settings import SharedSettings
from headrace.errors import HeadraceError

# Users at an address who have a connection of their own.
LINKS_MAX = 64
# Requests under way of one connection; a further one is refused.
PENDING_MAX = 256
REPLY_MAX_BYTES = 64 << 20
SECONDS = 10.0


class RelayFailed(HeadraceError):
    """The leader could not be asked, or did not answer."""


class Relay:
    """A follower's connection to the leader's Kafka door."""

    def __init__(self, broker: Broker, shared: SharedSettings, is_encrypted: bool) -> None:
        self._broker = broker
        self._shared = shared
        self._is_encrypted = is_encrypted
        # By the client that they ask for; the least recently used first.
        self._links: OrderedDict[bytes, _Link] = OrderedDict()
        self._opening = asyncio.Lock()

    async def ask(
        self, session: Session, key: int, version: int, is_flexible: bool, client_id: str | None, body: bytes
    ) -> bytes:
        """The body of the leader's reply to a client's request with this body. Raises RelayFailed."""
        try:
            async with asyncio.timeout(SECONDS):
                link = await self._open(session)
                return await link.ask(key, version, is_flexible, client_id, body)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, ssl.SSLError) as error:
            raise RelayFailed(f"the node that leads did not answer: {error or 'it took too long'}") from error

    async def _open(self, session: Session) -> _Link:
        leader = other_leader(self._broker, MAIN)
        if leader is None:
            raise RelayFailed("no other node leads just now")
        security = self._broker.security
        client = client_of(session) if security.is_enforced else b""
        async with self._opening:
            link = self._links.pop(client, None)
            if link is None or not link.is_open or link.endpoint != leader.endpoint:
                if link is not None:
                    link.close()
                tls = client_context(self._shared) if self._is_encrypted else None
                streams = await asyncio.open_connection(leader.endpoint.host, leader.endpoint.port, ssl=tls)
                link = _Link(leader.endpoint, *streams)
                if client:
                    try:
                        await link.authenticate(security.users.secret, client)
                    except BaseException:
                        link.close()
                        raise
            self._links[client] = link
            while len(self._links) > LINKS_MAX:
                self._links.popitem(last=False)[1].close()
            return link

    def close(self) -> None:
        """What is under way is not answered."""
        for link in self._links.values():
            link.close()
        self._links.clear()


class _Link:
    """Requests out, replies in, in the same order."""

    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self._correlation = 0
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @property
    def is_open(self) -> bool:
        return not self._reading.done() and not self._writer.is_closing()

    async def ask(self, key: int, version: int, is_flexible: bool, client_id: str | None, body: bytes) -> bytes:
        if len(self._waiting) >= PENDING_MAX:
            raise RelayFailed(f"{PENDING_MAX} requests wait for the node that leads: try again")
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        client = b"" if client_id is None else client_id.encode()
        length = -1 if client_id is None else len(client)
        head = INT16.pack(key) + INT16.pack(version) + INT32.pack(self._correlation) + INT16.pack(length) + client
        frame = head + (b"\0" if is_flexible else b"") + body
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._writer.write(INT32.pack(len(frame)) + frame)
        try:
            reply = await answer
        except asyncio.CancelledError:
            # Its reply would be taken for the next one's.
            self.close()
            raise
        # Behind the correlation id, a reply of a flexible version has tagged fields, of which there are none.
        return reply[5:] if is_flexible else reply[4:]

    async def authenticate(self, secret: bytes, client: bytes) -> None:
        """Prove that this is a node of the group, and say for whom it asks. Raises OSError."""
        name = NODE.encode()
        shaken = await self.ask(SASL_HANDSHAKE, 1, False, None, INT16.pack(len(name)) + name)
        if INT16.unpack_from(shaken)[0]:
            raise OSError("it does not accept requests from other nodes")
        nonce = await self._say(b"")
        await self._say(tag_of(secret, nonce, client) + client)

    async def _say(self, message: bytes) -> bytes:
        reply = await self.ask(SASL_AUTHENTICATE, 0, False, None, INT32.pack(len(message)) + message)
        code, size = INT16.unpack_from(reply)[0], INT16.unpack_from(reply, 2)[0]
        if code:
            raise OSError("it does not accept this node as a member of the group")
        # Behind the error and its message, which is null.
        return reply[8 + max(size, 0) :]

    async def _read(self) -> None:
        try:
            while True:
                size = INT32.unpack(await self._reader.readexactly(4))[0]
                if not 4 <= size <= REPLY_MAX_BYTES:
                    raise OSError(f"a reply of {size} bytes")
                reply = await self._reader.readexactly(size)
                if not self._waiting:
                    raise OSError("a reply to no request")
                answer = self._waiting.popleft()
                if not answer.done():
                    answer.set_result(reply)
        except (OSError, asyncio.IncompleteReadError) as error:
            self._fail(OSError(f"its connection ended ({error})"))
        finally:
            self._fail(OSError("its connection was closed"))
            self._writer.close()

    def _fail(self, error: OSError) -> None:
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(error)

    def close(self) -> None:
        self._reading.cancel()
        self._writer.close()


def client_context(shared: SharedSettings) -> ssl.SSLContext:
    """The TLS of this node where it is a client of another one's door: it shows its own certificate, and trusts the
    authorities that clients' certificates come from, or else the chain of its own. Raises OSError."""
    context = ssl.create_default_context(cafile=shared.tls_client_ca or shared.tls_cert or None)
    context.load_cert_chain(shared.tls_cert, shared.tls_key)
    return context
