"""The door of a follower for protocols that know no leader: it copies bytes between its clients and the leader's door.

A client that connects is connected with the listener of the same name of the node that leads. What it sends goes there
as it is, TLS and all, and the other way round, so it meets the same door as if it had come to the leader. Each
direction holds a bounded number of bytes, beyond which the sender is no longer read; each can be ended by itself. When
another node leads, or none, the connections close, as they do on a leader that is deposed; while none leads, those
that come are closed at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import structlog

from headrace.addresses import format_address, parse_address
from headrace.broker.membership import Membership
from headrace.broker.security import Session
from headrace.doors.acceptor import Acceptor
from headrace.doors.door import DoorContext, open_listener
from headrace.doors.registry import DOORS
from headrace.errors import ConfigError
from headrace.settings import Settings

log = structlog.get_logger("headrace.doors")

# What waits in each direction for the other side to take it, beside one piece of what has just been read.
BUFFER_BYTES = 262_144
CONNECT_SECONDS = 5.0
STOP_SECONDS = 1.0


class ForwardingDoor:
    """All listeners of one door of the registry."""

    def __init__(self, context: DoorContext[Any]) -> None:
        self.settings: Settings = context.settings
        self._entry = next(each for each in DOORS if each.settings is type(context.settings))
        self.name = self._entry.name
        self._context = context
        self._forwarders: dict[str, Forwarder] = {}
        self._running = AsyncExitStack()

    @property
    def addresses(self) -> Mapping[str, str]:
        """HOST:PORT of each open listener, by the listener's name."""
        return {name: format_address(*each.address) for name, each in self._forwarders.items() if each.is_open}

    async def start(self) -> None:
        """Open every listener that is configured. Raises DoorClosed."""
        group = self._context.broker.membership
        group.on_change.append(self._check)
        self._running.callback(self._forget, group)
        for name, address in self._listeners().items():
            forwarder = self._forwarders[name] = Forwarder(self._context, name)
            self._running.push_async_callback(forwarder.close, STOP_SECONDS)
            await open_listener(name, address, forwarder.listen_on, self._context.listeners)

    def _listeners(self) -> dict[str, str]:
        """The addresses at which the door of the leader would listen here."""
        parts = (self._context.shared, self.settings)
        values = {each.name: getattr(part, each.name) for part in parts for each in fields(part)}
        config: Any = SimpleNamespace(**values)
        return self._entry.listeners(config)

    async def stop(self) -> None:
        """Accept no more, and close."""
        await self._running.aclose()

    def _forget(self, group: Membership) -> None:
        if self._check in group.on_change:
            group.on_change.remove(self._check)

    def _check(self) -> None:
        for each in self._forwarders.values():
            each.check()


class Forwarder(Acceptor["Client"]):
    """One listener."""

    def __init__(self, context: DoorContext[Any], name: str) -> None:
        metrics = context.broker.metrics.door(name.replace("-", "_"))
        super().__init__(metrics, context.shared.connections_max, context.capacity)
        self.name = name
        self._group = context.broker.membership

    async def listen_on(self, host: str, port: int, *, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen, without TLS: what the client encrypts, the leader decrypts."""
        await self.listen(host, port, sockets=sockets)

    def target(self) -> tuple[int, tuple[str, int]] | None:
        """The number and the address of the node that leads, if clients can be forwarded there."""
        group = self._group
        view = group.nodes.get(group.leader) if group.leader is not None else None
        if view is None or view.number == group.node_id:
            return None
        try:
            place = parse_address(view.addresses.get(self.name, "off"))
        except ConfigError:
            return None
        return None if place is None else (view.number, place)

    def check(self) -> None:
        """The group has changed: close what is connected with another node than the one that leads."""
        target = self.target()
        for client in self.connections:
            if client.target != target:
                client.abort()

    def connect(self) -> Client:
        """A connection for a client that has come."""
        return Client(self)


class Side(asyncio.Protocol):
    """One of the two connections."""

    transport: asyncio.Transport
    other: Side | None = None
    has_ended = False
    """It sends nothing more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        self.has_ended = True
        other = self.other
        if other is None or other.has_ended or other.transport.is_closing():
            return False
        other.transport.write_eof()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            # What it was sent before still goes out.
            self.other.transport.close()


class Client(Side):
    """The client's side."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self.session = Session(door=forwarder.metrics.name)
        """The leader knows who it is."""
        self.name = ""
        """The client's HOST:PORT."""
        self.encrypted = False
        self.target: tuple[int, tuple[str, int]] | None = None
        """The node that it is connected with, or about to be."""
        self._connecting: asyncio.Task[None] | None = None
        self._has_second = False
        # What came before there was somewhere to send it.
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        roster = self._forwarder.connections
        self.target = self._forwarder.target()
        if self.target is None:
            self._forwarder.metrics.connections_refused += 1
            self.transport.abort()
            return
        # A second descriptor is for the connection with the leader.
        peer = self.transport.get_extra_info("peername")
        self.name = f"{peer[0]}:{peer[1]}" if peer else ""
        wait = roster.admit(self, str(peer[0]) if peer else "")
        if wait is None:
            self.transport.abort()
            return
        self._has_second = roster.capacity.take()
        if not self._has_second:
            self._forwarder.metrics.connections_refused += 1
            self.transport.abort()
            return
        self.transport.pause_reading()
        self._connecting = self._forwarder.loop.create_task(self._connect(wait, *self.target))

    async def _connect(self, wait: float, number: int, place: tuple[str, int]) -> None:
        if wait:
            # More come from its address than may.
            await asyncio.sleep(wait)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, leader = await self._forwarder.loop.create_connection(Side, *place)
        except (OSError, TimeoutError) as error:
            log.debug("a client is not forwarded", listener=self._forwarder.name, leader=number, error=str(error))
            self.transport.abort()
            return
        if self.transport.is_closing():
            leader.transport.abort()
            return
        self.other, leader.other = leader, self
        leader.transport.writelines(self._early)
        self._early.clear()
        if self.has_ended:
            leader.transport.write_eof()
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            # A loop may hand over what it had read when it was asked to pause.
            self._early.append(data)
        else:
            super().data_received(data)

    def eof_received(self) -> bool:
        if self.other is None:
            self.has_ended = True
            return True
        return super().eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._connecting is not None:
            self._connecting.cancel()
        roster = self._forwarder.connections
        roster.forget(self)
        if self._has_second:
            self._has_second = False
            roster.capacity.give_back()

    def close_when_idle(self) -> None:
        """Close: nothing here is under way, only at the leader."""
        self.transport.close()
        if self.other is not None:
            self.other.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()
        if self.other is not None:
            self.other.transport.abort()
