"""Where users, rules and what else says who may do what are kept: `__security`, a compacted topic of one partition.

Each kind of record has a table in memory, which is loaded before any door accepts. A change is durable before it takes
effect, and has taken effect when the call returns. Because it is a topic, each node of a group has it: one that follows
reads what the leader has written, since it serves consumers, too.

What cannot be read fails the start: a rule that denies something must not be passed over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import structlog

from headrace.broker.internal import SECURITY
from headrace.broker.periodic import Periodic
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import UNREADABLE, StateTopic
from headrace.broker.topics import Topics
from headrace.errors import CorruptLog, HeadraceError
from headrace.format.batch import BatchHeader
from headrace.format.records import Record
from headrace.log.interface import Log, Partition
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.security")

TOPIC_CONFIG = {"cleanup.policy": "compact", "durability": "sync", "segment.bytes": str(16 << 20)}
# How often a node that follows looks for changes.
FOLLOW_SECONDS = 0.2
# Changes that are applied between two turns of the loop.
STEP_CHANGES = 128

Value = TypeVar("Value")
Key = tuple[str, ...]
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[Value]):
    """A kind of record. Its key is a JSON array of the kind's name and more texts, its value a JSON object."""

    name: str
    write: Callable[[Value], Json]
    read: Callable[[Key, Json], Value]
    """From the key, without the kind's name, and the object. Raises ValueError, LookupError or TypeError."""


class StoredChange(NamedTuple):
    """A record that is to be written, and what it does to its table."""

    key: bytes
    value: bytes | None
    apply: Callable[[], None]


class Table(Generic[Value]):
    """What there is of one kind."""

    def __init__(self, kind: RecordKind[Value], on_change: Callable[[Key, Value | None, Value | None], None]) -> None:
        self.values: dict[Key, Value] = {}
        self._kind = kind
        self._on_change = on_change

    def put(self, key: Key, value: Value) -> StoredChange:
        """A value for a key."""
        raw = _encode(self._kind.write(value))
        return StoredChange(_encode((self._kind.name, *key)), raw, lambda: self._set(key, value))

    def drop(self, key: Key) -> StoredChange:
        """The key is no more."""
        return StoredChange(_encode((self._kind.name, *key)), None, lambda: self._set(key, None))

    def take(self, key: Key, raw: bytes | None) -> None:
        """Apply a record."""
        self._set(key, None if raw is None else self._kind.read(key, json.loads(raw)))

    def _set(self, key: Key, value: Value | None) -> None:
        before = self.values.pop(key, None)
        if value is not None:
            self.values[key] = value
        if before is not None or value is not None:
            self._on_change(key, before, value)


class SecurityStore:
    """The topic and its tables."""

    def __init__(self, runtime: Runtime, log: Log, topics: Topics, config: BrokerSettings) -> None:
        self.is_loaded = False
        """Whether the tables say what the topic does: nothing may be decided by them before."""
        self.on_followed: list[Callable[[], None]] = []
        """Called after changes that the leader has made."""
        self._topic = StateTopic(runtime, log, topics, config, SECURITY, TOPIC_CONFIG)
        self._tables: dict[str, Table[Any]] = {}
        self._changing = asyncio.Lock()
        self._position = 0
        self._follower = Periodic(FOLLOW_SECONDS, self._follow, "read users and rules", logger)

    def table(
        self, kind: RecordKind[Value], on_change: Callable[[Key, Value | None, Value | None], None]
    ) -> Table[Value]:
        """The table of a kind, to be asked for before the broker starts. `on_change` is called with a key, its value
        before and its value now (None: there is none), also while the table is loaded."""
        table = self._tables[kind.name] = Table(kind, on_change)
        return table

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the tables, or what is new since this node followed. Raises PartitionOffline or CorruptLog."""
        await self._follower.stop()
        await self._load()

    async def follow(self) -> None:
        """The same on a node that follows, and go on with what comes. What fails is logged, and tried again."""
        try:
            await self._load()
        except (HeadraceError, OSError) as error:
            logger.error("users and rules cannot be read: nothing is allowed but to super users", error=str(error))
        self._follower.start()

    async def stop(self) -> None:
        """Follow no more."""
        await self._follower.stop()

    async def _load(self) -> bool:
        """Apply what is new; whether there was any."""
        topic = self._topic.topic
        before = self._position
        if topic is not None:
            partition = topic.partitions[0]
            self._position = await self._topic.load(partition, self._take, first=before)
        self.is_loaded = True
        return self._position != before

    async def _follow(self) -> None:
        was_loaded = self.is_loaded
        if await self._load() or not was_loaded:
            for call in self.on_followed:
                call()

    def _take(self, record: Record, header: BatchHeader) -> None:
        offset, _, raw_key, value, _ = record
        try:
            name, *key = json.loads(raw_key or b"")
            table = self._tables.get(name)
            if table is not None:
                table.take(tuple(key), value)
        except UNREADABLE as error:
            # Says nothing of the value, which may be secret.
            raise CorruptLog(
                f"the record at offset {offset} of {SECURITY} cannot be read ({type(error).__name__}). Was it written "
                "by a newer version? Start that one."
            ) from None
        if table is None:
            logger.warning("an unknown kind of record was passed over", topic=SECURITY, offset=offset, kind=name)

    # --- changes ------------------------------------------------------------------------------------------------------

    def changing(self) -> asyncio.Lock:
        """Held from looking at tables to writing what follows from that."""
        return self._changing

    async def write(self, changes: Sequence[StoredChange]) -> None:
        """Write changes, all or nothing, and apply them once they are durable. `changing` is held. Raises what the log
        raises; nothing is changed then."""
        if not changes:
            return
        topic = await self._topic.open()
        partition = topic.partitions[0]
        await partition.load()
        # A caller that gives up must not leave tables that say something else than the topic.
        await asyncio.shield(asyncio.ensure_future(self._write(partition, changes)))

    async def _write(self, partition: Partition, changes: Sequence[StoredChange]) -> None:
        await self._topic.submit([self._topic.write(partition, [(each.key, each.value) for each in changes])])
        for number, each in enumerate(changes):
            each.apply()
            if number % STEP_CHANGES == STEP_CHANGES - 1:
                await asyncio.sleep(0)


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
