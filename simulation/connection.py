"""Transports in memory: byte streams that are cut into pieces by seed.

A connection is two pipes. What is written waits in the sender's buffer, travels in pieces of any size after any
delay, waits in the receiver's window while it does not read, and arrives in order. What travels arrives on the
receiver's loop: while that does not run, everything for it waits. A connection can be cut at any moment; what was on
its way is then lost, and each side learns of it when the seed decides.

A socket is the system's: what it still has to send is sent when its process is gone, unless the machine went too.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.network import Host

# What the receiver's side holds while its protocol does not read, as a socket's buffer does.
WINDOW_BYTES = 65_536
HIGH_WATER_BYTES = 65_536


def reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class Connection(asyncio.Transport):
    """One side of a connection."""

    peer: Connection

    def __init__(self, host: Host, local: tuple[str, int], remote: tuple[str, int], name: str) -> None:
        super().__init__({"sockname": local, "peername": remote, "socket": None})
        self.host = host
        self.machine = host.machine
        self.stalled = False
        """Whether something waits here for a link or a machine."""
        self._name = name
        self._network = host.network
        self._protocol: asyncio.BaseProtocol | None = None
        # Bytes written here that have not left; bytes that have arrived here and were not read.
        self._outgoing = bytearray()
        self._incoming = bytearray()
        # Bytes that have left here and whose receipt the other side cannot report.
        self._unacknowledged = 0
        self._reading = True
        self._closing = False
        # The protocol knows that the connection is over.
        self._lost = False
        # Behind the outgoing bytes the stream ends, and this end has been sent.
        self._ending = False
        self._ended = False
        self._eof_arrived = False
        # The system resets the other side.
        self._resetting = False
        self._travelling = False
        self._writing_paused = False
        # Nothing is ever sent from here again: the network has failed or the machine has, and perhaps no process has
        # learned of it yet.
        self._severed = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._network.add(self)

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        if self._incoming or self._eof_arrived:
            self.host.call_later(0.0, self._deliver)

    # The sending side.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._closing or self._lost or self._severed or not data:
            return
        if self._ending:
            raise RuntimeError("write after write_eof")
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

    @property
    def _waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self._outgoing) or (self._ending and not self._ended) or self._resetting

    def _pump(self) -> None:
        if self._travelling or self._severed or not self._waiting:
            return
        network, peer = self._network, self.peer
        if not network.passes(self.machine, peer.machine) or self._is_window_closed():
            self.stalled = True
            return
        self._travelling = True
        delay = network.delay(self.machine, peer.machine)
        if peer.host.alive:
            # On the receiver's loop: while its process is paused, what is sent to it waits.
            peer.host.call_later(delay, self._travel)
        else:
            self.host.call_later(delay, self._bounce)

    def _is_window_closed(self) -> bool:
        """Whether as much was sent as may be without an answer, which does not get through."""
        if self._network.passes(self.peer.machine, self.machine):
            self._unacknowledged = 0
        return self._unacknowledged >= WINDOW_BYTES

    def _bounce(self) -> None:
        """What is sent reaches a machine on which no process has this connection."""
        self._travelling = False
        if self._network.reaches(self.machine, self.peer.machine):
            self._lose(reset_error())
        else:
            self.stalled = True

    def _travel(self) -> None:
        self._travelling = False
        network, peer = self._network, self.peer
        if self._severed:
            return
        if not network.passes(self.machine, peer.machine):
            self.stalled = True
            return
        if self._resetting:
            self._sever()
            peer._lose(reset_error())
            return
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
            self._unacknowledged += count
            network.note(f"network {self._name} {count}")
            if not peer._lost:
                peer._incoming += piece
                peer._deliver()
            if self._writing_paused:
                self.host.call(self._maybe_resume_writing)
        if self._ending and not self._ended and not self._outgoing:
            self._ended = True
            self._maybe_forget()
            peer._eof()
        self._pump()

    def go_on(self, delay: float) -> None:
        """The way is free again: send what waits, after a while."""
        self.stalled = False
        if not self._travelling and not self._severed:
            self._travelling = True
            if self.peer.host.alive:
                self.peer.host.call_later(delay, self._travel)
            else:
                self.host.call_later(delay, self._bounce)

    def _maybe_pause_writing(self) -> None:
        if not self._writing_paused and len(self._outgoing) > self._high and self._protocol is not None:
            self._writing_paused = True
            self._protocol.pause_writing()

    def _maybe_resume_writing(self) -> None:
        if self._lost or len(self._outgoing) > self._low:
            return
        if self._closing:
            self._lose(None)
        elif self._writing_paused and self._protocol is not None:
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
            self.host.loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return self._reading and not self._closing and not self._lost and self._protocol is not None

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
        self._closing = self._ending = True
        self._incoming.clear()
        self._pump()
        # The rest is the system's, once it has room for it.
        if len(self._outgoing) <= self._high:
            self.host.loop.call_soon(self._lose, None)
        else:
            self._writing_paused = True

    def abort(self) -> None:
        """Close, and send nothing more."""
        if self._lost:
            return
        self._closing = self._ending = True
        self._outgoing.clear()
        self._pump()
        self.host.loop.call_soon(self._lose, None)

    def orphan(self, silently: bool) -> None:
        """The process is gone. The system ends the connection, unless it is gone too."""
        self._closing = self._lost = True
        self._incoming.clear()
        if silently or not self.peer.host.alive:
            self._sever()
            return
        # With bytes that no process has read a system resets the other side, else it sends the rest and the end.
        if self._network.rng.random() < 0.5:
            self._resetting = True
        else:
            self._ending = True
        self._pump()

    def reroute(self) -> None:
        """The process on the other side is gone, and what was under way to it."""
        self._travelling = False
        if self.host.alive:
            self._pump()
        else:
            self._sever()

    def cut(self) -> None:
        """The network fails: both sides lose the connection, each in its own time."""
        network = self._network
        network.note(f"network cut {self._name}")
        network.counts["connection cut"] += 1
        for side in (self, self.peer):
            # What is written from now on must not arrive: it would stand behind a gap.
            side._sever()
            side.host.call_later(network.delay(side.machine, side.machine), side._lose, reset_error())

    def _sever(self) -> None:
        self._severed = True
        self.stalled = False
        self._outgoing.clear()
        self._maybe_forget()

    def _maybe_forget(self) -> None:
        if self._severed or (self._ended and self._lost):
            self._network.remove(self)

    def _lose(self, error: Exception | None) -> None:
        """The protocol learns that the connection is over."""
        if error is not None:
            self._sever()
        if self._lost:
            return
        self._lost = self._closing = True
        self._incoming.clear()
        self._maybe_forget()
        if self._protocol is not None:
            self._protocol.connection_lost(error)
