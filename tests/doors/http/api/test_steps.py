"""However much there is, a request lets others have the loop after a part of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.doors.http.api.conftest import Served, serving

from headrace.broker import exposition, steps
from headrace.broker.groups import Commit
from headrace.doors.http.api import listing
from headrace.doors.http.api.handlers import figures
from headrace.doors.http.api.responses import PAGE_STEP_BYTES

COUNT = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steps")


@pytest.fixture
async def many(folder: Path) -> AsyncIterator[Served]:
    """Topics, a queue of each, and groups; made once."""
    async with serving(folder) as served:
        if not served.broker.topics.all:
            for number in range(COUNT):
                topic = await served.broker.topics.create(f"topic-{number:03}", 1)
                await served.broker.queues.ensure(topic, "queue")
                await served.broker.groups.commit(f"group-{number:03}", [Commit(topic.name, topic.id, 0, 0)])
            await served.broker.topics.create("wide", 500)
        yield served


@pytest.mark.parametrize(
    ("path", "least"),
    [
        ("/v1/figures?kinds=topics,queues,groups", 3 * COUNT // figures.STEP_ROWS),
        ("/v1/topics?limit=1000", 2 * COUNT // listing.STEP),
        ("/v1/topics?search=99&sort=bytes", COUNT // listing.STEP),
        ("/v1/topics/wide", 0),
        ("/v1/groups?limit=1000", 2 * COUNT // listing.STEP),
        ("/v1/queues", 2 * COUNT // listing.STEP),
        ("/v1/queues?limit=1&sort=depth", COUNT // listing.STEP),
        ("/v1/dead-letters", COUNT // steps.STEP_ITEMS),
    ],
)
async def test_it_takes_turns(many: Served, monkeypatch: pytest.MonkeyPatch, path: str, least: int):
    await many.broker.figures.renew()
    monkeypatch.setattr(many.broker.figures, "_interval", 1_000.0)
    turns = 0
    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        nonlocal turns
        turns += not seconds
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", counted)
    status, answer = await many.ask("GET", path)
    assert status == 200, answer
    size = int(many.last_headers["Content-Length"])
    if "limit=1&" not in path and "figures" not in path:
        least += size // (2 * PAGE_STEP_BYTES)
    assert turns >= max(least, 1), (turns, size)


async def test_a_scrape_takes_turns(many: Served, monkeypatch: pytest.MonkeyPatch):
    turns = 0
    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        nonlocal turns
        turns += not seconds
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", counted)
    address = many.server.addresses["http"]
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(b"GET /metrics?partitions=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    text = await reader.read()
    writer.close()
    assert text.startswith(b"HTTP/1.1 200")
    assert turns >= text.count(b"\n") // exposition.STEP_LINES - 1
