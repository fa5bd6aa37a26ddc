"""The coordinator on a real log: what is acknowledged is there after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.broker.groups.stage import join_request

from headrace.broker.groups import (
    Commit,
    Committer,
    GroupCoordinator,
    GroupListing,
    Joined,
    Leaver,
    Problem,
    State,
    SyncRequest,
    shards,
)
from headrace.broker.groups.group_codec import read_key
from headrace.broker.groups.shard import TOPIC
from headrace.broker.topics import Topics
from headrace.config import Config
from headrace.errors import StorageFailed
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import Topic
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from headrace.runtime.real import real_runtime


class Calendar:
    """A clock that can be moved."""

    def __init__(self) -> None:
        self.ahead = 0

    def now_ms(self) -> int:
        return 1_800_000_000_000 + self.ahead


class Node:
    """A log, its topics and a coordinator, which can be started again over the same data."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.config = Config(data=str(data), offsets_partitions=4, **settings)
        self.calendar = Calendar()
        self.runtime: Runtime
        self.log: NativeLog
        self.topics: Topics
        self.groups: GroupCoordinator

    async def start(self) -> Node:
        self.runtime = replace(real_runtime(self.config.data), clock=self.calendar)
        self.log = NativeLog(self.runtime, self.config)
        await self.log.start()
        self.topics = Topics(self.log, self.config)
        self.groups = GroupCoordinator(self.runtime, self.log, self.topics, self.config)
        await self.groups.start()
        return self

    async def stop(self) -> None:
        await self.groups.stop()
        await self.log.stop()
        self.runtime.offload.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def topic(self, name: str = "t", **config: str) -> Topic:
        return self.log.topics.get(name) or await self.topics.create(name, 2, config)

    async def commit(self, group: str, offset: int, partition: int = 0, **member: Any) -> Problem:
        topic = await self.topic()
        retention_ms = member.pop("retention_ms", -1)
        commits = [Commit("t", topic.id, partition, offset, 3, "m")]
        (problem,) = await self.groups.commit(group, commits, Committer(**member), retention_ms)
        return problem

    async def offset(self, group: str, partition: int = 0) -> int:
        problem, found = await self.groups.committed(group, {"t": [partition]})
        assert problem is Problem.NONE
        committed = found["t"][partition]
        return -1 if committed is None else committed.offset

    async def member(self, group: str = "g", **changes: Any) -> Joined:
        joined = await self.groups.join(group, join_request(**changes))
        assert joined.problem is Problem.NONE
        request = SyncRequest(
            member_id=joined.member_id, generation=joined.generation, assignments=((joined.member_id, b"mine"),)
        )
        assert (await self.groups.sync(group, request)).assignment == b"mine"
        return joined

    async def keys(self) -> list[tuple[Any, bool]]:
        """Every key of the internal topic, and whether the record is a tombstone."""
        found = []
        for partition in self.log.topics[TOPIC].partitions:
            if not partition.loaded:
                await partition.load()
            if partition.high_watermark == partition.start:
                continue
            chunk = partition.read(partition.start, 1 << 20)
            raw = chunk.read()
            chunk.release()
            for at, header in batches_in(raw):
                for _, _, key, value, _ in records.parse(raw[at : at + header.size], 1 << 20):
                    found.append((read_key(key or b""), value is None))
        return found


MakeNode = Callable[..., Awaitable[Node]]


@pytest.fixture
async def make_node(tmp_path: Path) -> AsyncIterator[MakeNode]:
    nodes: list[Node] = []

    async def make(**settings: Any) -> Node:
        nodes.append(await Node(tmp_path / "data", **settings).start())
        return nodes[-1]

    yield make
    for node in nodes:
        await node.stop()


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    return await make_node()


async def test_commit_survives_a_restart(node: Node) -> None:
    assert await node.offset("g") == -1
    assert TOPIC not in node.log.topics, "reading makes nothing"
    assert await node.commit("g", 42) is Problem.NONE
    assert await node.offset("g") == 42
    await node.restart()
    problem, found = await node.groups.committed("g", None)
    committed = found["t"][0]
    assert problem is Problem.NONE
    assert committed is not None
    assert (committed.offset, committed.leader_epoch, committed.metadata) == (42, 3, "m")
    assert await node.groups.list_groups() == (Problem.NONE, [GroupListing("g", "", State.EMPTY, "classic")])


async def test_members_go_on_after_a_restart(node: Node) -> None:
    joined = await node.member()
    await node.restart()
    assert await node.groups.heartbeat("g", joined.member_id, None, joined.generation) is Problem.NONE
    _, group = await node.groups.describe("g")
    assert group is not None
    assert (group.state, group.protocol_name, group.members[0].assignment) == (State.STABLE, "range", b"mine")
    assert await node.commit("g", 7, member_id=joined.member_id, generation=joined.generation) is Problem.NONE
    assert await node.groups.leave("g", [Leaver(joined.member_id)]) == (Problem.NONE, [Problem.NONE])
    await node.restart()
    _, group = await node.groups.describe("g")
    assert group is not None
    assert (group.state, group.members) == (State.EMPTY, ())


async def test_many_groups_come_back(node: Node) -> None:
    await node.topic()
    names = [f"group-{number}" for number in range(300)]
    assert set(await asyncio.gather(*(node.commit(name, 5) for name in names))) == {Problem.NONE}
    await asyncio.gather(*(node.commit(name, 6, 1) for name in names))
    await node.restart()
    assert {await node.offset(name) for name in names} == {5}
    assert {await node.offset(name, 1) for name in names} == {6}
    _, listed = await node.groups.list_groups()
    assert len(listed) == 300


async def test_groups_come_back_from_several_segments(node: Node) -> None:
    for week in range(3):
        node.calendar.ahead = week * 8 * 24 * 3600 * 1000
        assert await node.commit("g", week, 0) is Problem.NONE
        assert await node.commit("g", 10 + week, 1) is Problem.NONE
        await node.restart()
    partition = next(each for each in node.log.topics[TOPIC].partitions if each.end)
    assert len(list((Path(node.config.data) / f"{TOPIC}-{partition.index}").glob("*.log"))) > 1
    assert (await node.offset("g"), await node.offset("g", 1)) == (2, 12)


async def test_refused_commits(node: Node) -> None:
    assert await node.commit("g", 1, generation=4) is Problem.GROUP_ID_NOT_FOUND
    joined = await node.member()
    assert await node.commit("g", 1) is Problem.UNKNOWN_MEMBER_ID
    assert await node.commit("g", 1, member_id=joined.member_id, generation=9) is Problem.ILLEGAL_GENERATION
    topic = await node.topic()
    long = Commit("t", topic.id, 0, 1, metadata="x" * 5_000)
    fine = Commit("t", topic.id, 1, 1)
    answers = await node.groups.commit("s", [long, fine])
    assert answers == [Problem.OFFSET_METADATA_TOO_LARGE, Problem.NONE]
    assert await node.offset("s") == -1


async def test_joins_are_judged(node: Node) -> None:
    async def problem(group: str, **changes: Any) -> Problem:
        return (await node.groups.join(group, join_request(**changes))).problem

    assert await problem("") is Problem.INVALID_GROUP_ID
    assert await problem("x" * 9_000) is Problem.INVALID_GROUP_ID
    assert await problem("g", session_timeout_ms=5) is Problem.INVALID_SESSION_TIMEOUT
    assert await problem("g", client_id="x" * 9_000) is Problem.INVALID_REQUEST
    assert await problem("g", member_id="m") is Problem.UNKNOWN_MEMBER_ID
    assert await problem("g", protocols=()) is Problem.INCONSISTENT_GROUP_PROTOCOL
    assert (await node.groups.list_groups())[1] == [], "refused joins leave no groups behind"


async def test_delete_group(node: Node) -> None:
    assert await node.groups.delete("g") is Problem.GROUP_ID_NOT_FOUND
    joined = await node.member()
    await node.commit("g", 7, member_id=joined.member_id, generation=1)
    assert await node.groups.delete("g") is Problem.NON_EMPTY_GROUP
    await node.groups.leave("g", [Leaver(joined.member_id)])
    assert await node.groups.delete("g") is Problem.NONE
    assert await node.offset("g") == -1
    await node.restart()
    assert await node.offset("g") == -1
    assert (await node.groups.list_groups())[1] == []


async def test_delete_takes_a_commit_on_its_way_along(node: Node) -> None:
    await node.commit("g", 1)
    commit = asyncio.create_task(node.commit("g", 2, 1))
    await asyncio.sleep(0)
    assert await node.groups.delete("g") is Problem.NONE
    assert await commit is Problem.NONE
    await node.restart()
    assert (await node.offset("g"), await node.offset("g", 1)) == (-1, -1)


async def test_delete_offsets(node: Node) -> None:
    subscription = bytes.fromhex("0000" + "00000001" + "000174" + "ffffffff")
    joined = await node.member(protocols=(("range", subscription),))
    await node.commit("g", 7, member_id=joined.member_id, generation=1)
    other = await node.topics.create("u", 1)
    await node.groups.commit("g", [Commit("u", other.id, 0, 9)], Committer(joined.member_id, generation=1))
    problem, answers = await node.groups.delete_offsets("g", [("t", 0), ("u", 0)])
    assert (problem, answers) == (Problem.NONE, [Problem.GROUP_SUBSCRIBED_TO_TOPIC, Problem.NONE])
    await node.restart()
    _, found = await node.groups.committed("g", None)
    assert list(found) == ["t"]
    assert (await node.groups.delete_offsets("nobody", [("t", 0)]))[0] is Problem.GROUP_ID_NOT_FOUND


async def test_deleted_topic_takes_its_offsets_along(node: Node) -> None:
    await node.commit("warm", 7)
    await node.topics.delete("t")
    await node.topic()
    assert await node.offset("warm") == -1, "a new topic of the same name is another topic"
    await node.groups.expire()
    await node.restart()
    assert (await node.groups.list_groups())[1] == []


async def test_a_commit_on_its_way_outlives_the_offset_of_the_topic_before(node: Node) -> None:
    await node.commit("g", 7)
    # All shards are warm, so that nothing is waited for below.
    await node.groups.list_groups()
    await node.topics.delete("t")
    await node.topic()
    commit = asyncio.create_task(node.commit("g", 1))
    await asyncio.sleep(0)
    await node.groups.expire()
    assert await commit is Problem.NONE
    assert await node.offset("g") == 1
    await node.restart()
    assert await node.offset("g") == 1


async def test_offsets_of_a_topic_deleted_while_cold_get_tombstones(node: Node) -> None:
    await node.commit("cold", 7)
    await node.restart()
    await node.topics.delete("t")
    await node.topic()
    assert await node.offset("cold") == -1
    await node.restart()
    assert (read_key(b"\0\1\0\4cold\0\1t\0\0\0\0"), True) in await node.keys()


async def test_simple_groups_expire_by_commit(node: Node) -> None:
    week = node.config.offsets_retention_ms
    await node.commit("g", 1)
    node.calendar.ahead += week - 1
    await node.commit("g", 2, 1)
    await node.groups.expire()
    assert (await node.offset("g"), await node.offset("g", 1)) == (1, 2)
    node.calendar.ahead += 1
    await node.groups.expire()
    assert (await node.offset("g"), await node.offset("g", 1)) == (-1, 2)
    node.calendar.ahead += week
    await node.groups.expire()
    await node.restart()
    assert (await node.groups.list_groups())[1] == []


async def test_groups_expire_by_emptiness(node: Node) -> None:
    week = node.config.offsets_retention_ms
    joined = await node.member()
    await node.commit("g", 1, member_id=joined.member_id, generation=1)
    node.calendar.ahead += 10 * week
    await node.groups.expire()
    assert await node.offset("g") == 1, "a member that cannot be asked what it reads keeps everything"
    await node.groups.leave("g", [Leaver(joined.member_id)])
    node.calendar.ahead += week - 1
    await node.restart()
    await node.groups.expire()
    assert await node.offset("g") == 1
    node.calendar.ahead += 1
    await node.groups.expire()
    assert await node.groups.describe("g") == (Problem.NONE, None)


async def test_retention_of_old_clients(node: Node) -> None:
    await node.commit("g", 1, retention_ms=1_000)
    await node.commit("g", 1, 1)
    await node.restart()
    node.calendar.ahead += 1_000
    await node.groups.expire()
    assert (await node.offset("g"), await node.offset("g", 1)) == (-1, 1)


async def test_storage_that_fails_is_said_and_leaves_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.commit("g", 1)
    (shard,) = [each for each in node.groups._shards.all if "g" in each.groups]

    def refuse(*_: object) -> None:
        raise StorageFailed("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(type(shard.partition), "append", refuse)
        assert await node.commit("g", 2) is Problem.COORDINATOR_NOT_AVAILABLE
        assert await node.groups.delete("g") is Problem.COORDINATOR_NOT_AVAILABLE
    assert await node.offset("g") == 1
    assert await node.commit("g", 3) is Problem.NONE


async def test_the_last_member_has_left_when_that_is_durable(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = await node.member()
    (shard,) = [each for each in node.groups._shards.all if "g" in each.groups]
    assert shard.partition is not None
    end = shard.partition.end
    assert await node.groups.leave("g", [Leaver(joined.member_id)]) == (Problem.NONE, [Problem.NONE])
    assert shard.partition.high_watermark == shard.partition.end == end + 1
    joined = await node.member()

    def refuse(*_: object) -> None:
        raise StorageFailed("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(type(shard.partition), "append", refuse)
        left = await node.groups.leave("g", [Leaver(joined.member_id)])
        assert left == (Problem.COORDINATOR_NOT_AVAILABLE, [Problem.NONE])
    again = await node.groups.leave("g", [Leaver(joined.member_id)])
    assert again[1] == [Problem.UNKNOWN_MEMBER_ID]
    await node.member()


async def test_load_that_takes_long_is_said(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = await node.member()
    await node.restart()
    await node.groups.list_groups()
    (shard,) = [each for each in node.groups._shards.all if "g" in each.groups]
    shard.ready = False

    async def never() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(shards, "LOAD_SECONDS", 0.01)
    monkeypatch.setattr(shard._loading, "_load", never)
    assert (await node.groups.committed("g", None))[0] is Problem.COORDINATOR_LOAD_IN_PROGRESS
    assert await node.groups.heartbeat("g", joined.member_id, None, 1) is Problem.NONE


async def test_stop_answers_who_waits(node: Node) -> None:
    await node.member()
    waiting = asyncio.create_task(node.groups.join("g", join_request()))
    await asyncio.sleep(0.01)
    await node.groups.stop()
    assert (await waiting).problem is Problem.COORDINATOR_NOT_AVAILABLE
    assert (await node.groups.join("g", join_request())).problem is Problem.COORDINATOR_NOT_AVAILABLE


async def test_connection_that_goes_leaves_its_member_in_place(node: Node) -> None:
    first = await node.member()
    waiting = asyncio.create_task(node.groups.join("g", join_request()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    again = await node.groups.join("g", join_request(first.member_id))
    assert len(again.members) == 2


async def test_offset_beyond_what_an_unclean_start_left_is_cut_back(node: Node) -> None:
    topic = await node.topic()
    await topic.partitions[0].load()
    topic.partitions[0].append(records.build([(0, None, b"x", [])] * 10))
    await node.commit("g", 10)
    await node.commit("g", 99, 1)
    node.log.epoch += 1  # as an unclean start would
    for partition in topic.partitions:
        await node.log.local(partition).raise_epoch(node.log.epoch)
    topic.partitions[0].append(records.build([(0, None, b"x", [])] * 200))
    assert await node.offset("g") == 10
    assert await node.offset("g", 1) == 0, "the log of partition 1 ends at 0"
    assert await node.commit("g", 50, 1) is Problem.NONE
    assert await node.offset("g", 1) == 50, "in the same epoch a consumer may commit what it likes"


async def test_memory_topic_starts_again_after_a_restart(node: Node) -> None:
    await node.topic(durability="memory")
    await node.commit("g", 10)
    await node.restart()
    assert await node.offset("g") == 0
