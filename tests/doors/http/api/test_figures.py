"""Figures over HTTP: in pages, as deltas, after a restart; and the overview."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.doors.http.api.conftest import Served, serving

from headrace.broker.security import Operation, Resource
from headrace.broker.security.rules import allow
from headrace.format import records


class Watcher:
    """Keeps what a console would."""

    def __init__(self, served: Served, limit: int = 1_000, kinds: str = "") -> None:
        self.served = served
        self.limit = limit
        self.kinds = kinds
        self.version = ""
        self.rows: dict[tuple[str, ...], list[Any]] = {}
        self.pages = 0
        self.anew = 0

    async def watch(self) -> dict[tuple[str, ...], list[Any]]:
        """The rows that have changed since the last time."""
        self.served.broker.figures._looked = float("-inf")
        changed: dict[tuple[str, ...], list[Any]] = {}
        more = True
        while more:
            path = f"/v1/figures?since={quote(self.version)}&limit={self.limit}&kinds={self.kinds}"
            status, page = await self.served.ask("GET", path)
            assert status == 200, page
            self.pages += 1
            if page["full"]:
                self.rows.clear()
                self.anew += 1
            for kind, rows in page["rows"].items():
                count = page["names"][kind]
                for row in rows:
                    changed[kind, *row[:count]] = row[count:]
            for kind, names in page["gone"].items():
                for each in names:
                    self.rows.pop((kind, *each))
            self.version, more = page["version"], page["more"]
        self.rows |= changed
        return changed


async def test_pages_and_deltas(served: Served):
    for number in range(25):
        await served.topic(f"t{number}", 1)
    watcher = Watcher(served, limit=10, kinds="topics")
    await watcher.watch()
    assert set(watcher.rows) == {("topics", f"t{number}") for number in range(25)}
    assert watcher.pages == 3
    assert await watcher.watch() == {}
    topic = served.broker.topics.existing("t7")
    topic.partitions[0].append(records.build([(0, None, b"x", [])]))
    await served.settled(topic)
    await served.broker.topics.delete("t9")
    assert set(await watcher.watch()) == {("topics", "t7")}
    assert ("topics", "t9") not in watcher.rows
    assert watcher.anew == 1


async def test_a_restart_begins_anew(served: Served):
    await served.topic("t", 1)
    watcher = Watcher(served)
    await watcher.watch()
    await served.restart()
    await watcher.watch()
    assert watcher.anew == 2
    assert ("topics", "t") in watcher.rows


async def test_what_is_no_kind(served: Served):
    status, answer = await served.ask("GET", "/v1/figures?kinds=topics,x")
    assert (status, answer["error"]) == (400, "BadRequest")
    assert "'x'" in answer["message"]


async def test_only_what_may_be_described_is_shown(tmp_path):
    async with serving(tmp_path, authorization="on") as closed:
        for name in ("mine", "other"):
            await closed.topic(name, 1)
            await closed.broker.queues.ensure(closed.broker.topics.existing(name), "q")
            await closed.broker.queues.open(closed.broker.queues.of(name)["q"])
        closed.broker.security.set_rules([allow("ANONYMOUS", Operation.DESCRIBE, Resource.TOPIC, "mine")])
        watcher = Watcher(closed)
        await watcher.watch()
        assert set(watcher.rows) == {("topics", "mine")}
        closed.broker.security.set_rules(
            [allow("ANONYMOUS", Operation.DESCRIBE, Resource.CLUSTER, "kafka-cluster"),
             allow("ANONYMOUS", Operation.DESCRIBE, Resource.QUEUE, "other/q")]
        )  # fmt: skip
        watcher = Watcher(closed)
        await watcher.watch()
        assert {key[0] for key in watcher.rows} == {"node", "doors", "apis", "queues"}
        assert [key for key in watcher.rows if key[0] == "queues"] == [("queues", "other", "q")]


async def test_the_overview(served: Served):
    await served.topic("t", 3)
    status, answer = await served.ask("GET", "/v1/overview")
    assert status == 200
    assert answer["node"]["topics"] == 1
    assert answer["problems"] == []
    assert answer["rates"]["messages_in"] is None
