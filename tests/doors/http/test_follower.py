"""The HTTP door in a group: what a follower answers itself, where it sends the rest, and what a deposed leader says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.doors.replicated import ReplicatedBroker, leading
from tests.waiting import SECONDS, until

from headrace.broker.membership import NodeView
from headrace.doors.door import DoorContext
from headrace.doors.http.door import HttpDoor
from headrace.doors.http.follower import HttpFollowerDoor


class Answer:
    """One response."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(door: HttpDoor, method: str, path: str, body: bytes = b"") -> Answer:
    reader, writer = await asyncio.open_connection(*door.address)
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    raw = await asyncio.wait_for(reader.read(), SECONDS)
    writer.close()
    return Answer(raw)


async def start(kind: type[HttpDoor], node: ReplicatedBroker) -> HttpDoor:
    door = kind(DoorContext(node.broker, node.config, node.config))  # type: ignore[arg-type]
    await door.start()
    return door


async def test_a_follower_tells_of_itself_and_sends_on_the_rest(tmp_path: Path) -> None:
    async with leading(tmp_path, http="127.0.0.1:0") as node:
        node.follow(2, 8)
        door = await start(HttpFollowerDoor, node)
        assert (await ask(door, "GET", "/healthz")).body == b"ok\n"
        assert (await ask(door, "GET", "/readyz")).status == 200
        metrics = await ask(door, "GET", "/metrics")
        assert (metrics.status, b"headrace_" in metrics.body) == (200, True)
        group = (await ask(door, "GET", "/v1/cluster")).json["group"]
        assert (group["role"], group["leader"], group["epoch"], group["isr"]) == ("follower", 2, 8, [1, 2, 3])
        assert group["nodes"]["3"]["addresses"]["kafka"] == "node3.test:9092"
        for method, path in (
            ("POST", "/v1/topics/rain/messages"),
            ("GET", "/v1/queues?limit=1&after=a%26b"),
            ("PUT", "/v1/topics/rain/queues/q%23ephemeral"),
            ("DELETE", "/v1/cluster/x"),
            ("GET", "/nothing"),
        ):
            answer = await ask(door, method, path, b"{}" if method == "POST" else b"")
            assert (answer.status, answer.headers["location"]) == (307, f"http://node2.test:9080{path}")
            assert answer.headers["headrace-leader"] == "http://node2.test:9080"
        for gone in ({"leader": None}, {"leader": 1}):
            node.group.change(**gone)
            answer = await ask(door, "GET", "/v1/queues")
            assert (answer.status, answer.headers["retry-after"], answer.json["error"]) == (503, "1", "NotLeading")
            assert "headrace-leader" not in answer.headers
        node.group.nodes[2] = NodeView(2, "", {"kafka": "node2.test:9092"})
        node.group.change(leader=2)
        assert (await ask(door, "GET", "/v1/queues")).status == 503, "the leader has no HTTP door"
        await door.stop()
        node.lead()


async def test_a_leader_tells_of_its_group(tmp_path: Path) -> None:
    async with leading(tmp_path, http="127.0.0.1:0") as node:
        door = await start(HttpDoor, node)
        node.group.change(lags={3: 1.25, 2: 0.0}, reaches_metadata=False)
        group = (await ask(door, "GET", "/v1/cluster")).json["group"]
        assert (group["role"], group["etcd_reached"]) == ("leader", False)
        assert group["lag_seconds"] == {"2": 0.0, "3": 1.25}
        await door.stop()


@pytest.mark.parametrize("knows", [True, False])
async def test_what_is_under_way_when_a_leader_is_deposed_is_to_be_sent_again(tmp_path: Path, knows: bool) -> None:
    async with leading(tmp_path, http="127.0.0.1:0") as node:
        await node.broker.topics.create("rain", 1)
        door = await start(HttpDoor, node)
        node.commits = False
        before = node.journal.flushed
        waits = asyncio.create_task(ask(door, "POST", "/topics/rain", b"a"))
        await until(lambda: node.journal.flushed > before)
        assert not waits.done()
        node.follow(2 if knows else None, 8)
        answer = await waits
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.headers.get("headrace-leader") == ("http://node2.test:9080" if knows else None)
        await door.stop()
        node.lead()


async def test_too_few_replicas(tmp_path: Path) -> None:
    async with leading(tmp_path, http="127.0.0.1:0") as node:
        await node.broker.topics.create("rain", 1)
        door = await start(HttpDoor, node)
        node.log.set_enough(False)
        answer = await ask(door, "POST", "/topics/rain", b"a")
        assert (answer.status, answer.headers["retry-after"], answer.json["error"]) == (503, "1", "NotEnoughReplicas")
        node.log.set_enough(True)
        assert (await ask(door, "POST", "/topics/rain", b"a")).status < 300
        await door.stop()
