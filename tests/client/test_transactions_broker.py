"""Transactions against a real broker: Headrace, or the one that HEADRACE_TEST_KAFKA names (an Apache Kafka, say)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
from tests.waiting import SECONDS

import headrace
from headrace.client import (
    EARLIEST,
    LATEST,
    BrokerError,
    Client,
    ClientError,
    ProducerFenced,
    TransactionAbortable,
    TransactionalProducer,
)
from headrace.client import coordinator as coordinator_module
from headrace.format import records


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    outside = os.environ.get("HEADRACE_TEST_KAFKA")
    if outside:
        yield outside
        return
    with headrace.Broker(durability="async") as broker:
        yield broker.kafka


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[Client]:
    async with Client(bootstrap, timeout=15) as client:
        yield client


@pytest.fixture(params=["first", "second"])
async def generation(client: Client, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which protocol the client takes the cluster for."""
    if request.param == "first":
        monkeypatch.setattr(coordinator_module, "SECOND_GENERATION", 99)
    elif (await client.cluster.any_node()).features.get("transaction.version", 0) < 2:
        pytest.skip("the cluster speaks the first generation")
    return str(request.param)


def fresh(kind: str = "t") -> str:
    return f"{kind}-{uuid4().hex[:12]}"


async def decided(client: Client, topic: str, partitions: int = 1) -> None:
    """Wait until nothing of a topic is open: Kafka answers a commit before it has written the markers."""
    places = {(topic, index): LATEST for index in range(partitions)}
    until = time.monotonic() + 20
    while time.monotonic() < until:
        ends = await client.admin.list_offsets(places)
        stable = await client.admin.list_offsets(places, committed=True)
        if all(ends[each].offset == stable[each].offset for each in places):
            return
        await asyncio.sleep(0.01)
    raise TimeoutError(f"a transaction on {topic} is still open")


async def read(client: Client, topic: str, partitions: int = 1, *, committed: bool = True) -> list[bytes | None]:
    async with client.consumer(committed=committed) as consumer:
        await consumer.assign({(topic, index): EARLIEST for index in range(partitions)})
        return [each.value async for each in consumer.records(await consumer.end_offsets())]


async def test_committed_aborted_committed(client: Client, generation: str) -> None:
    topic, group, name = fresh(), fresh("g"), fresh("x")
    await client.admin.create_topic(topic, 3)
    async with client.transactional(name) as producer:
        assert producer._coordinator.second == (generation == "second")
        for number in range(6):
            producer.begin()
            for partition in range(3):
                for copy in range(5):
                    await producer.send(topic, b"%d %d %d" % (number, partition, copy), partition=partition)
            await producer.send_offsets(group, {(topic, 0): number, (topic, 1): (number * 10, f"note {number}")})
            if number % 2:
                await producer.abort()
            else:
                await producer.commit()
    await decided(client, topic, 3)
    found = await read(client, topic, 3)
    kept = [b"%d %d %d" % (n, partition, copy) for n in (0, 2, 4) for partition in range(3) for copy in range(5)]
    assert sorted(found, key=str) == sorted(kept, key=str)
    assert len(await read(client, topic, 3, committed=False)) >= len(kept)
    offsets = await client.admin.committed(group, stable=True)
    assert {each: (at.offset, at.metadata) for each, at in offsets.items()} == {
        (topic, 0): (4, ""),
        (topic, 1): (40, "note 4"),
    }


async def test_what_is_open_is_not_read_and_the_end_is_the_last_stable_offset(client: Client, generation: str) -> None:
    topic = fresh()
    await client.admin.create_topic(topic, 1)
    async with client.producer() as plain:
        await plain.send(topic, b"before")
    async with client.transactional(fresh("x")) as producer:
        async with producer.transaction():
            delivery = await producer.send(topic, b"in it")
            await producer.flush()
            assert (await delivery).offset == 1
            async with client.producer() as plain:
                await plain.send(topic, b"behind")
            place = (topic, 0)
            assert (await client.admin.list_offsets({place: LATEST}))[place].offset == 3
            assert (await client.admin.list_offsets({place: LATEST}, committed=True))[place].offset == 1
            assert await read(client, topic) == [b"before"]
            assert await read(client, topic, committed=False) == [b"before", b"in it", b"behind"]
        async with client.consumer(committed=True) as consumer:
            await consumer.assign({place: 0})
            found = []
            while len(found) < 3:
                found += [each.value for each in consumer.parse(await consumer.chunk())]
            assert found == [b"before", b"in it", b"behind"]
        # The marker has an offset of its own.
        await decided(client, topic)
        end = (await client.admin.list_offsets({place: LATEST}, committed=True))[place].offset
        assert end == 4


async def test_positions_go_over_markers_and_aborted_records(client: Client, generation: str) -> None:
    topic = fresh()
    await client.admin.create_topic(topic, 1)
    async with client.transactional(fresh("x")) as producer:
        for number in range(4):
            producer.begin()
            await producer.send(topic, b"%d" % number)
            await producer.flush()
            await producer.abort()
        await decided(client, topic)
        async with client.consumer(committed=True) as consumer:
            await consumer.assign({(topic, 0): EARLIEST})
            until = await consumer.end_offsets()
            assert until == {(topic, 0): 8}
            assert [each async for each in consumer.records(until)] == []
            assert consumer.positions == {(topic, 0): 8}
            async with producer.transaction():
                await producer.send(topic, b"kept")
            assert [each.value for each in consumer.parse(await consumer.chunk())] == [b"kept"]


async def test_a_newer_producer_fences(client: Client, generation: str) -> None:
    topic, name = fresh(), fresh("x")
    await client.admin.create_topic(topic, 1)
    old = client.transactional(name)
    await old.init()
    old.begin()
    await old.send(topic, b"of the old one")
    await old.flush()
    async with client.transactional(name) as new:
        assert new.identity[0] == old.identity[0]
        assert new.identity[1] > old.identity[1]
        async with new.transaction():
            await new.send(topic, b"of the new one")
        with pytest.raises(ProducerFenced, match=name):
            await old.commit()
        for use in (old.commit, old.abort):
            with pytest.raises(ProducerFenced):
                await use()
        with pytest.raises(ProducerFenced):
            await old.send(topic, b"more")
        with pytest.raises(ProducerFenced):
            old.begin()
        async with new.transaction():
            await new.send(topic, b"again")
    await old.close()
    await decided(client, topic)
    assert await read(client, topic) == [b"of the new one", b"again"]


async def test_a_fenced_producer_that_goes_on_sending(client: Client, generation: str) -> None:
    topic, name = fresh(), fresh("x")
    await client.admin.create_topic(topic, 1)
    old = client.transactional(name)
    await old.init()
    old.begin()
    await (await old.send(topic, b"old"))
    async with client.transactional(name) as new:
        delivery = await old.send(topic, b"old, too")
        with pytest.raises(ClientError):
            await delivery
        with pytest.raises((TransactionAbortable, ProducerFenced)):
            await old.commit()
        with pytest.raises(ProducerFenced):
            await old.abort()
        async with new.transaction():
            await new.send(topic, b"new")
    await old.close()
    await decided(client, topic)
    assert await read(client, topic) == [b"new"]


async def test_only_the_last_owner_gets_the_next_epoch(client: Client, generation: str) -> None:
    name = fresh("x")
    first = client.transactional(name)
    await first.init()
    second = client.transactional(name)
    await second.init(*first.identity)
    assert second.identity == (first.identity[0], first.identity[1] + 1)
    async with client.transactional(name) as third:
        late = client.transactional(name)
        with pytest.raises(ProducerFenced):
            await late.init(*first.identity)
        assert third.identity[1] > second.identity[1]


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_is_ended_by_another_process(client: Client, generation: str, commit: bool) -> None:
    topic, name = fresh(), fresh("x")
    await client.admin.create_topic(topic, 1)
    async with Client(client.cluster._bootstrap[0][0] + f":{client.cluster._bootstrap[0][1]}") as other:
        writer = other.transactional(name)
        await writer.init()
        writer.begin()
        await writer.send(topic, b"v")
        await writer.flush()
        identity = writer.identity
    for _ in range(2):  # Told twice, as after a crash between the end and the note of it.
        ender = client.transactional(name)
        await ender.resume(*identity)
        with pytest.raises(ClientError):
            await ender.send(topic, b"w")
        await (ender.commit() if commit else ender.abort())
    await decided(client, topic)
    assert await read(client, topic) == ([b"v"] if commit else [])
    async with client.transactional(name):
        pass
    late = client.transactional(name)
    await late.resume(*identity)
    with pytest.raises(ProducerFenced):
        await late.commit()


async def test_a_failure_spoils_the_transaction_and_abort_mends_it(client: Client, generation: str) -> None:
    topic = fresh()
    await client.admin.create_topic(topic, 2, {"max.message.bytes": "2000"})
    async with client.transactional(fresh("x"), linger=0) as producer:
        producer.begin()
        await producer.send(topic, b"fits", partition=0)
        too_large = await producer.send(topic, os.urandom(5000), partition=1)
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
            await too_large
        with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
            await producer.send(topic, b"more")
        with pytest.raises(TransactionAbortable):
            await producer.commit()
        with pytest.raises(TransactionAbortable):
            producer.begin()
        await producer.abort()
        for number in range(3):
            async with producer.transaction():
                await producer.send(topic, b"%d" % number, partition=number % 2)

        async def attempt(value: bytes, error: type[Exception] | None = None) -> None:
            async with producer.transaction():
                await producer.send(topic, b"lost")
                await producer.send(topic, value)
                if error is not None:
                    raise error

        with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
            await attempt(os.urandom(5000))
        with pytest.raises(ZeroDivisionError):
            await attempt(b"lost, too", ZeroDivisionError)
        async with producer.transaction():
            await producer.send(topic, b"3", partition=0)
    await decided(client, topic, 2)
    assert sorted(await read(client, topic, 2), key=str) == [b"0", b"1", b"2", b"3"]


async def test_offsets_of_a_generation_that_is_over(client: Client, generation: str) -> None:
    topic = fresh()
    await client.admin.create_topic(topic, 1)
    async with client.transactional(fresh("x")) as producer:
        producer.begin()
        with pytest.raises(TransactionAbortable):
            await producer.send_offsets(fresh("g"), {(topic, 0): 1}, generation=7, member="gone")
        await producer.abort()
        async with producer.transaction():
            await producer.send(topic, b"v")
            await producer.send_offsets(fresh("g"), {})
    await decided(client, topic)
    assert await read(client, topic) == [b"v"]


async def test_offsets_in_an_open_transaction_are_not_stable(client: Client, generation: str) -> None:
    topic, group = fresh(), fresh("g")
    await client.admin.create_topic(topic, 1)
    async with client.transactional(fresh("x")) as producer:
        producer.begin()
        await producer.send_offsets(group, {(topic, 0): 5})
        assert await client.admin.committed(group) == {}
        waiting = asyncio.ensure_future(client.admin.committed(group, [(topic, 0)], stable=True))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await producer.commit()
        assert (await asyncio.wait_for(waiting, SECONDS))[topic, 0].offset == 5


async def test_batches_built_elsewhere(client: Client, generation: str) -> None:
    topic = fresh()
    await client.admin.create_topic(topic, 1)
    built = [records.build([(1, None, b"%d" % (n * 10 + k), []) for k in range(10)], compression=4) for n in range(20)]
    async with client.transactional(fresh("x")) as producer:
        for number in range(0, 20, 5):
            async with producer.transaction():
                for batch in built[number : number + 5]:
                    await producer.send_batch(topic, 0, bytearray(batch))
    await decided(client, topic)
    assert await read(client, topic) == [b"%d" % n for n in range(200)]


async def test_an_open_transaction_ends_with_its_producer(client: Client, generation: str) -> None:
    topic = fresh()
    await client.admin.create_topic(topic, 1)
    async with client.transactional(fresh("x")) as producer:
        producer.begin()
        await producer.send(topic, b"v")
        await producer.flush()
    await decided(client, topic)
    assert (await client.admin.list_offsets({(topic, 0): LATEST}))[topic, 0].offset == 2
    assert await read(client, topic) == []


async def test_a_transaction_that_takes_too_long(client: Client, generation: str) -> None:
    topic, name = fresh(), fresh("x")
    await client.admin.create_topic(topic, 1)
    slow = client.transactional(name, transaction_timeout=2.0)
    await slow.init()
    slow.begin()
    await slow.send(topic, b"late")
    await slow.flush()
    await decided(client, topic)
    if generation == "first":
        with pytest.raises(ProducerFenced, match="timeout"):
            await slow.commit()
        await slow.close()
        slow = client.transactional(name)
    else:
        with pytest.raises(TransactionAbortable, match="INVALID_TXN_STATE"):
            await slow.commit()
        await slow.abort()
    async with slow, slow.transaction():
        await slow.send(topic, b"in time")
    await decided(client, topic)
    assert await read(client, topic) == [b"in time"]


async def test_transactions_from_outside(client: Client, generation: str) -> None:
    topic, name = fresh(), fresh("x")
    await client.admin.create_topic(topic, 2)
    admin = client.transactions
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        await admin.describe(name)
    producer = client.transactional(name, transaction_timeout=45)
    await producer.init()
    fresh_one = await admin.describe(name)
    assert (fresh_one.state, fresh_one.started, fresh_one.timeout_ms) == ("Empty", -1, 45_000)
    producer.begin()
    await producer.send(topic, b"v", partition=1)
    await producer.flush()
    described = await admin.describe(name)
    assert (described.state, described.partitions) == ("Ongoing", ((topic, 1),))
    assert (described.producer_id, described.epoch) == producer.identity
    assert abs(described.started - time.time() * 1000) < 60_000
    assert name in [each.transactional_id for each in await admin.list_all(states=["Ongoing"])]
    assert name not in [each.transactional_id for each in await admin.list_all(states=["Empty"])]
    [listed] = await admin.list_all(producer_ids=[producer.identity[0]])
    assert (listed.transactional_id, listed.state) == (name, "Ongoing")
    assert await admin.list_all(states=["Ongoing"], longer_than_ms=3_600_000) == []
    [active] = await admin.producers([(topic, 0), (topic, 1)])
    assert (active.partition, active.producer_id, active.epoch) == (1, *producer.identity)
    assert (active.first_offset, active.last_sequence) == (0, 0)
    assert await admin.find_hanging([(topic, 0), (topic, 1)], 0, described.started + 3_600_000) == []
    await admin.abort(name)
    await decided(client, topic, 2)
    [active] = await admin.producers([(topic, 0), (topic, 1)])
    assert active.first_offset == -1
    with pytest.raises(ProducerFenced):
        await producer.commit()
    await producer.close()
    assert await read(client, topic, 2) == []
    with pytest.raises(ClientError, match="Sleeping"):
        await admin.list_all(states=["Sleeping"])


async def test_many_producers_at_once(client: Client, generation: str) -> None:
    topic = fresh()
    await client.admin.create_topic(topic, 2)

    async def work(producer: TransactionalProducer, number: int) -> None:
        async with producer:
            for turn in range(8):
                producer.begin()
                for partition in range(2):
                    await producer.send(topic, b"%d %d" % (number, turn), partition=partition)
                await (producer.abort() if turn % 4 == 3 else producer.commit())

    await asyncio.gather(*(work(client.transactional(fresh("x")), number) for number in range(5)))
    kept = [b"%d %d" % (number, turn) for number in range(5) for turn in range(8) if turn % 4 != 3]
    await decided(client, topic, 2)
    assert sorted(await read(client, topic, 2), key=str) == sorted(kept * 2, key=str)
