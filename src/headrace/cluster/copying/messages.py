"""What leader and follower say to each other in a copy.

    message   kind u8, body

The follower connects and asks. The leader sends a round: its head, then partition after partition; for each the
follower answers what it lacks, is sent that, and says when it has it. While a file is sent, every piece is acknowledged
once it is written, and no more than a window of them is under way. At the end of a round the leader says whether the
rest is in its journal; if it is not, another round follows, which finds most files in place.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from headrace.cluster.wire import PeerProtocolError
from headrace.log.copy.parts import CopiedFile, CopiedPartition, CopyHead
from headrace.log.copy.target import WantedFile


@dataclass(frozen=True, slots=True)
class Ask:
    """The follower asks for a copy."""

    version: int
    cluster: str
    group: str
    node: int
    directory: str
    starts: int
    epoch: int


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
    return bytes([_KINDS.index(type(message))]) + json.dumps(asdict(message), separators=(",", ":")).encode()


def decode(body: bytes) -> CopyMessage:
    """Raises PeerProtocolError."""
    if not body or body[0] >= len(_KINDS):
        raise PeerProtocolError(f"a peer sent a message of a copy that is not known ({body[:1]!r})")
    if body[0] == _DATA:
        return Data(body[1:])
    kind = _KINDS[body[0]]
    try:
        values = json.loads(body[1:])
        return kind(**{each.name: _read(kind, each.name, values[each.name]) for each in fields(kind)})
    except (ValueError, TypeError, KeyError) as error:
        raise PeerProtocolError(f"a peer sent a {kind.__name__} that cannot be read: {error}") from error


def _read(kind: type[CopyMessage], name: str, value: Any) -> Any:
    if kind is Round and name == "head":
        history = tuple((int(epoch), int(first)) for epoch, first in value["history"])
        return CopyHead(value["sequence"], history, value["counters"], tuple(value["topics"]))
    if kind is Part:
        found = dict(value)
        found["epochs"] = tuple((int(epoch), int(offset)) for epoch, offset in value["epochs"])
        found["files"] = tuple(CopiedFile(**each) for each in value["files"])
        found["aborted"] = tuple((int(base), tuple(map(int, entry))) for base, entry in value["aborted"])
        if not all(_is_name(each.name) for each in found["files"]):
            raise ValueError("a file has a name that none of a partition has")
        return CopiedPartition(**found)
    if kind is Want:
        return tuple(WantedFile(**each) for each in value)
    return value


def _is_name(name: str) -> bool:
    return name[:20].isdigit() and name[20:] in (".log", ".index", ".timeindex", ".snapshot")
