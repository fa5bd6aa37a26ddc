"""Views come by the watch, and by reading where the watch hangs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.cluster.scripted import CUT, SILENT, header, kv, members
from tests.waiting import until

from headrace.cluster.errors import EtcdError
from headrace.cluster.etcd import View
from headrace.cluster.watcher import Watcher

NEVER = 40.0


class Store:
    """One key, and what becomes of watches: `events` holds what a watch brings, None for its end."""

    def __init__(self) -> None:
        self.value = "old"
        self.revision = 1
        self.hangs = False
        self.away = False
        self.watches = 0
        self.views: list[View] = []
        self.errors: list[EtcdError] = []

    def answer(self, path: str, body: dict[str, Any]) -> object:
        if self.away:
            return CUT
        if path == "/v3/watch":
            self.watches += 1
            return SILENT if self.hangs else STREAM
        return {"header": header(self.revision), "kvs": [kv("a/1", self.value, self.revision)]}

    def put(self, value: str) -> None:
        self.value, self.revision = value, self.revision + 1

    @property
    def seen(self) -> str:
        return self.views[-1].entries["a/1"].value.decode() if self.views else ""


def chunk(value: object) -> bytes:
    line = json.dumps({"result": value}).encode() + b"\n"
    return b"%x\r\n%b\r\n" % (len(line), line)


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk({"created": True}) + chunk({"events": [{}]})


@asynccontextmanager
async def watching(store: Store, poll_seconds: float) -> AsyncIterator[Watcher]:
    async with members(store.answer) as (etcd, _):
        watcher = Watcher(etcd, "a/", poll_seconds, store.views.append, store.errors.append)
        watcher.start()
        yield watcher
        await watcher.stop()


async def test_it_reads_at_once_and_when_it_is_asked_to() -> None:
    store = Store()
    store.hangs = True
    async with watching(store, NEVER) as watcher:
        await until(lambda: store.seen == "old")
        store.put("new")
        watcher.hurry()
        await until(lambda: store.seen == "new")


async def test_an_event_brings_a_read() -> None:
    store = Store()
    async with watching(store, NEVER):
        # One at the start, one when the watch stands or for its event: which of them fall together is not fixed.
        await until(lambda: len(store.views) >= 2)


async def test_a_watch_that_hangs_is_noticed_by_reading_and_begun_anew() -> None:
    store = Store()
    store.hangs = True
    async with watching(store, 0.02):
        await until(lambda: store.watches == 1 and store.seen == "old")
        store.put("new")
        await until(lambda: store.seen == "new" and store.watches == 2)


async def test_an_etcd_that_is_away_is_reported_and_comes_back() -> None:
    store = Store()
    store.away = True
    async with watching(store, 0.02):
        await until(lambda: len(store.errors) > 1)
        assert not store.views
        store.away = False
        await until(lambda: store.seen == "old")
