"""Transactions by single frames, in both generations of the protocol: what is answered, and what readers see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.device import Device
from tests.doors.kafka.wired import Wire, batch_of, fetch_fields, open_door, produce_fields
from tests.waiting import until

from headrace.broker.transactions import Status, coordinator
from headrace.broker.transactions.store import TOPIC, Store
from headrace.doors.kafka.door import KafkaDoor
from headrace.errors import PartitionOffline, StorageFailed
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import Topic

FIRST, SECOND = 1, 2
"""Generations: partitions are added by the client; or by the broker, with a new epoch for each transaction."""
PRODUCE = {FIRST: 11, SECOND: 12}
END = {FIRST: 4, SECOND: 5}
OFFSETS = {FIRST: 4, SECOND: 5}
TRANSACTIONAL = 0x10


class TransactionalClient:
    """A producer with a transactional id."""

    def __init__(self, wire: Wire, generation: int, name: str = "payments") -> None:
        self.wire = wire
        self.generation = generation
        self.name = name
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self, timeout: int = 10_000, **known: int) -> ErrorCode:
        reply = await self.wire.ask(
            "init_producer_id", 5, transactional_id=self.name, transaction_timeout=timeout, **known
        )
        if reply.error_code is ErrorCode.none:
            self.take(reply)
        return ErrorCode(reply.error_code)

    def take(self, reply: Any) -> None:
        if (reply.producer_id, reply.producer_epoch) != (self.producer_id, self.epoch):
            self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch
            self.sequences.clear()

    @property
    def who(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    async def add(self, *places: tuple[str, int]) -> list[ErrorCode]:
        topics: dict[str, list[int]] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(index)
        reply = await self.wire.ask(
            "add_partitions_to_txn",
            3,
            **{f"v3_and_below_{name}": value for name, value in self.who.items()},
            v3_and_below_topics=[{"name": name, "partitions": indexes} for name, indexes in topics.items()],
        )
        return [
            ErrorCode(each.partition_error_code)
            for topic in reply.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        ]

    def batch(self, topic: Topic, index: int, *values: bytes) -> bytes:
        place = (topic.name, index)
        sequence = self.sequences.get(place, 0)
        self.sequences[place] = sequence + len(values)
        return batch_of(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )

    async def send(self, topic: Topic, index: int, *values: bytes) -> ErrorCode:
        batch = self.batch(topic, index, *values)
        version = PRODUCE[self.generation]
        reply = await self.wire.produce(version, topic, batch, index, transactional_id=self.name)
        return ErrorCode(reply.error_code)

    async def write(self, topic: Topic, index: int, *values: bytes) -> None:
        """Send, after what this generation asks for before it."""
        if self.generation == FIRST:
            assert await self.add((topic.name, index)) == [ErrorCode.none]
        assert await self.send(topic, index, *values) is ErrorCode.none

    async def commit_offset(self, group: str, topic: Topic, index: int, offset: int, **member: Any) -> ErrorCode:
        if self.generation == FIRST:
            reply = await self.wire.ask("add_offsets_to_txn", 4, **self.who, group_id=group)
            if reply.error_code is not ErrorCode.none:
                return ErrorCode(reply.error_code)
        partition = {
            "partition_index": index,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {"generation_id": -1, "member_id": "", "group_instance_id": None, **member}
        reply = await self.wire.ask(
            "txn_offset_commit",
            OFFSETS[self.generation],
            **self.who,
            group_id=group,
            topics=[{"name": topic.name, "partitions": [partition]}],
            **fields,
        )
        return ErrorCode(reply.topics[0].partitions[0].error_code)

    async def end(self, commit: bool) -> ErrorCode:
        reply = await self.wire.ask("end_txn", END[self.generation], **self.who, committed=commit)
        if reply.error_code is ErrorCode.none and self.generation == SECOND:
            self.take(reply)
        return ErrorCode(reply.error_code)


async def fetched(wire: Wire, topic: Topic, index: int = 0, *, committed: bool = True) -> tuple[list[bytes], int]:
    """The values that a client would give to its application, and the last stable offset."""
    reads = (topic, index, topic.partitions[index].start)
    reply = await wire.ask("fetch", 12, **fetch_fields(reads, min_bytes=0, isolation_level=int(committed)))
    [answer] = reply.responses[0].partitions
    assert answer.error_code is ErrorCode.none
    waiting = sorted((each.first_offset, each.producer_id) for each in answer.aborted_transactions or ())
    dropped: set[int] = set()
    values = []
    raw = bytes(answer.records or b"")
    for at, header in batches_in(raw):
        while waiting and waiting[0][0] <= header.last_offset:
            dropped.add(waiting.pop(0)[1])
        if header.is_control:
            dropped.discard(header.producer_id)
        elif not (committed and header.is_transactional and header.producer_id in dropped):
            values += [value for _, _, _, value, _ in records.parse(raw[at : at + header.size], 1 << 20)]
    return values, answer.last_stable_offset


async def committed_offset(wire: Wire, group: str, topic: Topic, *, stable: bool = True) -> tuple[ErrorCode, int]:
    reply = await wire.ask(
        "offset_fetch",
        7,
        group_id=group,
        topics=[{"name": topic.name, "partition_indexes": [0]}],
        require_stable=stable,
    )
    [answer] = reply.topics[0].partitions
    return ErrorCode(answer.error_code), answer.committed_offset


async def commit_plainly(wire: Wire, group: str, offset: int) -> ErrorCode:
    """Commit an offset of the topic's first partition outside of any transaction."""
    place = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "", "committed_leader_epoch": -1}
    reply = await wire.ask(
        "offset_commit",
        7,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": "rain", "partitions": [place]}],
    )
    return ErrorCode(reply.topics[0].partitions[0].error_code)


@asynccontextmanager
async def stage(
    data: Path | Device, partitions: int = 2, **settings: Any
) -> AsyncIterator[tuple[KafkaDoor, Wire, Topic]]:
    async with open_door(data, **settings) as door, await Wire.open(door) as wire:
        topic = door.broker.topics.get("rain") or await door.broker.topics.create("rain", partitions)
        for partition in topic.partitions:
            await partition.load()
        yield door, wire, topic


generations = pytest.mark.parametrize("generation", [FIRST, SECOND])
durabilities = pytest.mark.parametrize("durability", ["sync", "async", "memory"])


@generations
@durabilities
async def test_what_commits_is_seen_and_what_aborts_is_not(tmp_path: Path, generation: int, durability: str) -> None:
    async with stage(tmp_path, durability=durability) as (_, wire, topic):
        producer = TransactionalClient(wire, generation)
        assert await producer.init() is ErrorCode.none
        await producer.write(topic, 0, b"a", b"b")
        await producer.write(topic, 1, b"c")
        assert await fetched(wire, topic) == ([], 0)
        assert (await fetched(wire, topic, committed=False))[0] == [b"a", b"b"]
        assert await producer.end(commit=True) is ErrorCode.none
        assert await fetched(wire, topic) == ([b"a", b"b"], 3)
        assert await fetched(wire, topic, 1) == ([b"c"], 2)
        await producer.write(topic, 0, b"d")
        assert await producer.end(commit=False) is ErrorCode.none
        assert await fetched(wire, topic) == ([b"a", b"b"], 5)
        await producer.write(topic, 0, b"e")
        assert await producer.end(commit=True) is ErrorCode.none
        assert await fetched(wire, topic) == ([b"a", b"b", b"e"], 7)
        assert (await fetched(wire, topic, committed=False))[0] == [b"a", b"b", b"d", b"e"]


@generations
async def test_an_end_that_is_asked_for_again_gets_the_same_answer(tmp_path: Path, generation: int) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, generation)
        await producer.init()
        await producer.write(topic, 0, b"a")
        before = producer.producer_id, producer.epoch
        assert await producer.end(commit=True) is ErrorCode.none
        after = producer.producer_id, producer.epoch
        assert (after != before) == (generation == SECOND)
        producer.producer_id, producer.epoch = before
        assert await producer.end(commit=True) is ErrorCode.none
        assert (producer.producer_id, producer.epoch) == after
        # The other way round is no repetition.
        producer.producer_id, producer.epoch = before
        assert await producer.end(commit=False) is ErrorCode.invalid_txn_state
        assert await fetched(wire, topic) == ([b"a"], 2)


@generations
async def test_an_end_of_nothing(tmp_path: Path, generation: int) -> None:
    async with stage(tmp_path) as (_, wire, _):
        producer = TransactionalClient(wire, generation)
        await producer.init()
        assert await producer.end(commit=True) is ErrorCode.invalid_txn_state
        # A client of the second generation cannot know whether its first batch has arrived.
        wanted = ErrorCode.invalid_txn_state if generation == FIRST else ErrorCode.none
        assert await producer.end(commit=False) is wanted


@generations
async def test_who_comes_later_fences_the_one_before(tmp_path: Path, generation: int) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        old, new = TransactionalClient(wire, generation), TransactionalClient(wire, generation)
        await old.init()
        await old.write(topic, 0, b"half")
        assert await new.init() is ErrorCode.none
        assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 1)
        # What the old one left open is aborted, and it can do nothing any more.
        assert (await fetched(wire, topic))[1] == topic.partitions[0].high_watermark
        assert await old.send(topic, 0, b"late") is ErrorCode.invalid_producer_epoch
        assert await old.send(topic, 1, b"late") is ErrorCode.invalid_producer_epoch
        assert await old.add(("rain", 1)) == [ErrorCode.producer_fenced]
        assert await old.commit_offset("g", topic, 0, 5) in (
            ErrorCode.producer_fenced,
            ErrorCode.invalid_producer_epoch,
        )
        assert await old.end(commit=True) is not ErrorCode.none
        await new.write(topic, 0, b"whole")
        assert await new.end(commit=True) is ErrorCode.none
        assert (await fetched(wire, topic))[0] == [b"whole"]


@generations
async def test_offsets_count_when_the_transaction_commits(tmp_path: Path, generation: int) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, generation)
        await producer.init()
        for commit, offset, wanted in ((True, 7, 7), (False, 9, 7), (True, 11, 11)):
            assert await producer.commit_offset("readers", topic, 0, offset) is ErrorCode.none
            assert await committed_offset(wire, "readers", topic) == (ErrorCode.unstable_offset_commit, -1)
            assert (await committed_offset(wire, "readers", topic, stable=False))[1] != offset
            assert await producer.end(commit) is ErrorCode.none
            assert await committed_offset(wire, "readers", topic) == (ErrorCode.none, wanted)


@generations
async def test_a_plain_commit_after_the_transactions_own_stays(tmp_path: Path, generation: int) -> None:
    for restart in (False, True):
        data = tmp_path / str(restart)
        async with stage(data) as (_, wire, topic):
            producer = TransactionalClient(wire, generation)
            await producer.init()
            assert await producer.commit_offset("readers", topic, 0, 7) is ErrorCode.none
            assert await commit_plainly(wire, "readers", 20) is ErrorCode.none
            if not restart:
                assert await producer.end(commit=True) is ErrorCode.none
                assert await committed_offset(wire, "readers", topic) == (ErrorCode.none, 20)
        if restart:
            async with stage(data) as (_, wire, topic):
                producer.wire = wire
                assert await producer.end(commit=True) is ErrorCode.none
                assert await committed_offset(wire, "readers", topic) == (ErrorCode.none, 20)


@generations
async def test_a_plain_commit_after_a_restart_is_later_than_the_transactions_own(
    tmp_path: Path, generation: int
) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, generation)
        await producer.init()
        for offset in (6, 7):
            assert await producer.commit_offset("readers", topic, 0, offset) is ErrorCode.none
    async with stage(tmp_path) as (_, wire, topic):
        producer.wire = wire
        assert await commit_plainly(wire, "readers", 20) is ErrorCode.none
        assert await producer.end(commit=True) is ErrorCode.none
        assert await committed_offset(wire, "readers", topic) == (ErrorCode.none, 20)


@generations
@pytest.mark.parametrize("restart", [False, True])
async def test_of_two_transactions_the_later_word_holds(tmp_path: Path, generation: int, restart: bool) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        early, late = TransactionalClient(wire, generation, "early"), TransactionalClient(wire, generation, "late")
        for producer, offset in ((early, 5), (late, 7)):
            await producer.init()
            assert await producer.commit_offset("readers", topic, 0, offset) is ErrorCode.none
        assert await late.end(commit=True) is ErrorCode.none
        assert await early.end(commit=True) is ErrorCode.none
        if not restart:
            assert await committed_offset(wire, "readers", topic) == (ErrorCode.none, 7)
    if restart:
        async with stage(tmp_path) as (_, wire, topic):
            assert await committed_offset(wire, "readers", topic) == (ErrorCode.none, 7)


@generations
async def test_offsets_that_are_refused_leave_those_before_them(tmp_path: Path, generation: int) -> None:
    async with stage(tmp_path) as (door, wire, topic):
        producer = TransactionalClient(wire, generation)
        await producer.init()
        assert await producer.commit_offset("readers", topic, 0, 5) is ErrorCode.none
        entry = door.broker.transactions._store.entries["payments"]
        # As a request that was late on its way finds it: the end is just being written.
        entry.busy = True
        assert await producer.commit_offset("readers", topic, 0, 4) is ErrorCode.concurrent_transactions
        entry.busy = False
        assert await producer.end(commit=True) is ErrorCode.none
        assert await committed_offset(wire, "readers", topic) == (ErrorCode.none, 5)


@generations
async def test_offsets_whose_flush_fails_leave_those_before_them(device: Device, generation: int) -> None:
    async with stage(device) as (_, wire, topic):
        producer = TransactionalClient(wire, generation)
        await producer.init()
        assert await producer.commit_offset("readers", topic, 0, 5) is ErrorCode.none
        with device.fail():
            code = await producer.commit_offset("readers", topic, 0, 6)
        assert code is ErrorCode.coordinator_not_available
        assert await committed_offset(wire, "readers", topic) == (ErrorCode.unstable_offset_commit, -1)
        assert await producer.end(commit=True) is ErrorCode.none
        assert await committed_offset(wire, "readers", topic) == (ErrorCode.none, 5)


async def test_offsets_that_are_refused_leave_no_group_behind(tmp_path: Path) -> None:
    async with stage(tmp_path) as (door, wire, topic):
        producer = TransactionalClient(wire, FIRST)
        await producer.init()
        assert await producer.commit_offset("known", topic, 0, 5) is ErrorCode.none
        assert await producer.end(commit=True) is ErrorCode.none
        entry = door.broker.transactions._store.entries["payments"]
        entry.busy = True
        for group in ("known", "new"):
            assert await producer.commit_offset(group, topic, 0, 6) is ErrorCode.concurrent_transactions
        entry.busy = False
        assert await producer.end(commit=True) is ErrorCode.none
        assert not any(shard.waiting for shard in door.broker.groups._shards.all)
        reply = await wire.ask("delete_groups", 2, groups_names=["known", "new"])
        assert [each.error_code for each in reply.results] == [ErrorCode.none, ErrorCode.group_id_not_found]


@pytest.mark.parametrize("late", [False, True])
async def test_a_partition_that_comes_while_a_new_producer_id_is_fetched_is_ended_too(
    tmp_path: Path, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path) as (door, wire, topic), await Wire.open(door) as other:
        transactions = door.broker.transactions
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        entry = transactions._store.entries["payments"]
        assert entry.now is not None
        entry.now = entry.sure = type(entry.now)(producer.producer_id, 32_766, 10_000, entry.now.updated_ms)
        producer.epoch = 32_766
        producer.sequences.clear()
        await producer.write(topic, 0, b"a")
        asked, go_on = asyncio.Event(), asyncio.Event()
        take = door.broker.producer_ids.next

        async def slowly() -> int:
            asked.set()
            await go_on.wait()
            return await take()

        monkeypatch.setattr(type(door.broker.producer_ids), "next", lambda _: slowly())
        state = entry.now
        ending = asyncio.create_task(
            transactions._time_out("payments", state)
            if late
            else transactions.end("payments", producer.producer_id, 32_766, False, SECOND)
        )
        await asked.wait()
        producer.wire = other
        await producer.send(topic, 1, b"b")
        go_on.set()
        await ending
        assert await fetched(other, topic, 0) == ([], 2)
        assert await fetched(other, topic, 1) in [([], 0), ([], 2)]
        assert topic.partitions[1].last_stable == topic.partitions[1].end


@generations
async def test_a_transaction_goes_on_after_a_restart(tmp_path: Path, generation: int) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, generation)
        await producer.init()
        await producer.write(topic, 0, b"before")
        assert await producer.commit_offset("readers", topic, 0, 3) is ErrorCode.none
    for commit in (True, False):
        async with stage(tmp_path) as (_, wire, topic):
            producer.wire = wire
            assert await committed_offset(wire, "readers", topic) == (
                (ErrorCode.unstable_offset_commit, -1) if commit else (ErrorCode.none, 3)
            )
            await producer.write(topic, 1, b"after")
            assert await producer.end(commit) is ErrorCode.none
            assert (await fetched(wire, topic))[0] == [b"before"]
            assert (await fetched(wire, topic, 1))[0] == [b"after"]
            assert await committed_offset(wire, "readers", topic) == (ErrorCode.none, 3)


@generations
async def test_what_takes_too_long_is_aborted_and_its_producer_fenced(tmp_path: Path, generation: int) -> None:
    async with stage(tmp_path) as (door, wire, topic):
        producer = TransactionalClient(wire, generation)
        assert await producer.init(timeout=1_000) is ErrorCode.none
        await producer.write(topic, 0, b"slow")
        await until(lambda: door.broker.transactions.timed_out == 1)
        assert await fetched(wire, topic) == ([], topic.partitions[0].high_watermark)
        assert await producer.send(topic, 0, b"more") is ErrorCode.invalid_producer_epoch
        assert await producer.end(commit=True) in (ErrorCode.producer_fenced, ErrorCode.invalid_txn_state)
        assert await producer.init() is ErrorCode.none


async def test_what_was_open_at_a_stop_times_out_after_the_start(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init(timeout=4_000)
        await producer.write(topic, 0, b"open")
    async with stage(tmp_path) as (door, wire, topic):
        assert await fetched(wire, topic) == ([], 0)
        # Nobody asks for the transactional id.
        await until(lambda: door.broker.transactions.timed_out == 1)
        assert await fetched(wire, topic) == ([], 2)


async def test_a_partition_must_be_part_of_the_transaction(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, FIRST)
        await producer.init()
        assert await producer.send(topic, 0, b"a") is ErrorCode.invalid_txn_state
        assert await producer.add(("rain", 0), ("rain", 9), ("sun", 0)) == [
            ErrorCode.operation_not_attempted,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.unknown_topic_or_partition,
        ]
        assert await producer.add(("__consumer_offsets", 0)) == [ErrorCode.unknown_topic_or_partition]
        assert await producer.add(("rain", 0)) == [ErrorCode.none]
        assert await producer.add(("rain", 0)) == [ErrorCode.none]
        batch = producer.batch(topic, 1, b"b")
        assert (await wire.produce(11, topic, batch, 1)).error_code is ErrorCode.invalid_txn_state
        assert topic.partitions[0].end == 0


async def test_brokers_may_ask_whether_a_partition_is_part_of_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        await producer.write(topic, 0, b"a")
        for version, missing in ((4, ErrorCode.invalid_txn_state), (5, ErrorCode.transaction_abortable)):
            asked = {**producer.who, "verify_only": True, "topics": [{"name": "rain", "partitions": [0, 1]}]}
            reply = await wire.ask("add_partitions_to_txn", version, transactions=[asked])
            [known, unknown] = reply.results_by_transaction[0].topic_results[0].results_by_partition
            assert known.partition_error_code is ErrorCode.none
            assert unknown.partition_error_code is missing


async def test_ids_and_timeouts_that_make_no_sense(tmp_path: Path) -> None:
    async with stage(tmp_path, transaction_max_timeout_ms=60_000, transactional_ids_max=2) as (_, wire, topic):
        assert await TransactionalClient(wire, SECOND, "").init() is ErrorCode.invalid_request
        producer = TransactionalClient(wire, SECOND)
        assert await producer.init(timeout=0) is ErrorCode.invalid_transaction_timeout
        assert await producer.init(timeout=60_001) is ErrorCode.invalid_transaction_timeout
        assert await producer.init(timeout=60_000) is ErrorCode.none
        assert await producer.init(producer_id=5) is ErrorCode.invalid_request
        assert await TransactionalClient(wire, SECOND, "x" * 8_192).init() is ErrorCode.invalid_request
        assert await TransactionalClient(wire, SECOND, "x" * 8_191).init() is ErrorCode.none
        assert await TransactionalClient(wire, SECOND, "third").init() is ErrorCode.policy_violation
        unknown = TransactionalClient(wire, FIRST, "fourth")
        unknown.producer_id, unknown.epoch = 0, 0
        assert await unknown.add(("rain", 0)) == [ErrorCode.invalid_producer_id_mapping]
        assert await unknown.end(commit=True) is ErrorCode.invalid_producer_id_mapping
        assert await unknown.send(topic, 0, b"a") is ErrorCode.invalid_producer_id_mapping
        unknown.name, unknown.producer_id = "payments", 99
        assert await unknown.end(commit=True) is ErrorCode.invalid_producer_id_mapping


async def test_a_producer_goes_on_under_its_own_name(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        await producer.write(topic, 0, b"a")
        had = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        assert await producer.init(**had) is ErrorCode.none
        given = producer.producer_id, producer.epoch
        assert given == (had["producer_id"], had["producer_epoch"] + 1)
        # The answer was lost: the same once more.
        assert await producer.init(**had) is ErrorCode.none
        assert (producer.producer_id, producer.epoch) == given
        assert await fetched(wire, topic) == ([], 2)
        # Somebody else has come.
        await TransactionalClient(wire, SECOND).init()
        assert await producer.init(producer_id=given[0], producer_epoch=given[1]) is ErrorCode.producer_fenced


@pytest.mark.parametrize("ongoing", [True, False])
async def test_epochs_run_out(tmp_path: Path, ongoing: bool) -> None:
    async with stage(tmp_path) as (door, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        entry = door.broker.transactions._store.entries["payments"]
        for _ in range(2):
            # The last epoch but one; the last is for the marker that ends it.
            assert entry.now is not None
            entry.now = entry.sure = type(entry.now)(producer.producer_id, 32_766, 10_000, entry.now.updated_ms)
            producer.epoch = 32_766
            producer.sequences.clear()
            old = producer.producer_id
            await producer.write(topic, 0, b"last")
            if ongoing:
                assert await producer.init() is ErrorCode.none
            else:
                assert await producer.end(commit=True) is ErrorCode.none
                given = producer.producer_id, producer.epoch
                producer.producer_id, producer.epoch = old, 32_766
                assert await producer.end(commit=True) is ErrorCode.none
                assert (producer.producer_id, producer.epoch) == given
            assert producer.epoch == 0
            assert producer.producer_id != old
            await producer.write(topic, 0, b"next")
            assert await producer.end(commit=True) is ErrorCode.none
        values = [b"next", b"next"] if ongoing else [b"last", b"next", b"last", b"next"]
        assert (await fetched(wire, topic))[0] == values


async def test_a_plain_batch_of_a_producer_within_a_transaction_is_refused(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        await producer.write(topic, 0, b"a")
        # In its own epoch, and in one that it was not given.
        for epoch, sequence in ((producer.epoch, 1), (producer.epoch + 1, 0)):
            plain = batch_of(b"b", producer_id=producer.producer_id, producer_epoch=epoch, base_sequence=sequence)
            assert (await wire.produce(12, topic, plain)).error_code is ErrorCode.invalid_record


async def test_a_repeated_first_batch_is_stored_once(tmp_path: Path) -> None:
    async with stage(tmp_path, durability="sync") as (_, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        batch = producer.batch(topic, 0, b"a")
        for _ in range(2):
            wire.send("produce", 12, **(produce_fields(topic, batch) | {"transactional_id": "payments"}))
        for back in (1, 0):
            reply = await wire.receive("produce", 12, wire.correlation - back)
            answer = reply.responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
        assert await producer.end(commit=True) is ErrorCode.none
        assert (await fetched(wire, topic))[0] == [b"a"]


async def test_described_and_listed(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        one, two = TransactionalClient(wire, SECOND, "one"), TransactionalClient(wire, FIRST, "two")
        await one.init()
        await two.init()
        await one.write(topic, 1, b"a")
        await one.write(topic, 0, b"a")
        reply = await wire.ask("describe_transactions", 0, transactional_ids=["one"])
        [first] = reply.transaction_states
        assert (first.transaction_state, first.producer_id, first.producer_epoch) == ("Ongoing", one.producer_id, 0)
        assert [(each.topic, each.partitions) for each in first.topics] == [("rain", (0, 1))]
        assert first.transaction_timeout.total_seconds() == 10
        # One that has not begun has no time of it (-1, as in Kafka), which kio's reader does not take.
        wire.send("describe_transactions", 0, transactional_ids=["two", "three"])
        size = int.from_bytes(await wire.reader.readexactly(4), "big")
        raw = await wire.reader.readexactly(size)
        not_found = int(ErrorCode.transactional_id_not_found).to_bytes(2, "big")
        assert b"\x04two\x06Empty" in raw
        assert not_found + b"\x06three" in raw

        async def listed(version: int = 2, **filters: Any) -> list[str]:
            fields = {"state_filters": [], "producer_id_filters": [], **filters}
            if version >= 1:
                fields.setdefault("duration_filter", -1)
            if version >= 2:
                fields.setdefault("transactional_id_pattern", None)
            found = await wire.ask("list_transactions", version, **fields)
            assert found.error_code is ErrorCode.none
            return sorted(each.transactional_id for each in found.transaction_states)

        assert await listed(0) == ["one", "two"]
        assert await listed(state_filters=["Ongoing"]) == ["one"]
        assert await listed(state_filters=["Asleep"]) == []
        assert await listed(producer_id_filters=[two.producer_id]) == ["two"]
        assert await listed(duration_filter=1 << 40) == []
        assert await listed(transactional_id_pattern="t.*") == ["two"]
        broken = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        reply = await wire.ask("list_transactions", 2, **broken, transactional_id_pattern="(")
        assert reply.error_code is ErrorCode.invalid_regular_expression
        await one.end(commit=True)
        reply = await wire.ask("describe_transactions", 0, transactional_ids=["one"])
        assert reply.transaction_states[0].transaction_state == "CompleteCommit"


async def test_an_administrator_ends_what_nobody_ends(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        await producer.write(topic, 0, b"hanging")
        marker = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "transaction_result": False,
            "topics": [{"name": "rain", "partition_indexes": [0, 7]}],
            "coordinator_epoch": 0,
        }
        reply = await wire.ask("write_txn_markers", 1, markers=[marker])
        known, unknown = reply.markers[0].topics[0].partitions
        assert known.error_code is ErrorCode.none
        assert unknown.error_code is ErrorCode.unknown_topic_or_partition
        assert await fetched(wire, topic) == ([], 2)


@generations
async def test_a_topic_that_is_gone_holds_nobody_up(tmp_path: Path, generation: int) -> None:
    async with stage(tmp_path) as (door, wire, topic):
        other = await door.broker.topics.create("sun", 1)
        producer = TransactionalClient(wire, generation)
        await producer.init()
        await producer.write(topic, 0, b"a")
        await producer.write(other, 0, b"b")
        await door.broker.topics.delete("sun")
        assert await producer.end(commit=True) is ErrorCode.none
        assert (await fetched(wire, topic))[0] == [b"a"]


@generations
async def test_an_end_that_cannot_be_written_leaves_the_transaction_open(device: Device, generation: int) -> None:
    async with stage(device) as (door, wire, topic):
        producer = TransactionalClient(wire, generation)
        await producer.init()
        await producer.write(topic, 0, b"a")
        async with device.full(door.broker):
            assert await producer.end(commit=True) is ErrorCode.coordinator_not_available
        assert (await door.broker.transactions.describe("payments")).status is Status.ONGOING
        assert await producer.end(commit=True) is ErrorCode.none
        assert (await fetched(wire, topic))[0] == [b"a"]


@durabilities
async def test_an_end_whose_flush_fails_is_seen_nowhere(device: Device, durability: str) -> None:
    async with stage(device, durability=durability) as (_, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        await producer.write(topic, 0, b"a")
        with device.fail():
            assert await producer.end(commit=True) is ErrorCode.coordinator_not_available
        assert await fetched(wire, topic) == ([], 0)
        assert await producer.end(commit=False) is ErrorCode.none
        assert await fetched(wire, topic) == ([], 2)


@durabilities
async def test_a_first_batch_whose_flush_fails_is_taken_when_it_comes_again(device: Device, durability: str) -> None:
    async with stage(device, durability=durability) as (_, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        with device.fail():
            assert await producer.send(topic, 0, b"a") is ErrorCode.kafka_storage_error
        producer.sequences.clear()
        assert await producer.send(topic, 0, b"a") is ErrorCode.none
        assert await producer.end(commit=True) is ErrorCode.none
        assert await fetched(wire, topic) == ([b"a"], 2)


@generations
async def test_a_batch_that_comes_while_the_end_is_written_is_to_come_again(tmp_path: Path, generation: int) -> None:
    async with stage(tmp_path) as (door, wire, topic):
        producer = TransactionalClient(wire, generation)
        await producer.init()
        await producer.write(topic, 0, b"a")
        door.broker.transactions._store.entries["payments"].busy = True
        code = await producer.send(topic, 0, b"b")
        # Clients of the first generation do not know the other as one that passes.
        wanted = {FIRST: ErrorCode.not_enough_replicas, SECOND: ErrorCode.concurrent_transactions}
        assert code is wanted[generation]


@generations
@pytest.mark.parametrize("commit", [True, False])
async def test_a_partition_out_of_service_keeps_its_transaction_open(
    tmp_path: Path, generation: int, commit: bool
) -> None:
    async with stage(tmp_path) as (door, wire, topic):
        producer = TransactionalClient(wire, generation)
        await producer.init()
        await producer.write(topic, 0, b"a")
        await producer.write(topic, 1, b"b")
        broken: Any = topic.partitions[1]
        broken.offline = "the disk does not answer"
        assert await producer.end(commit) is ErrorCode.coordinator_not_available
        assert (await door.broker.transactions.describe("payments")).status is Status.ONGOING
        broken.offline = None
        assert await producer.end(commit) is ErrorCode.none
        assert [await fetched(wire, topic, index) for index in (0, 1)] == [
            ([b"a"] if commit else [], 2),
            ([b"b"] if commit else [], 2),
        ]


async def test_transactional_ids_that_nobody_uses_are_forgotten(tmp_path: Path) -> None:
    async with stage(tmp_path, transactional_id_expiration_ms=1) as (door, wire, topic):
        idle, busy = TransactionalClient(wire, SECOND, "idle"), TransactionalClient(wire, SECOND, "busy")
        await idle.init()
        await busy.init()
        await busy.write(topic, 0, b"a")
        now = door.broker.runtime.clock.now_ms()
        await until(lambda: door.broker.runtime.clock.now_ms() > now + 2)
        await door.broker.transactions._expiry.expire()
        assert [name for name, _ in await door.broker.transactions.list()] == ["busy"]
    async with stage(tmp_path) as (door, _, _):
        assert [name for name, _ in await door.broker.transactions.list()] == ["busy"]


async def test_an_id_that_could_not_be_written_does_not_count(device: Device) -> None:
    async with stage(device, transactional_ids_max=2) as (_, wire, _):
        assert await TransactionalClient(wire, SECOND, "first").init() is ErrorCode.none
        with device.fail():
            assert await TransactionalClient(wire, SECOND, "never").init() is ErrorCode.coordinator_not_available
        assert await TransactionalClient(wire, SECOND, "second").init() is ErrorCode.none
        assert await TransactionalClient(wire, SECOND, "third").init() is ErrorCode.policy_violation


async def test_an_id_that_cannot_be_forgotten_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, transactional_id_expiration_ms=1) as (door, wire, _):
        transactions = door.broker.transactions
        for name in ("stuck", "idle"):
            await TransactionalClient(wire, SECOND, name).init()
        now = door.broker.runtime.clock.now_ms()
        await until(lambda: door.broker.runtime.clock.now_ms() > now + 2)
        append = transactions._store.append

        def refuse(entry: Any, *rest: Any) -> Any:
            if entry.id == "stuck":
                raise StorageFailed("its partition is offline")
            return append(entry, *rest)

        monkeypatch.setattr(transactions._store, "append", refuse)
        await transactions._expiry.expire()
        assert [name for name, _ in await transactions.list()] == ["stuck"]


async def test_a_group_member_that_lost_its_place_commits_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        assert await producer.commit_offset("g", topic, 0, 5, generation_id=3, member_id="m") in (
            ErrorCode.illegal_generation,
            ErrorCode.unknown_member_id,
        )
        assert await committed_offset(wire, "g", topic) == (ErrorCode.none, -1)


async def test_list_offsets_ends_at_the_last_stable_one(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        await producer.write(topic, 0, b"a", b"b")
        for isolation, offset in ((1, 0), (0, 2)):
            asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
            reply = await wire.ask(
                "list_offsets",
                6,
                replica_id=-1,
                isolation_level=isolation,
                topics=[{"name": "rain", "partitions": [asked]}],
            )
            assert reply.topics[0].partitions[0].offset == offset


async def test_what_cannot_be_read_at_the_start_is_read_a_little_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path) as (_, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init(timeout=1_000)
        await producer.write(topic, 0, b"open")
    load, failures = Store._load, [OSError("not yet"), OSError("not yet")]

    async def fail(self: Store) -> None:
        if failures:
            raise failures.pop()
        await load(self)

    monkeypatch.setattr(Store, "_load", fail)
    monkeypatch.setattr(coordinator, "LOAD_AGAIN_SECONDS", 0.01)
    async with stage(tmp_path) as (door, wire, topic):
        await until(lambda: door.broker.transactions.timed_out == 1)
        assert await fetched(wire, topic) == ([], 2)


@generations
async def test_an_id_whose_partition_is_offline_is_not_taken_for_unknown(device: Device, generation: int) -> None:
    """A producer that hears of an unknown id gives up; of one that cannot be read just now, it comes again."""
    async with stage(device) as (_, wire, topic):
        producer = TransactionalClient(wire, generation)
        await producer.init()
        await producer.write(topic, 0, b"a")
    passing = {ErrorCode.kafka_storage_error, ErrorCode.coordinator_not_available}
    with device.fail_at(TOPIC):
        async with stage(device) as (door, wire, topic):
            producer.wire = wire
            assert set(await producer.add((topic.name, 1))) <= passing
            assert await producer.send(topic, 0, b"b") in passing
            assert await producer.end(True) in passing
            assert await producer.init() in passing
            with pytest.raises(PartitionOffline):
                await door.broker.transactions.describe(producer.name)


async def test_a_flood_on_one_connection_leaves_ids_for_the_others(tmp_path: Path) -> None:
    settings = {"transactional_ids_max": 50, "transactional_ids_unused_max": 20}
    async with stage(tmp_path, **settings) as (door, wire, topic), await Wire.open(door) as second:
        for number in range(100):
            assert await TransactionalClient(wire, SECOND, f"flood-{number}").init() is ErrorCode.none
            if number % 10 == 0:
                other = TransactionalClient(second, SECOND, f"other-{number}")
                assert await other.init() is ErrorCode.none
                await other.write(topic, 0, b"a")
                assert await other.end(commit=True) is ErrorCode.none
        flooded = TransactionalClient(wire, FIRST, "flood-0")
        flooded.producer_id, flooded.epoch = 0, 0
        assert await flooded.add(("rain", 0)) == [ErrorCode.invalid_producer_id_mapping]
        assert len(await door.broker.transactions.list()) == 30
