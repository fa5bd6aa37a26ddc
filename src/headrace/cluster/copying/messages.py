"""What leader and follower say to each other in a copy.

    message   kind u8, body

The follower connects and asks. The leader sends a round: its head, then partition after partition; for each the
follower answers what it lacks, is sent that, and says when it has it. While a file is sent, every piece is acknowledged
once it is written, and no more than a window of them is under way. At the end of a round the leader says whether the
rest is in its journal; if it is not, another round follows, which finds most files in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.cluster import json_messages
from headrace.cluster.json_messages import PeerProtocolError, Readers, read_fields
from headrace.cluster.wire import Caller
from headrace.log.copy.parts import CopiedFile, CopiedPartition, CopyHead
from headrace.log.copy.target import WantedFile


@dataclass(frozen=True, slots=True)
class Ask:
    """The follower asks for a copy."""

    caller: Caller


@dataclass(frozen=True, slots=True)
class Round:
    """A round begins."""

    number: int
    head: CopyHead
    size: int
    """About how many bytes all partitions have."""
    rate: int
    """The bytes a second that the leader allows to all copies."""


@dataclass(frozen=True, slots=True)
class Part:
    """A partition, as it is in this round."""

    partition: CopiedPartition


@dataclass(frozen=True, slots=True)
class Gone:
    """A topic was deleted since the round began."""

    topic: str


@dataclass(frozen=True, slots=True)
class Want:
    """What the follower lacks of a partition."""

    files: tuple[WantedFile, ...]


@dataclass(frozen=True, slots=True)
class FileBegin:
    """A file of the partition follows, from a position on."""

    name: str
    position: int
    size: int


@dataclass(frozen=True, slots=True)
class Data:
    """The next bytes of it."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PartEnd:
    """All that the follower wanted of the partition was sent."""


@dataclass(frozen=True, slots=True)
class Done:
    """The follower has what was sent last: a piece, or, synced, the whole partition."""


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """All partitions were sent. Behind the last round the leader's journal has the rest."""

    is_last: bool


@dataclass(frozen=True, slots=True)
class Alive:
    """Nothing has happened for a while, but work goes on."""


CopyMessage = Ask | Round | Part | Gone | Want | FileBegin | Data | PartEnd | Done | RoundEnd | Alive
_KINDS: tuple[type[CopyMessage], ...] = (Ask, Round, Part, Gone, Want, FileBegin, Data, PartEnd, Done, RoundEnd, Alive)
_DATA = _KINDS.index(Data)


def encode(message: CopyMessage) -> bytes:
    """A message as it travels."""
    if isinstance(message, Data):
        return bytes([_DATA]) + message.data
    return bytes([_KINDS.index(type(message))]) + json_messages.write(message)


def decode(body: bytes) -> CopyMessage:
    """Raises PeerProtocolError."""
    if not body or body[0] >= len(_KINDS):
        raise PeerProtocolError(f"a peer sent a message of a copy that is not known ({body[:1]!r})")
    if body[0] == _DATA:
        return Data(body[1:])
    kind = _KINDS[body[0]]
    return json_messages.read(kind, body[1:], _READERS.get(kind, {}))


def _pairs(value: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(first), int(second)) for first, second in value)


def _files(value: Any) -> tuple[CopiedFile, ...]:
    found = tuple(read_fields(CopiedFile, each, {}) for each in value)
    if not all(_is_name(each.name) for each in found):
        raise ValueError("a file has a name that none of a partition has")
    return found


def _aborted(value: Any) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple((int(base), tuple(map(int, entry))) for base, entry in value)


def _wanted(value: Any) -> tuple[WantedFile, ...]:
    return tuple(read_fields(WantedFile, each, {}) for each in value)


def _is_name(name: str) -> bool:
    return name[:20].isdigit() and name[20:] in (".log", ".index", ".timeindex", ".snapshot")


_READERS: dict[type[CopyMessage], Readers] = {
    Ask: {"caller": partial(read_fields, Caller, readers={})},
    Round: {"head": partial(read_fields, CopyHead, readers={"history": _pairs, "topics": tuple})},
    Part: {
        "partition": partial(
            read_fields, CopiedPartition, readers={"epochs": _pairs, "files": _files, "aborted": _aborted}
        )
    },
    Want: {"files": _wanted},
}
