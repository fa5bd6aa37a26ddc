"""A network in memory: which machine reaches which, which process listens where, and how long bytes
travel.

An address is a machine's name and a port; `localhost` and `127.0.0.1` are the machine itself. What a client sees of a
server that does not answer is what TCP shows:

- No process listens: the connection is refused, at once.
- The machine has no power, or a link is cut in either direction: silence, until the system gives up after minutes.
- The process is paused: the connection is made, and what is sent waits.

A link is cut in one direction or in both. What was sent over it waits; once it is healed, a connection over which
something waited goes on late, or is reset.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import Counter
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from simulation.connection import Connection, reset_error

if TYPE_CHECKING:
    from simulation.loop import SimulatorLoop
    from simulation.world import World

ITSELF = ("localhost", "127.0.0.1", "0.0.0.0", "")
# A system asks for a connection again after 1, 2, 4 seconds and so on, and gives up behind this many.
CONNECT_ATTEMPTS = 7
# Mean time until a system sends again what got no answer.
RETRANSMISSION_S = 0.5
LATE_RESET_CHANCE = 0.5


class Network:
    """All links, servers and connections of a world."""

    def __init__(self, world: World) -> None:
        self.rng = world.stream("network")
        self.counts: Counter[str] = world.counts
        self.note = world.note
        self.cut_chance = 0.0
        """The chance, for each piece that travels, that the connection is cut instead."""
        self._world = world
        self._dark: set[str] = set()
        self._cut: set[tuple[str, str]] = set()
        self._slow: dict[tuple[str, str], float] = {}
        self._servers: dict[tuple[str, int], SimulatedServer] = {}
        # In the order in which they were opened: a set would have another in every run.
        self._open: dict[Connection, None] = {}
        self._next_port = 20_000
        self._next_client = 40_000

    # Links.

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        """Let nothing through from one machine to another, or in both directions."""
        self.counts["cut" if both else "one-way cut"] += 1
        self._cut.add((source, target))
        if both:
            self._cut.add((target, source))
        self.note(f"network cut {source} {'-' if both else '>'} {target}")

    def slow(self, source: str, target: str, seconds: float) -> None:
        """Let every piece take so much longer on average, both ways."""
        self.counts["slow link"] += 1
        self._slow[source, target] = self._slow[target, source] = seconds
        self.note(f"network slow {source} - {target} {seconds}")

    def heal(self, source: str, target: str) -> None:
        """Let everything through again, both ways, and as fast as ever."""
        for link in ((source, target), (target, source)):
            self._cut.discard(link)
            self._slow.pop(link, None)
        self.note(f"network heal {source} - {target}")
        self._try_again(late_resets=True)

    def heal_all(self) -> None:
        """Heal every link."""
        self._cut.clear()
        self._slow.clear()
        self.note("network heal all")
        self._try_again(late_resets=True)

    def switch_off(self, machine: str) -> None:
        """A machine answers nothing from now on."""
        self._dark.add(machine)

    def switch_on(self, machine: str) -> None:
        """A machine answers again, and knows nothing of its old connections."""
        self._dark.discard(machine)
        self._try_again(late_resets=False)

    def passes(self, source: str, target: str) -> bool:
        """Whether anything gets through from one machine to another."""
        return (not self._cut or (source, target) not in self._cut) and (not self._dark or target not in self._dark)

    def reaches(self, source: str, target: str) -> bool:
        """Whether a machine gets answers from another."""
        return self.passes(source, target) and self.passes(target, source)

    def _try_again(self, late_resets: bool) -> None:
        stalled = [each for each in self._open if each.stalled and self.passes(each.machine, each.peer.machine)]
        for each in stalled:
            if not each.stalled:
                continue  # reset with its peer
            if late_resets and self.rng.random() < LATE_RESET_CHANCE:
                self.counts["late reset"] += 1
                each.cut()
            else:
                self.counts["late delivery"] += 1
                each.go_on(self.rng.expovariate(1 / RETRANSMISSION_S))

    # What travels.

    def delay(self, source: str, target: str) -> float:
        rng = self.rng
        draw = rng.random()
        if draw < 0.3:
            delay = 0.0
        else:
            delay = rng.expovariate(1 / 0.0001) if draw < 0.97 else rng.expovariate(1 / 0.05)
        slow = self._slow.get((source, target)) if self._slow else None
        return delay if slow is None else delay + rng.expovariate(1 / slow)

    def piece(self, waiting: int) -> int:
        """How many of the waiting bytes travel next."""
        draw = self.rng.random()
        if draw < 0.5:
            return waiting
        if draw < 0.6:
            return min(waiting, self.rng.randint(1, 4))
        return self.rng.randint(1, waiting)

    def now(self) -> float:
        return self._world.time

    # Servers and connections.

    def listen(self, server: SimulatedServer) -> None:
        machine, port = server.host.machine, server.address[1]
        if (machine, port) in self._servers:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), f"{machine}:{port}")
        self._servers[machine, port] = server

    def server(self, machine: str, port: int) -> SimulatedServer | None:
        return self._servers.get((machine, port))

    def forget_server(self, server: SimulatedServer) -> None:
        key = server.host.machine, server.address[1]
        if self._servers.get(key) is server:
            del self._servers[key]

    def forget_host(self, host: Host, silently: bool) -> None:
        """A process is gone: nothing listens for it any more, and its connections end."""
        for server in [each for each in self._servers.values() if each.host is host]:
            self.forget_server(server)
        for connection in [each for each in self._open if each.host is host]:
            connection.orphan(silently)
        for connection in [each for each in self._open if each.peer.host is host]:
            connection.reroute()

    def new_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def new_client_port(self) -> int:
        self._next_client += 1
        return self._next_client

    def knows(self, machine: str) -> bool:
        return machine in self._world.machines

    def add(self, connection: Connection) -> None:
        self._open[connection] = None

    def remove(self, connection: Connection) -> None:
        self._open.pop(connection, None)


class Host:
    """A process in the network: its machine, its loop, and what the system does with its sockets when it ends."""

    def __init__(self, network: Network, machine: str, loop: SimulatorLoop) -> None:
        self.network = network
        self.machine = machine
        self.loop = loop
        self.alive = True
        # What arrives is no part of the task that sent it.
        self._context = copy_context()

    def call(self, callback: Callable[..., object], *args: Any) -> None:
        """Call on this process's loop: now if that is the one that runs, else as soon as it does."""
        if asyncio._get_running_loop() is self.loop:
            callback(*args)
        elif self.alive:
            self.loop.call_soon(callback, *args, context=self._context)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Call on this process's loop after a time of the world."""
        if self.alive:
            loop = self.loop
            when = loop.clock.local(self.network.now() + delay)
            loop.call_at(when, callback, *args, context=self._context)

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> SimulatedServer:
        server = SimulatedServer(self, factory, (host, port or self.network.new_port()))
        self.network.listen(server)
        return server

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[Connection, asyncio.BaseProtocol]:
        network, here = self.network, self.machine
        there = here if host in ITSELF else host
        if not network.knows(there):
            raise socket.gaierror(socket.EAI_NONAME, f"Name or service not known ({host})")
        await asyncio.sleep(network.delay(here, there))
        await self._find(there)
        server = network.server(there, port)
        if server is None:
            network.counts["refused"] += 1
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED), f"{host}:{port}")
        local = (host if there == here else here, network.new_client_port())
        name = "" if there == here else f"{here}-{there} "
        near = Connection(self, local, (host, port), f"{name}{local[1]}>{port}")
        far = Connection(server.host, server.address, local, f"{name}{port}>{local[1]}")
        near.peer, far.peer = far, near
        server.host.call(server.accept, far)
        try:
            await asyncio.sleep(network.delay(there, here))
            protocol = factory()
        except BaseException:
            near.abort()
            raise
        if near.is_closing():
            raise reset_error()  # the process that listened is gone again
        near.open(protocol)
        return near, protocol

    async def _find(self, machine: str) -> None:
        """Wait until a machine answers; perhaps it never does."""
        network = self.network
        for attempt in range(CONNECT_ATTEMPTS):
            if network.reaches(self.machine, machine):
                return
            network.counts["unanswered"] += 1
            await asyncio.sleep(1 << attempt)
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), machine)

    def end(self, silently: bool) -> None:
        """The process is gone. The system closes what it had open, unless it went with it."""
        self.alive = False
        self.network.forget_host(self, silently)


class _Socket:
    """What a door asks of a listening socket: where it listens."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class SimulatedServer:
    """A listening address."""

    def __init__(self, host: Host, factory: Callable[[], asyncio.BaseProtocol], address: tuple[str, int]) -> None:
        self.host = host
        self.address = address
        self._factory = factory
        self._closed: asyncio.Event = asyncio.Event()

    def accept(self, connection: Connection) -> None:
        """A connection that the system has already made."""
        if self._closed.is_set():
            connection.abort()
        else:
            connection.open(self._factory())

    @property
    def sockets(self) -> tuple[_Socket, ...]:
        return () if self._closed.is_set() else (_Socket(self.address),)

    def close(self) -> None:
        self.host.network.forget_server(self)
        self._closed.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()
