"""What two nodes of a group say to each other: messages without I/O.

    message   length u32 (of what follows), kind u8, body

A follower connects to its leader and opens with a `Hello`; the leader answers `Welcome` or `Refusal`. From then on the
leader sends frames and heartbeats, and the follower acknowledgements. A command opens with an `Inquiry`, and is
answered a `Report`. Opening messages are JSON, because another version must be able to read why it is refused; all
others are numbers, and frames as they stand in the journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any

from headrace.cluster import json_messages
from headrace.cluster.json_messages import PeerProtocolError, Readers, read_fields
from headrace.cluster.records import Group, parse_group_fields
from headrace.log.group_frames import Position

LENGTH = Struct(">IB")
ACKNOWLEDGEMENT = Struct(">Qq")
# From version 2 on.
ACKNOWLEDGEMENT_APPLIED = Struct(">QqQ")
HEARTBEAT = Struct(">QQQQ")
OPENING_MAX_BYTES = 1 << 20
# What a client of TLS begins with, read as the first half of a length: far above that of any message.
TLS_HANDSHAKE = 0x1603

HELLO, WELCOME, REFUSAL, FRAME, ACKNOWLEDGE, BEAT, COPY, INQUIRY, REPORT = range(1, 10)


@dataclass(frozen=True, slots=True)
class Caller:
    """The node that opens a connection."""

    oldest: int
    """Of the versions of this protocol that it knows."""
    newest: int
    cluster: str
    group: str
    node: int
    directory: str
    starts: int
    epoch: int
    """The latest that it knows of."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a follower has."""

    caller: Caller
    ends: tuple[Position, ...]
    """The last frame of each epoch in its journal."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Up to where leader and follower have the same frames: the follower cuts off the rest."""

    epoch: int
    common_end: int
    version: int
    """Of this protocol, that both speak from here on."""


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
    applied: int | None = None
    """Its partitions have every frame up to this sequence. From version 2 on."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How the leader is."""

    committed: int
    etcd_ms: int
    """How long ago etcd last answered it."""
    flush_ms: int
    """The age of the oldest frame that its device does not have; 0 where it has all of them."""
    time_ms: int


@dataclass(frozen=True, slots=True)
class Inquiry:
    """How is the node, and what does it know of its group? Asked by commands."""


@dataclass(frozen=True, slots=True)
class FollowerState:
    """A follower, as its leader sees it."""

    node: int
    lag_bytes: int
    """How much of the leader's journal it lacks."""
    lag_ms: int
    """For how long it has lacked something."""
    applied: int | None
    """The last frame that its partitions have, if it says so."""


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to an inquiry."""

    cluster: str
    feature_level: int
    group: str
    node: int
    directory: str
    starts: int
    is_copying: bool
    """What it has is no whole copy."""
    leads: bool
    epoch: int
    """The latest that it knows of."""
    end: Position
    """The last frame that its device has."""
    committed: int
    seen: Group
    """The newest record of the group that it knows."""
    followers: tuple[FollowerState, ...] = ()
    """While it leads."""


Opening = Hello | Welcome | Refusal | Inquiry | Report
Message = Opening | Frame | Acknowledgement | Heartbeat | Copy


def encode(message: Message) -> bytes:
    """A message as it travels."""
    match message:
        case Frame():
            return LENGTH.pack(1 + len(message.data), FRAME) + message.data
        case Copy():
            return LENGTH.pack(1 + len(message.body), COPY) + message.body
        case Acknowledgement():
            if message.applied is None:
                body = ACKNOWLEDGEMENT.pack(message.flushed, message.time_ms)
            else:
                body = ACKNOWLEDGEMENT_APPLIED.pack(message.flushed, message.time_ms, message.applied)
            return LENGTH.pack(1 + len(body), ACKNOWLEDGE) + body
        case Heartbeat():
            body = HEARTBEAT.pack(message.committed, message.etcd_ms, message.flush_ms, message.time_ms)
            return LENGTH.pack(1 + len(body), BEAT) + body
        case _:
            body = json_messages.write(message)
            return LENGTH.pack(1 + len(body), _KINDS[type(message)]) + body


def _position(value: Any) -> Position:
    epoch, sequence = value
    return Position(int(epoch), int(sequence))


def _positions(value: Any) -> tuple[Position, ...]:
    return tuple(map(_position, value))


def _followers(value: Any) -> tuple[FollowerState, ...]:
    return tuple(read_fields(FollowerState, each, {}) for each in value)


_OPENINGS: dict[int, tuple[type[Opening], Readers]] = {
    HELLO: (Hello, {"caller": partial(read_fields, Caller, readers={}), "ends": _positions}),
    WELCOME: (Welcome, {}),
    REFUSAL: (Refusal, {}),
    INQUIRY: (Inquiry, {}),
    REPORT: (Report, {"end": _position, "seen": parse_group_fields, "followers": _followers}),
}
_KINDS: dict[type, int] = {kind: number for number, (kind, _) in _OPENINGS.items()}


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
    if kind == ACKNOWLEDGE and len(body) == ACKNOWLEDGEMENT_APPLIED.size:
        return Acknowledgement(*ACKNOWLEDGEMENT_APPLIED.unpack(body))
    if kind == BEAT and len(body) == HEARTBEAT.size:
        return Heartbeat(*HEARTBEAT.unpack(body))
    if kind not in _OPENINGS:
        raise PeerProtocolError(f"a peer sent a message of unknown kind {kind} ({len(body)} bytes)")
    opening, readers = _OPENINGS[kind]
    return json_messages.read(opening, body, readers)
