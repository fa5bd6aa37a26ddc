"""What two nodes of a group say to each other: messages without I/O.

    message   length u32 (of what follows), kind u8, body

A follower connects to its leader and opens with a `Hello`; the leader answers `Welcome` or `Refusal`. From then on the
leader sends frames and heartbeats, and the follower acknowledgements. Opening messages are JSON, because another
version must be able to read why it is refused; all others are numbers, and frames as they stand in the journal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from struct import Struct
from typing import Any

from headrace.errors import HeadraceError
from headrace.log.group_frames import Position

VERSION = 1
LENGTH = Struct(">IB")
ACKNOWLEDGEMENT = Struct(">Qq")
HEARTBEAT = Struct(">QQQQ")
OPENING_MAX_BYTES = 1 << 20
# What a client of TLS begins with, read as the first half of a length: far above that of any message.
TLS_HANDSHAKE = 0x1603

HELLO, WELCOME, REFUSAL, FRAME, ACKNOWLEDGE, BEAT, COPY = range(1, 8)


class PeerProtocolError(HeadraceError):
    """A peer sent what is no message of this protocol."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a follower has."""

    version: int
    cluster: str
    group: str
    node: int
    directory: str
    starts: int
    epoch: int
    """The latest that it knows of."""
    ends: tuple[Position, ...]
    """The last frame of each epoch in its journal."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Up to where leader and follower have the same frames: the follower cuts off the rest."""

    epoch: int
    common_end: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no session."""

    reason: str
    epoch: int
    """The latest that the other node knows of."""
    must_copy: bool = False
    """What the follower lacks is not in the leader's journal any more."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of the journal."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Copy:
    """A message of a copy (`copying/messages.py`), on a connection of its own."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The follower's device has every frame up to this sequence."""

    flushed: int
    time_ms: int
    """The follower's calendar."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How the leader is."""

    committed: int
    etcd_ms: int
    """How long ago etcd last answered it."""
    flush_ms: int
    """The age of the oldest frame that its device does not have; 0 where it has all of them."""
    time_ms: int


Message = Hello | Welcome | Refusal | Frame | Acknowledgement | Heartbeat | Copy


def encode(message: Message) -> bytes:
    """A message as it travels."""
    match message:
        case Frame():
            return LENGTH.pack(1 + len(message.data), FRAME) + message.data
        case Copy():
            return LENGTH.pack(1 + len(message.body), COPY) + message.body
        case Acknowledgement():
            return LENGTH.pack(1 + ACKNOWLEDGEMENT.size, ACKNOWLEDGE) + ACKNOWLEDGEMENT.pack(
                message.flushed, message.time_ms
            )
        case Heartbeat():
            body = HEARTBEAT.pack(message.committed, message.etcd_ms, message.flush_ms, message.time_ms)
            return LENGTH.pack(1 + len(body), BEAT) + body
        case Hello() | Welcome() | Refusal():
            body = json.dumps(asdict(message), separators=(",", ":")).encode()
            return LENGTH.pack(1 + len(body), _KINDS[type(message)]) + body


_KINDS: dict[type, int] = {Hello: HELLO, Welcome: WELCOME, Refusal: REFUSAL}
_OPENINGS: dict[int, type[Hello | Welcome | Refusal]] = {HELLO: Hello, WELCOME: Welcome, REFUSAL: Refusal}


class Decoder:
    """Bytes in, messages out."""

    def __init__(self, frame_max_bytes: int) -> None:
        self._max_bytes = max(frame_max_bytes, OPENING_MAX_BYTES) + 1
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with `data`. Raises PeerProtocolError."""
        buffer = self._buffer
        buffer += data
        position = 0
        while len(buffer) - position >= LENGTH.size:
            length, kind = LENGTH.unpack_from(buffer, position)
            if not 0 < length <= self._max_bytes:
                if length >> 16 == TLS_HANDSHAKE:
                    raise PeerProtocolError(
                        "a peer begins with TLS, which this node does not speak with its peers. Give all nodes of the "
                        "group peer_tls_ca, or none."
                    )
                raise PeerProtocolError(
                    f"a peer announces a message of {length} bytes, and at most {self._max_bytes} are read. "
                    "Is it a node of Headrace, with the same settings?"
                )
            end = position + LENGTH.size - 1 + length
            if len(buffer) < end:
                break
            body = bytes(buffer[position + LENGTH.size : end])
            position = end
            yield _decode(kind, body)
        del buffer[:position]


def _decode(kind: int, body: bytes) -> Message:
    if kind == FRAME:
        return Frame(body)
    if kind == COPY:
        return Copy(body)
    if kind == ACKNOWLEDGE and len(body) == ACKNOWLEDGEMENT.size:
        return Acknowledgement(*ACKNOWLEDGEMENT.unpack(body))
    if kind == BEAT and len(body) == HEARTBEAT.size:
        return Heartbeat(*HEARTBEAT.unpack(body))
    opening = _OPENINGS.get(kind)
    if opening is None:
        raise PeerProtocolError(f"a peer sent a message of unknown kind {kind} ({len(body)} bytes)")
    try:
        return _opening(opening, json.loads(body))
    except (ValueError, TypeError, KeyError) as error:
        raise PeerProtocolError(f"a peer sent a {opening.__name__} that cannot be read: {error}") from error


def _opening(opening: type[Hello | Welcome | Refusal], values: dict[str, Any]) -> Message:
    # A later version may say more.
    known = {each.name: values[each.name] for each in fields(opening)}
    if opening is Hello:
        known["ends"] = tuple(Position(int(epoch), int(last)) for epoch, last in known["ends"])
    for each in fields(opening):
        if each.type in ("int", "str") and type(known[each.name]).__name__ != each.type:
            raise TypeError(f"{each.name} is {known[each.name]!r}, not {each.type}")
    return opening(**known)
