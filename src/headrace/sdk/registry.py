"""The registry: applications, their running instances, and what was set for them, in a compacted topic of the broker.

Each fact is a record under a key of its own, so that writers do not overwrite each other. The topic's offsets are the
revisions: an instance reports up to which offset it has applied the settings. Over Kafka's wire it works on Headrace
and on Apache Kafka alike.

["app", NAME]                         what the code declares; written when it has changed
["sends", NAME, TOPIC]                that the application was seen to send to a topic
["instance", NAME, ID]                a process that runs; written anew every few seconds, taken out when it stops
["live", NAME, SUBSCRIPTION, SETTING] a value that was set; the subscription is empty where it is for all of them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from headrace.client import EARLIEST, Client
from headrace.client.consumer import Record
from headrace.sdk.scenario import Tuning

log = structlog.get_logger("headrace.sdk")

TOPIC = "headrace-apps"
TOPIC_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    # Heartbeats are judged by the broker's clock, not by that of the instance's machine.
    "message.timestamp.type": "LogAppendTime",
    # An instance that starts reads all of it: little is left uncompacted.
    "segment.bytes": "1048576",
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}
PLACE = (TOPIC, 0)

APP, SENDS, INSTANCE, LIVE = "app", "sends", "instance", "live"
KEY_PARTS = {APP: 2, SENDS: 3, INSTANCE: 3, LIVE: 4}

HEARTBEAT_SECONDS = 10.0
# An instance without a heartbeat for so long is taken for dead.
EXPIRY_SECONDS = 30.0
# A change wakes the broker's long poll at once; this only bounds how long an idle one lasts.
POLL_SECONDS = 20.0
WRITE_SECONDS = 10.0

Key = tuple[str, ...]


class SubscriptionEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription, as the code has it."""

    topic: str
    group: str
    scenario: str
    wire: str
    handler: str
    tuning: Tuning
    ordered_by: str = ""
    description: str = ""

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.group}"


class TopicEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topic that an application declares that it sends to."""

    name: str
    key: str = ""
    owner: str = ""
    description: str = ""
    contacts: tuple[str, ...] = ()


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """An application, as the code has it."""

    app: str
    owner: str = ""
    description: str = ""
    contacts: tuple[str, ...] = ()
    subscriptions: tuple[SubscriptionEntry, ...] = ()
    topics: tuple[TopicEntry, ...] = ()
    settings: dict[str, Any] = {}
    """Those that are the whole application's."""
    version: str = ""
    """Of the framework."""
    at_ms: int = 0


class Instance(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that runs an application."""

    app: str
    id: str
    host: str
    pid: int
    started_ms: int
    applied: int = 0
    """It has done everything that stands before this offset."""
    refused: dict[str, str] = {}
    """What it could not do, by the setting, and why."""
    seen_ms: int = 0
    """The time of the record."""

    def alive(self, now_ms: int) -> bool:
        return now_ms - self.seen_ms < EXPIRY_SECONDS * 1_000


class SendEntry(msgspec.Struct, frozen=True):
    """That an application was seen to send to a topic."""

    at_ms: int


class Setting(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value that was set."""

    value: Any
    by: str = ""
    at_ms: int = 0
    offset: int = 0
    """Of its record."""


class Directory:
    """The contents of the topic, as far as it was read."""

    def __init__(self) -> None:
        self.apps: dict[str, Registration] = {}
        self.sends: dict[str, set[str]] = {}
        self.instances: dict[str, dict[str, Instance]] = {}
        self.settings: dict[str, dict[tuple[str, str], Setting]] = {}
        """Per application the values that were set, by subscription and name."""
        self.revisions: dict[str, int] = {}
        """Per application the offset of the last change of its settings."""

    def take(self, record: Record) -> Key | None:
        """One more record; its key, or None where it is none of ours."""
        key = read_key(record.key)
        if key is None:
            return None
        kind, app = key[0], key[1]
        if kind == LIVE:
            self.revisions[app] = record.offset
        try:
            if record.value is None:
                self._remove(kind, app, key)
            else:
                self._put(kind, app, key, record.value, record)
        except msgspec.MsgspecError as error:
            log.warning("a record cannot be read", topic=TOPIC, offset=record.offset, key=list(key), error=str(error))
            return None
        return key

    def _put(self, kind: str, app: str, key: Key, value: bytes, record: Record) -> None:
        if kind == APP:
            self.apps[app] = msgspec.json.decode(value, type=Registration)
        elif kind == SENDS:
            self.sends.setdefault(app, set()).add(key[2])
        elif kind == INSTANCE:
            found = msgspec.json.decode(value, type=Instance)
            seen = msgspec.structs.replace(found, seen_ms=record.timestamp)
            self.instances.setdefault(app, {})[key[2]] = seen
        else:
            setting = msgspec.json.decode(value, type=Setting)
            placed = msgspec.structs.replace(setting, offset=record.offset)
            self.settings.setdefault(app, {})[key[2], key[3]] = placed

    def _remove(self, kind: str, app: str, key: Key) -> None:
        if kind == APP:
            self.apps.pop(app, None)
        elif kind == SENDS:
            self.sends.get(app, set()).discard(key[2])
        elif kind == INSTANCE:
            self.instances.get(app, {}).pop(key[2], None)
        else:
            self.settings.get(app, {}).pop((key[2], key[3]), None)

    def keys(self, app: str) -> Iterator[Key]:
        """Of everything that is there of an application."""
        if app in self.apps:
            yield APP, app
        yield from ((SENDS, app, topic) for topic in sorted(self.sends.get(app, ())))
        yield from ((INSTANCE, app, each) for each in self.instances.get(app, ()))
        yield from ((LIVE, app, *each) for each in self.settings.get(app, ()))


class Registry:
    """The topic: read, followed and written to."""

    def __init__(self, client: Client) -> None:
        self.directory = Directory()
        self._client = client
        self._producer = client.producer(linger=0.0, delivery_timeout=WRITE_SECONDS)
        self._consumer = client.consumer(max_wait=POLL_SECONDS, out_of_range=EARLIEST)

    @property
    def position(self) -> int:
        """Everything before this offset was read."""
        return self._consumer.positions.get(PLACE, 0)

    async def open(self, *, create: bool = True) -> bool:
        """Read all that is there; false where there is no such topic, and none is to be made. Raises ClientError."""
        cluster = self._client.cluster
        # Once without retries: where nothing answers, this fails now.
        await cluster.any_node()
        if create:
            await self._client.admin.ensure_topic(TOPIC, 1, TOPIC_CONFIG)
        elif all(topic.name != TOPIC for topic in await cluster.topics()):
            return False
        self.directory = Directory()
        await self._consumer.assign({PLACE: EARLIEST})
        async for chunk in self._consumer.chunks(await self._consumer.end_offsets()):
            for record in self._consumer.parse(chunk):
                self.directory.take(record)
        return True

    async def next(self) -> list[Key]:
        """Wait until more is written; the keys of it. Raises ClientError."""
        chunk = await self._consumer.chunk()
        keys = [self.directory.take(record) for record in self._consumer.parse(chunk)]
        return [key for key in keys if key is not None]

    async def write(self, values: Mapping[Key, msgspec.Struct | None]) -> int:
        """Write records, or (None) take them out, all in one batch; the offset of the last. Raises ClientError."""
        deliveries = [
            await self._producer.send(
                TOPIC,
                None if value is None else msgspec.json.encode(value),
                write_key(key),
                partition=0,
            )
            for key, value in values.items()
        ]
        await self._producer.flush()
        return max([(await delivery).offset for delivery in deliveries], default=-1)

    async def close(self) -> None:
        await self._consumer.close()
        await self._producer.close(flush=False)


def write_key(key: Sequence[str]) -> bytes:
    """JSON, because names may hold whatever else would part them."""
    return msgspec.json.encode(list(key))


def read_key(raw: bytes | None) -> Key | None:
    """The same back; None where it is none of ours."""
    try:
        key = msgspec.json.decode(raw or b"", type=tuple[str, ...])
    except msgspec.MsgspecError:
        return None
    return key if key and KEY_PARTS.get(key[0]) == len(key) else None
