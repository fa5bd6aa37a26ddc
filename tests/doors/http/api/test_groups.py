"""Groups over HTTP, of all protocols: lists, members, lag in messages and time, moves with previews, deletions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.doors.http.api.conftest import Served, serving

from headrace.broker.groups import Commit, JoinRequest, SyncRequest
from headrace.broker.groups.rocketmq_group import RocketMqMember
from headrace.broker.security import Operation, Resource
from headrace.broker.security.rules import allow
from headrace.format import records
from headrace.log.interface import Topic


async def committed(served: Served, group: str, topic: Topic, *offsets: int) -> None:
    served.broker.figures._looked = float("-inf")
    await served.broker.groups.commit(group, [Commit(topic.name, topic.id, n, at) for n, at in enumerate(offsets)])


async def listed(served: Served, query: str = "") -> tuple[list[str], int]:
    status, answer = await served.ask("GET", f"/v1/groups?{query}")
    assert status == 200, answer
    return [each["group"] for each in answer["groups"]], answer["total"]


@pytest.fixture
async def topic(served: Served) -> Topic:
    return await served.topic("t", 10, partitions=2)


async def joined(served: Served, group: str, assignment: bytes) -> str:
    """A member of the classic protocol that has an assignment."""
    request = JoinRequest(
        member_id="", protocol_type="consumer", protocols=(("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"),),
        session_timeout_ms=30_000, rebalance_timeout_ms=30_000, client_id="me", client_host="/127.0.0.1",
    )  # fmt: skip
    found = await served.broker.groups.join(group, request)
    member = found.member_id
    await served.broker.groups.sync(
        group, SyncRequest(member_id=member, generation=found.generation, assignments=((member, assignment),))
    )
    return member


async def test_lists(served: Served, topic: Topic):
    await committed(served, "behind", topic, 1, 2)
    await committed(served, "done", topic, 10, 10)
    await committed(served, "other", topic, 9, 10)
    assert await listed(served) == (["behind", "done", "other"], 3)
    assert await listed(served, "sort=lag&order=desc&limit=2") == (["behind", "other"], 3)
    assert await listed(served, "search=O&offset=1") == (["other"], 2)
    _, answer = await served.ask("GET", "/v1/groups?search=behind")
    (found,) = answer["groups"]
    assert (found["kind"], found["state"], found["lag"], found["topics"]) == ("classic", "Empty", 17, ["t"])


async def test_members_and_lag(served: Served, topic: Topic):
    topic.partitions[0].append(records.build([(1_000, None, b"old", [])]))
    await served.settled(topic)
    await committed(served, "g", topic, 10, 4)
    assignment = b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
    member = await joined(served, "g", assignment)
    status, answer = await served.ask("GET", "/v1/groups/g")
    assert status == 200
    assert (answer["state"], answer["members"], answer["lag"]) == ("Stable", 1, 7)
    (shown,) = answer["member_list"]
    assert (shown["client_id"], shown["partitions"]) == ("me", [{"topic": "t", "partition": 0}])
    first, second = answer["partition_list"]
    assert (first["committed"], first["end"], first["lag"], first["member_id"]) == (10, 11, 1, member)
    assert first["lag_ms"] > 1_000_000_000
    assert (second["lag"], second["member_id"]) == (6, None)
    assert (await served.ask("GET", "/v1/groups/none"))[1]["error"] == "UnknownGroup"
    # It is not moved or deleted under its members' feet.
    assert (await served.ask("POST", "/v1/groups/g/reset", {"to": "earliest"}))[1]["error"] == "GroupNotEmpty"
    assert (await served.ask("DELETE", "/v1/groups/g"))[1]["error"] == "GroupNotEmpty"
    assert (await served.ask("DELETE", "/v1/groups/g/topics/t"))[1]["error"] == "GroupNotEmpty"


async def test_a_group_of_rocketmq(served: Served, topic: Topic):
    member = RocketMqMember("c@1", "127.0.0.1:5", {}, lambda group: None)
    await served.broker.groups.rocketmq.join("g", member)
    status, answer = await served.ask("GET", "/v1/groups/g")
    assert (status, answer["kind"], answer["members"]) == (200, "rocketmq", 1)
    assert answer["member_list"][0]["client_id"] == "c@1"


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ("earliest", [0, 2]),
        ("latest", [10, 10]),
        ({"offset": 5}, [5, 5]),
        ({"offset": 1}, [1, 2]),
        ({"offset": 99}, [10, 10]),
        ({"shift": -3}, [1, 6]),
        ({"shift": 1}, [5, 10]),
        ({"time_ms": 1}, [0, 2]),
        ({"time_ms": 1 << 50}, [10, 10]),
    ],
)
async def test_a_move_is_shown_and_made(served: Served, topic: Topic, to: Any, after: list[int]):
    await topic.partitions[1].trim(2)
    await committed(served, "g", topic, 4, 9)
    path, body = "/v1/groups/g/reset", {"to": to, "topic": "t"}
    status, shown = await served.ask("POST", path, {**body, "dry_run": True})
    assert status == 200, shown
    assert [each["after"] for each in shown["partitions"]] == after
    assert [each["before"] for each in shown["partitions"]] == [4, 9]
    assert [each["change"] for each in shown["partitions"]] == [after[0] - 4, after[1] - 9]
    assert served.broker.groups.committed_now("g", topic) == {0: 4, 1: 9}
    status, made = await served.ask("POST", path, {"to": to})
    assert (status, made["partitions"]) == (200, shown["partitions"])
    assert served.broker.groups.committed_now("g", topic) == dict(enumerate(after))


async def test_a_move_of_some_partitions_and_of_a_new_group(served: Served, topic: Topic):
    body = {"to": {"offset": 3}, "topic": "t", "partitions": [1]}
    status, answer = await served.ask("POST", "/v1/groups/new/reset", body)
    assert status == 200
    assert [(each["partition"], each["before"], each["after"]) for each in answer["partitions"]] == [(1, None, 3)]
    assert served.broker.groups.committed_now("new", topic) == {1: 3}


@pytest.mark.parametrize(
    "to", [None, 5, "x", {}, {"offset": -1}, {"offset": 1, "shift": 1}, {"time_ms": "1"}, {"x": 1}]
)
async def test_what_is_no_target(served: Served, topic: Topic, to: Any):
    await committed(served, "g", topic, 4)
    status, answer = await served.ask("POST", "/v1/groups/g/reset", {"to": to})
    assert (status, answer["error"]) == (400, "BadRequest")


async def test_partitions_that_there_are_not(served: Served, topic: Topic):
    for wrong in ([2], ["0"], 0, [-1]):
        body = {"to": "latest", "topic": "t", "partitions": wrong}
        assert (await served.ask("POST", "/v1/groups/g/reset", body))[0] == 400
    assert (await served.ask("POST", "/v1/groups/g/reset", {"to": "latest", "topic": "none"}))[0] == 404
    assert (await served.ask("POST", "/v1/groups/none/reset", {"to": "latest"}))[0] == 404


async def test_deletions(served: Served, topic: Topic):
    other = await served.topic("u", 3)
    await committed(served, "g", topic, 1, 2)
    await committed(served, "g", other, 1)
    assert await served.ask("DELETE", "/v1/groups/g/topics/t") == (200, {"group": "g", "topic": "t", "deleted": 2})
    assert served.broker.groups.committed_now("g", topic) == {}
    assert served.broker.groups.committed_now("g", other) == {0: 1}
    assert await served.ask("DELETE", "/v1/groups/g") == (200, {"group": "g", "deleted": True})
    assert (await served.ask("DELETE", "/v1/groups/g"))[0] == 404


async def test_a_move_takes_a_right_on_the_topic(tmp_path: Path):
    async with serving(tmp_path, authorization="on") as closed:
        topic = await closed.topic("t", 3)
        await committed(closed, "g", topic, 1)
        group = allow("ANONYMOUS", Operation.READ, Resource.GROUP, "g")
        closed.broker.security.set_rules([group])
        for body in ({"to": "latest"}, {"to": "latest", "topic": "t"}, {"to": "latest", "topic": "none"}):
            assert (await closed.ask("POST", "/v1/groups/g/reset", body))[0] == 401
        assert await listed(closed) == (["g"], 1)
        closed.broker.security.set_rules([group, allow("ANONYMOUS", Operation.READ, Resource.TOPIC, "t")])
        assert (await closed.ask("POST", "/v1/groups/g/reset", {"to": "latest"}))[0] == 200
