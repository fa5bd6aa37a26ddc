"""A network in memory: asyncio transports whose byte streams are cut into pieces by seed.

A connection is two pipes. What is written waits in the sender's buffer, travels in pieces of any size after any
delay, waits in the receiver's window while it does not read, and arrives in order. A connection can be cut at any
moment; what was on its way is then lost, and each side learns of it when the seed decides.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

# What the receiver's side holds while its protocol does not read, as a socket's buffer does.
WINDOW_BYTES = 65_536
HIGH_WATER_BYTES = 65_536


class Network:
    """All servers and connections of a simulated machine."""

    def __init__(self, rng: random.Random, trace: Callable[[str], None] | None = None) -> None:
        self.rng = rng
        self.trace = trace or (lambda event: None)
        self.cut_chance = 0.0
        """The chance, for each piece that travels, that the connection is cut instead."""
        self._servers: dict[tuple[str, int], SimulatedServer] = {}
        self._next_port = 20_000
        self._next_client = 40_000

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> SimulatedServer:
        if not port:
            self._next_port += 1
            port = self._next_port
        if (host, port) in self._servers:
            raise OSError(98, "Address already in use", f"{host}:{port}")
        server = SimulatedServer(self, factory, (host, port))
        self._servers[host, port] = server
        return server

    def forget(self, address: tuple[str, int]) -> None:
        self._servers.pop(address, None)

    async def connect(
        self, loop: asyncio.AbstractEventLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[Connection, asyncio.BaseProtocol]:
        await asyncio.sleep(self.delay())
        server = self._servers.get((host, port))
        if server is None:
            raise ConnectionRefusedError(111, "Connection refused", f"{host}:{port}")
        self._next_client += 1
        local = (host, self._next_client)
        near = Connection(self, loop, local, server.address, f"{local[1]}>{port}")
        far = Connection(self, loop, server.address, local, f"{port}>{local[1]}")
        near.peer, far.peer = far, near
        far.open(server.factory())
        protocol = factory()
        near.open(protocol)
        return near, protocol

    def delay(self) -> float:
        draw = self.rng.random()
        if draw < 0.3:
            return 0.0
        return self.rng.expovariate(1 / 0.0001) if draw < 0.97 else self.rng.expovariate(1 / 0.05)

    def piece(self, waiting: int) -> int:
        """How many of the waiting bytes travel next."""
        draw = self.rng.random()
        if draw < 0.5:
            return waiting
        if draw < 0.6:
            return min(waiting, self.rng.randint(1, 4))
        return self.rng.randint(1, waiting)


class _Socket:
    """What a door asks of a listening socket: where it listens."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class SimulatedServer:
    """A listening address."""

    def __init__(
        self,
        network: Network,
        factory: Callable[[], asyncio.BaseProtocol],
        address: tuple[str, int],
    ) -> None:
        self.factory = factory
        self.address = address
        self._network = network
        self._closed: asyncio.Event = asyncio.Event()

    @property
    def sockets(self) -> tuple[_Socket, ...]:
        return () if self._closed.is_set() else (_Socket(self.address),)

    def close(self) -> None:
        self._network.forget(self.address)
        self._closed.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()


class Connection(asyncio.Transport):
    """One side of a connection."""

    def __init__(
        self,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        local: tuple[str, int],
        remote: tuple[str, int],
        name: str,
    ) -> None:
        super().__init__({"sockname": local, "peername": remote, "socket": None})
        self.peer: Connection
        self.name = name
        self._network = network
        self._loop = loop
        self._protocol: asyncio.BaseProtocol | None = None
        # Bytes written here that have not left; bytes that have arrived here and were not read.
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._reading = True
        self._closing = False
        self._lost = False
        self._ending = False
        self._ended = False
        self._eof_arrived = False
        self._travelling = False
        self._writing_paused = False
        # The network has failed, and this side has not learned of it yet.
        self._severed = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    # The sending side.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._ending:
            raise RuntimeError("write after write_eof")
        if self._closing or self._lost or self._severed or not data:
            return
        self._outgoing += data
        self._pump()
        self._maybe_pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not (self._ending or self._closing):
            self._ending = True
            self._pump()

    def _pump(self) -> None:
        if not self._travelling and not self._lost and (self._outgoing or (self._ending and not self._ended)):
            self._travelling = True
            self._loop.call_later(self._network.delay(), self._travel)

    def _travel(self) -> None:
        self._travelling = False
        if self._lost:
            return
        network, peer = self._network, self.peer
        if self._outgoing:
            if network.cut_chance and network.rng.random() < network.cut_chance:
                self.cut()
                return
            room = WINDOW_BYTES - len(peer._incoming)
            if room <= 0:
                return  # the receiver pumps again once it has read
            count = min(network.piece(len(self._outgoing)), room)
            piece = bytes(self._outgoing[:count])
            del self._outgoing[:count]
            network.trace(f"network {self.name} {count}")
            if not peer._lost:
                peer._incoming += piece
                peer._deliver()
            self._maybe_resume_writing()
        if not self._outgoing:
            if self._ending and not self._ended:
                self._ended = True
                peer._eof()
            if self._closing:
                self._lose(None)
                return
        self._pump()

    def _maybe_pause_writing(self) -> None:
        if not self._writing_paused and len(self._outgoing) > self._high and self._protocol is not None:
            self._writing_paused = True
            self._protocol.pause_writing()

    def _maybe_resume_writing(self) -> None:
        if self._writing_paused and len(self._outgoing) <= self._low and self._protocol is not None:
            self._writing_paused = False
            self._protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        self._maybe_pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self._outgoing)

    # The receiving side.

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading and not self._closing and not self._lost:
            self._reading = True
            # Never inside of the call: a real transport reads again in the loop's next turn.
            self._loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return self._reading and not self._closing and not self._lost

    def _deliver(self) -> None:
        protocol = self._protocol
        while self._incoming and self.is_reading():
            if isinstance(protocol, asyncio.BufferedProtocol):
                buffer = memoryview(protocol.get_buffer(len(self._incoming)))
                count = min(len(buffer), len(self._incoming))
                if not count:
                    raise RuntimeError("get_buffer() returned an empty buffer")
                buffer[:count] = self._incoming[:count]
                del self._incoming[:count]
                protocol.buffer_updated(count)
            elif isinstance(protocol, asyncio.Protocol):
                data = bytes(self._incoming)
                self._incoming.clear()
                protocol.data_received(data)
        if not self._lost:
            self.peer._pump()
        if self._eof_arrived and not self._incoming and self.is_reading():
            self._eof_arrived = False
            keep_open = (
                protocol.eof_received() if isinstance(protocol, (asyncio.Protocol, asyncio.BufferedProtocol)) else None
            )
            if not keep_open:
                self.close()

    def _eof(self) -> None:
        if not self._lost:
            self._eof_arrived = True
            self._deliver()

    # The end.

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Send what was written, then close."""
        if self._closing or self._lost:
            return
        self._closing = True
        self._incoming.clear()
        if self._outgoing:
            self._pump()
        else:
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self._closing = True
        self._outgoing.clear()
        self._loop.call_soon(self._lose, None)

    def cut(self) -> None:
        """The network fails: both sides lose the connection, each in its own time."""
        self._network.trace(f"network cut {self.name}")
        for side in (self, self.peer):
            # What is written from now on must not arrive: it would stand behind a gap.
            side._severed = True
            side._outgoing.clear()
            self._loop.call_later(
                self._network.delay(), side._lose, ConnectionResetError(104, "Connection reset by peer")
            )

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._outgoing.clear()
        self._incoming.clear()
        protocol = self._protocol
        if protocol is not None:
            protocol.connection_lost(error)
        peer = self.peer
        if not peer._lost:
            # The other side reads the end of the stream, behind what has already arrived.
            self._loop.call_later(self._network.delay(), peer._eof)
