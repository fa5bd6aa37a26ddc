"""JSON objects in a compacted topic of the broker's own, by kind and id.

They are few, small and changed by people. Each has a version, so that two who change the same object do not undo each
other's work unseen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.broker.internal import CONSOLE
from headrace.broker.loading import SharedLoad
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import StateTopic
from headrace.broker.topics import Topics
from headrace.errors import DocumentsFull, HeadraceError, StorageFailed, VersionConflict
from headrace.format.batch import BatchHeader
from headrace.format.records import Record
from headrace.log.interface import Log, Partition
from headrace.runtime import Runtime

TOPIC_CONFIG = {"cleanup.policy": "compact", "durability": "sync", "segment.bytes": str(16 << 20)}
# Of each kind.
DOCUMENTS_MAX = 10_000
DOCUMENT_BYTES = 65_536


class Document(NamedTuple):
    """An object as it is kept."""

    id: str
    version: int
    updated_ms: int
    updated_by: str
    body: Mapping[str, Any]


class Documents:
    """All of them, in memory once they were read."""

    def __init__(self, runtime: Runtime, log: Log, topics: Topics, config: BrokerSettings) -> None:
        self.on_changed: list[Callable[[str, str], None]] = []
        """Called with the kind and the id of what has changed."""
        self._runtime = runtime
        self._state = StateTopic(runtime, log, topics, config, CONSOLE, TOPIC_CONFIG)
        self._loading = SharedLoad(self._load)
        self._partition: Partition | None = None
        self._documents: dict[str, dict[str, Document]] = {}
        # One change at a time: versions follow each other.
        self._changing = asyncio.Lock()

    @property
    def is_there(self) -> bool:
        """Whether anything was ever kept."""
        return self._state.topic is not None

    async def load(self) -> None:
        """Read them, unless that is done; without any there is nothing to read. Raises StorageFailed."""
        if self._partition is None and self._state.topic is not None:
            await self._loading.load()

    async def _load(self) -> None:
        try:
            partition = (await self._state.open()).partitions[0]
            await self._state.load(partition, self._apply)
        except (HeadraceError, OSError) as error:
            raise StorageFailed(f"what the console keeps cannot be read yet: {error}") from error
        self._partition = partition

    def _apply(self, record: Record, header: BatchHeader) -> None:
        kind, id = json.loads(record[2] or b"")
        documents = self._documents.setdefault(kind, {})
        if record[3] is None:
            documents.pop(id, None)
        else:
            found = json.loads(record[3])
            documents[id] = Document(id, found["version"], found["updated_ms"], found["updated_by"], found["body"])

    def stop(self) -> None:
        """Read no further."""
        self._loading.cancel()

    async def get(self, kind: str, id: str) -> Document | None:
        """One of them. Raises StorageFailed."""
        await self.load()
        return self._documents.get(kind, {}).get(id)

    async def all(self, kind: str) -> list[Document]:
        """All of a kind, by their ids. Raises StorageFailed."""
        await self.load()
        return sorted(self._documents.get(kind, {}).values())

    def known(self, kind: str) -> Mapping[str, Document]:
        """Those of a kind that were read."""
        return self._documents.get(kind, {})

    async def put(self, kind: str, id: str, body: Mapping[str, Any], by: str, expected: int | None = None) -> Document:
        """Keep an object, durably, in the place of the one with that id. Raises VersionConflict unless that one has the
        `expected` version (0: there is none); None: whichever it has."""
        async with self._changing:
            before = await self.get(kind, id)
            version = 0 if before is None else before.version
            if expected is not None and expected != version:
                raise VersionConflict(
                    f"the {kind} {id!r} has the version {version} and not {expected}: it was changed meanwhile. "
                    "Look at it, and change it again"
                )
            if before is None and len(self._documents.get(kind, {})) >= DOCUMENTS_MAX:
                raise DocumentsFull(f"there are already {DOCUMENTS_MAX} of the kind {kind}, the maximum. Delete some.")
            document = Document(id, version + 1, self._runtime.clock.now_ms(), by, body)
            await self._write(kind, id, document)
            return document

    async def delete(self, kind: str, id: str) -> bool:
        """Keep an object no more; whether there was one."""
        async with self._changing:
            if await self.get(kind, id) is None:
                return False
            await self._write(kind, id, None)
            return True

    async def _write(self, kind: str, id: str, document: Document | None) -> None:
        if self._partition is None:
            self._partition = (await self._state.open()).partitions[0]
            await self._partition.load()
        value = None
        if document is not None:
            value = json.dumps({**document._asdict(), "body": dict(document.body)}, ensure_ascii=False).encode()
            if len(value) > DOCUMENT_BYTES:
                raise DocumentsFull(f"the {kind} {id!r} takes {len(value)} bytes, and may have {DOCUMENT_BYTES}")
        key = json.dumps([kind, id], ensure_ascii=False).encode()
        await self._state.submit([self._state.write(self._partition, [(key, value)])])
        documents = self._documents.setdefault(kind, {})
        if document is None:
            documents.pop(id, None)
        else:
            documents[id] = document
        for call in self.on_changed:
            call(kind, id)
