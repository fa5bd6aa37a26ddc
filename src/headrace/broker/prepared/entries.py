"""What is written to `__half`: prepared messages, and what became of them.

A prepared message is a record with the key, the value and the headers that its reader shall see, and in front of these
headers one of Headrace's own, in JSON, with its target and the group that prepared it. Taking that header away gives
the message back. All other records are that header alone:

    prepared      topic, topic_id, partition (-1: by key), group, timeout_ms, prepared_ms; if it was moved forward also
                  id (the offset at which it first stood), checks, next_check_ms, parked
    committed     id, topic, partition, offset, by
    rolled-back   id, by
    parked        id: given up, and kept until a client decides
    checked       checks: pairs of an id and how many rounds of checks it has had

`by` is empty where the producer decided, and `checks` where the broker gave up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from headrace.broker.store import Row
from headrace.errors import InvalidHalf
from headrace.format.records import Record

TOPIC = "__half"
HEADER = "headrace-half"
ID_TOPIC_CHARACTERS = 8
ID_CHARACTERS = ID_TOPIC_CHARACTERS + 16
NEVER = (1 << 63) - 1


class State(StrEnum):
    """How a half message stands."""

    PREPARED = "prepared"
    PARKED = "parked"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was prepared."""

    topic: str
    topic_id: UUID
    partition: int
    """-1: chosen when it is committed, by its key."""
    group: str
    """Whose members know what became of the local transaction."""
    timeout_ms: int
    prepared_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        headers = sum(len(name) + len(content or b"") for name, content in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared message in the log."""

    number: int
    """Its id's: the offset at which it first stood."""
    message: Message
    checks: int
    next_check_ms: int
    parked: bool


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a message."""

    number: int
    outcome: State
    topic: str = ""
    partition: int = -1
    offset: int = -1
    """Where a committed message lies."""
    by: str = ""
    place: int = -1
    """The offset of the record of the decision."""


@dataclass(frozen=True, slots=True)
class Parked:
    """The broker gave a message up, and keeps it."""

    number: int


@dataclass(frozen=True, slots=True)
class Checked:
    """Rounds of checks, by the numbers of the messages."""

    checks: Sequence[tuple[int, int]]
    at_ms: int


Entry = Prepared | Decided | Parked | Checked


# --- ids --------------------------------------------------------------------------------------------------------------


def id_of(topic: UUID, number: int) -> str:
    """The id of a message. A part of the topic's own id stands in front: what was prepared on another data directory is
    not taken for what happens to lie at the same offset here."""
    return topic.hex[:ID_TOPIC_CHARACTERS] + f"{number:016x}"


def parse_id(text: str) -> int:
    """The number in an id, whichever topic it is of. Raises InvalidHalf."""
    if len(text) != ID_CHARACTERS or not all(letter in "0123456789abcdef" for letter in text):
        raise InvalidHalf(
            f"{text[:40]!r} is not the id of a half message ({ID_CHARACTERS} hexadecimal digits). "
            "Send the id unchanged."
        )
    return int(text[ID_TOPIC_CHARACTERS:], 16)


# --- writing ----------------------------------------------------------------------------------------------------------


def write_prepared(message: Message, now: int) -> Row:
    """The record of a new message."""
    return now, message.key, message.value, [_header(_describe(message)), *message.headers]


def write_moved(entry: Prepared, now: int) -> Row:
    """The record of a message that was prepared earlier and stands further back in the log."""
    fields = _describe(entry.message) | {
        "id": entry.number,
        "checks": entry.checks,
        "next_check_ms": entry.next_check_ms,
        "parked": entry.parked,
    }
    return now, entry.message.key, entry.message.value, [_header(fields), *entry.message.headers]


def write_decided(entry: Decided, now: int) -> Row:
    fields: dict[str, Any] = {"kind": entry.outcome, "id": entry.number, "by": entry.by}
    if entry.outcome is State.COMMITTED:
        fields |= {"topic": entry.topic, "partition": entry.partition, "offset": entry.offset}
    return now, None, None, [_header(fields)]


def write_parked(number: int, now: int) -> Row:
    return now, None, None, [_header({"kind": State.PARKED, "id": number})]


def write_checked(checks: Iterable[tuple[int, int]], now: int) -> Row:
    return now, None, None, [_header({"kind": "checked", "checks": list(checks)})]


def _describe(message: Message) -> dict[str, Any]:
    return {
        "kind": State.PREPARED,
        "topic": message.topic,
        "topic_id": message.topic_id.hex,
        "partition": message.partition,
        "group": message.group,
        "timeout_ms": message.timeout_ms,
        "prepared_ms": message.prepared_ms,
    }


def _header(fields: dict[str, Any]) -> tuple[str, bytes]:
    return HEADER, json.dumps(fields, separators=(",", ":")).encode()


# --- reading ----------------------------------------------------------------------------------------------------------


def read(record: Record) -> Entry:
    """The entry in a record. Raises ValueError, KeyError or TypeError where it is none of these."""
    offset, timestamp, key, value, headers = record
    if not headers or headers[0][0] != HEADER:
        raise ValueError(f"its first header is not {HEADER}")
    fields = json.loads((headers[0][1] or b"").decode())
    kind = fields["kind"]
    if kind == State.PREPARED:
        message = Message(
            topic=fields["topic"],
            topic_id=UUID(hex=fields["topic_id"]),
            partition=int(fields["partition"]),
            group=fields["group"],
            timeout_ms=int(fields["timeout_ms"]),
            prepared_ms=int(fields["prepared_ms"]),
            key=key,
            value=value,
            headers=headers[1:],
        )
        first_check = message.prepared_ms + message.timeout_ms
        return Prepared(
            number=int(fields.get("id", offset)),
            message=message,
            checks=int(fields.get("checks", 0)),
            next_check_ms=int(fields.get("next_check_ms", first_check)),
            parked=bool(fields.get("parked", False)),
        )
    if kind == State.COMMITTED:
        partition, at = int(fields["partition"]), int(fields["offset"])
        return Decided(int(fields["id"]), State.COMMITTED, fields["topic"], partition, at, fields["by"], offset)
    if kind == State.ROLLED_BACK:
        return Decided(int(fields["id"]), State.ROLLED_BACK, by=fields["by"], place=offset)
    if kind == State.PARKED:
        return Parked(int(fields["id"]))
    if kind == "checked":
        return Checked([(int(number), int(count)) for number, count in fields["checks"]], timestamp)
    raise ValueError(f"a record of kind {kind!r}")
