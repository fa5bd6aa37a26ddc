"""The registry of applications as operators see it: what the framework has written into `headrace-apps`, and the live
settings in it, with their history as far as the topic still has it.

The topic is read for each question: it is compacted and small, and is written by clients. The forms of its records are
those of `headrace.sdk.registry`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.broker.browse.walk import forwards
from headrace.broker.durable import submit
from headrace.broker.internal import REGISTRY, REGISTRY_KEY_PARTS
from headrace.broker.unpacking import Unpacker
from headrace.format import records
from headrace.format.records import Record
from headrace.log.interface import Log, Write
from headrace.runtime import Runtime

# An instance without a heartbeat for so long is taken for dead.
EXPIRY_MS = 30_000
HISTORY_MAX = 1_000
Place = tuple[str, str]
"""Subscription (empty: all) and setting."""


class Change(NamedTuple):
    """A live setting was set, or (None) reset."""

    offset: int
    at_ms: int
    by: str
    subscription: str
    setting: str
    before: Any
    after: Any


@dataclass(slots=True)
class App:
    """An application."""

    name: str
    code: Mapping[str, Any] | None = None
    """As its code has it; None: it was forgotten."""
    sends: dict[str, None] = field(default_factory=dict)
    instances: dict[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    """By id, with the time of the last heartbeat."""
    live: dict[Place, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    """With the offsets of their records."""
    changes: list[Change] = field(default_factory=list)
    revision: int = -1
    """The offset of the last change."""


class Apps:
    """Reads and writes the registry."""

    def __init__(self, runtime: Runtime, log: Log, unpacking: Unpacker) -> None:
        self._runtime = runtime
        self._log = log
        self._unpacking = unpacking

    async def read(self) -> dict[str, App]:
        """All applications, by name."""
        apps: dict[str, App] = {}
        topic = self._log.topics.get(REGISTRY)
        if topic is None:
            return apps
        partition = topic.partitions[0]
        await partition.load()
        async for stretch in forwards(
            self._runtime, self._unpacking, partition, partition.start, partition.high_watermark
        ):
            for record in stretch.records:
                _take(apps, record)
        return {name: app for name, app in sorted(apps.items()) if app.code is not None}

    async def write(self, app: str, values: Mapping[Place, Any], by: str) -> None:
        """Set live settings, or (None) reset them, durably, all at once."""
        now = self._runtime.clock.now_ms()
        rows: list[tuple[int, bytes, bytes | None, list[tuple[str, bytes | None]]]] = []
        for (subscription, setting), value in values.items():
            key = json.dumps(["live", app, subscription, setting], separators=(",", ":"), ensure_ascii=False).encode()
            body = None if value is None else json.dumps({"value": value, "by": by, "at_ms": now}).encode()
            rows.append((now, key, body, []))
        partition = self._log.topics[REGISTRY].partitions[0]
        await partition.load()
        await submit(self._log, [Write(partition, records.build(rows))])


def _take(apps: dict[str, App], record: Record) -> None:
    offset, timestamp, key, value, _ = record
    try:
        parts = json.loads(key or b"")
        found = None if value is None else json.loads(value)
    except (ValueError, RecursionError):
        return
    if not isinstance(parts, list) or not parts or REGISTRY_KEY_PARTS.get(str(parts[0])) != len(parts):
        return
    kind, name, *rest = map(str, parts)
    app = apps.setdefault(name, App(name))
    if kind == "app":
        app.code = found
    elif kind == "sends":
        if found is None:
            app.sends.pop(rest[0], None)
        else:
            app.sends[rest[0]] = None
    elif kind == "instance":
        if found is None:
            app.instances.pop(rest[0], None)
        else:
            app.instances[rest[0]] = timestamp, found
    else:
        place = (rest[0], rest[1])
        before = app.live.get(place)
        app.revision = offset
        app.changes.append(
            Change(
                *(offset, timestamp, str((found or {}).get("by", "")), *place),
                *(None if before is None else before[1].get("value"), None if found is None else found.get("value")),
            )
        )
        del app.changes[:-HISTORY_MAX]
        if found is None:
            app.live.pop(place, None)
        else:
            app.live[place] = offset, found
