"""A connection between two nodes: messages in, messages out, and how long the peer has been silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import structlog

from headrace.addresses import format_address
from headrace.cluster.json_messages import PeerProtocolError
from headrace.cluster.wire import Decoder, Message, encode

logger = structlog.get_logger("headrace.cluster")

# What waits for a peer that does not read; beyond it the peer gets the rest later, from the journal.
SEND_BYTES = 4 << 20


class Listener(Protocol):
    """What a connection tells its owner."""

    def on_message(self, connection: PeerConnection, message: Message) -> None: ...

    def on_closed(self, connection: PeerConnection) -> None: ...

    def on_drained(self, connection: PeerConnection) -> None:
        """It was full, and takes more again."""


class PeerConnection(asyncio.Protocol):
    """One side of it."""

    def __init__(self, listener: Listener, frame_max_bytes: int) -> None:
        self.listener = listener
        """Another takes it over once it is known what the connection is for."""
        self._decoder = Decoder(frame_max_bytes)
        self._transport: asyncio.Transport | None = None
        self.is_open = False
        self.is_full = False
        """More than `SEND_BYTES` wait for the peer."""
        self.heard_at = 0.0
        """The loop's time at which the peer last sent something."""
        self.has_heard = False
        self.on_unheard: Callable[[Exception | None], None] = lambda _: None
        """Called when the other side ends the connection before it has said anything."""

    @property
    def peer(self) -> str:
        """HOST:PORT of the other side."""
        found = None if self._transport is None else self._transport.get_extra_info("peername")
        return format_address(*found[:2]) if found else "an unknown address"

    @property
    def certificate(self) -> Mapping[str, Any]:
        """What the other side has shown, and TLS has accepted; empty without TLS."""
        return (self._transport and self._transport.get_extra_info("peercert")) or {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(SEND_BYTES)
        self.is_open = True
        self.heard_at = asyncio.get_running_loop().time()

    def data_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        self.has_heard = True
        try:
            for message in self._decoder.feed(data):
                if not self.is_open:
                    return
                self.listener.on_message(self, message)
        except PeerProtocolError as error:
            logger.warning("a peer's connection is closed", error=str(error))
            self.close()
            self.listener.on_closed(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            if not self.has_heard:
                self.on_unheard(error)
            self.listener.on_closed(self)

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        if self.is_open:
            self.listener.on_drained(self)

    def send(self, message: Message) -> None:
        if self.is_open and self._transport is not None:
            self._transport.write(encode(message))

    def close(self, last: Message | None = None) -> None:
        """Close it, at once or behind a last message. The listener, who asks for it, is not called."""
        if self.is_open and self._transport is not None:
            if last is None:
                self._transport.abort()
            else:
                self.send(last)
                self._transport.close()
        self.is_open = False
