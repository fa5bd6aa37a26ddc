"""The producer against brokers that break: nothing lost, nothing twice, nothing out of order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from tests.client.fake import CUT_AFTER, CUT_BEFORE, NOT_LEADER, OUT_OF_ORDER, FakeCluster, Fault
from tests.waiting import SECONDS

from headrace.client import BrokerError, Client, ClientError
from headrace.client.errors import ClientClosed
from headrace.format import records
from headrace.format.partitioning import partition_of

PRODUCE, METADATA, INIT = 0, 3, 22
UNKNOWN_TOPIC, TOO_LARGE, UNKNOWN_PRODUCER = 3, 10, 59


async def test_keys_choose_partitions_and_deliveries_say_where() -> None:
    async with FakeCluster(partitions=4) as fake, Client(fake.bootstrap) as client:
        async with client.producer(linger=0) as producer:
            deliveries = [await producer.send("t", b"%d" % n, key=b"key %d" % n) for n in range(50)]
            places = [await delivery for delivery in deliveries]
        for number, place in enumerate(places):
            assert place.partition == partition_of(b"key %d" % number, 4)
            found = fake.topics["t"][place.partition].records()[place.offset]
            assert (found[0], found[3]) == (place.offset, b"%d" % number)


async def test_keyless_records_stay_together_and_go_around() -> None:
    async with FakeCluster(partitions=3) as fake, Client(fake.bootstrap) as client:
        async with client.producer(linger=0.001) as producer:
            for number in range(6):
                for _ in range(10):
                    await producer.send("t", b"%d" % number, headers=[("n", b"1")])
                await producer.flush()
        assert [log.end for log in fake.topics["t"]] == [20, 20, 20]
        assert all(len(log.batches) == 2 for log in fake.topics["t"])


async def test_one_request_carries_many_partitions() -> None:
    async with FakeCluster(partitions=8) as fake, Client(fake.bootstrap) as client:
        async with client.producer(linger=0.01) as producer:
            for partition in range(8):
                await producer.send("t", b"v", partition=partition)
        assert [log.end for log in fake.topics["t"]] == [1] * 8
        assert Counter(api for _, api in fake.asked)[PRODUCE] == 1


async def test_batches_built_elsewhere() -> None:
    async with FakeCluster(partitions=2) as fake, Client(fake.bootstrap) as client:
        async with client.producer() as producer:
            batch = records.build([(1, None, b"a", []), (2, None, b"b", [])], compression=4)
            first = await producer.send_batch("t", 1, bytearray(batch))
            second = await producer.send_batch("t", 1, bytearray(batch))
            assert (await first).offset == 0
            assert (await second).offset == 2
        assert [record[3] for record in fake.topics["t"][1].records()] == [b"a", b"b", b"a", b"b"]


async def test_many_at_once_leave_at_once() -> None:
    headers = [("n", b"1")]
    async with FakeCluster(partitions=4) as fake, Client(fake.bootstrap) as client:
        async with client.producer(linger=60, batch_bytes=2_000) as producer:
            keyed = [(b"key %d" % n, b"%d" % n, headers, None) for n in range(50)]
            offsets = [await batch for batch in await producer.send_all("t", keyed)]
            assert offsets == [0] * 4
            chosen = [await batch for batch in await producer.send_all("t", [(None, b"x", [], 3)])]
            assert chosen == [fake.topics["t"][3].end - 1]
            # More than a batch holds, without keys: the next batch goes to the next partition.
            assert len(await producer.send_all("t", [(None, b"%d" % n * 10, [], None) for n in range(100)])) > 1
        for partition, log in enumerate(fake.topics["t"]):
            found = [int(value) for _, _, key, value, *_ in log.records() if key is not None]
            assert found == [n for n in range(50) if partition_of(b"key %d" % n, 4) == partition]
        assert sum(log.end for log in fake.topics["t"]) == 151


async def test_what_came_before_a_partition_that_there_is_not_goes_out() -> None:
    async with FakeCluster(partitions=2) as fake, Client(fake.bootstrap) as client:
        producer = client.producer(linger=60)
        with pytest.raises(BrokerError, match="the topic has 2 partitions"):
            await producer.send_all("t", [(None, b"there", [], 1), (None, b"nowhere", [], 2)])
        await producer.flush()
        assert [record[3] for record in fake.topics["t"][1].records()] == [b"there"]
        await producer.close()


async def test_many_at_once_wait_for_room_and_fail_apart() -> None:
    async with FakeCluster(partitions=2) as fake, Client(fake.bootstrap) as client:
        async with client.producer(linger=60, batch_bytes=200, buffer_bytes=1_000) as producer:
            turns = iter([None, TOO_LARGE])
            fake.fault = lambda node, api: next(turns, None) if api == PRODUCE else None
            batches = await producer.send_all("t", [(None, b"%03d" % n, [], 0) for n in range(300)])
            outcomes = await asyncio.gather(*batches, return_exceptions=True)
            assert len([each for each in outcomes if isinstance(each, BrokerError)]) == 1
            with pytest.raises(BrokerError, match="TOO_LARGE"):
                await producer.flush()
        found = [int(record[3]) for record in fake.topics["t"][0].records()]
        assert found == sorted(found)
        assert 280 < len(found) < 300


@pytest.mark.parametrize("seed", range(12))
async def test_faults(seed: int) -> None:
    """Cuts before and after the append, wrong leaders, leaders that move: each record is there once, in order."""
    dice = random.Random(seed)
    faults = 0
    async with FakeCluster(nodes=2, partitions=3) as fake, Client(fake.bootstrap, timeout=10) as client:

        def fault(node: int, api: int) -> Fault:
            nonlocal faults
            if faults >= 25 or api == 18:
                return None
            roll = dice.random()
            if roll < 0.35:
                faults += 1
                if dice.random() < 0.5:
                    fake.topics["t"][dice.randrange(3)].leader = dice.randrange(2)
                if api == PRODUCE:
                    return dice.choice([CUT_BEFORE, CUT_AFTER, CUT_AFTER, NOT_LEADER, 7])
                return dice.choice([CUT_BEFORE, CUT_AFTER, None])
            return None

        fake.fault = fault
        async with client.producer(linger=0, batch_bytes=200) as producer:
            for first in range(0, 300, 10):
                if seed % 2:
                    some = [(None, b"%d" % number, [], number % 3) for number in range(first, first + 10)]
                    await producer.send_all("t", some)
                    continue
                for number in range(first, first + 10):
                    await producer.send("t", b"%d" % number, partition=number % 3)
                    if dice.random() < 0.2:
                        await asyncio.sleep(0)
            await producer.flush()
        assert faults > 5
        for partition, log in enumerate(fake.topics["t"]):
            assert [int(record[3]) for record in log.records()] == list(range(partition, 300, 3))


@pytest.mark.parametrize("code", [OUT_OF_ORDER, UNKNOWN_PRODUCER])
async def test_a_broker_that_forgot_the_producer(code: int) -> None:
    async with FakeCluster() as fake, Client(fake.bootstrap) as client:
        async with client.producer(linger=0, batch_bytes=100) as producer:
            await (await producer.send("t", b"0"))
            turns = iter([code, code, code])
            fake.fault = lambda node, api: next(turns, None) if api == PRODUCE else None
            for number in range(1, 30):
                await producer.send("t", b"%d" % number)
            await producer.flush()
        assert [int(record[3]) for record in fake.topics["t"][0].records()] == list(range(30))
        assert Counter(api for _, api in fake.asked)[INIT] >= 2


async def test_a_refused_batch_fails_alone() -> None:
    async with FakeCluster() as fake, Client(fake.bootstrap) as client:
        async with client.producer(linger=0, batch_bytes=60) as producer:
            turns = iter([None, TOO_LARGE])
            fake.fault = lambda node, api: next(turns, None) if api == PRODUCE else None
            deliveries = [await producer.send("t", b"%02d" % number * 10) for number in range(10)]
            outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
            refused = [number for number, each in enumerate(outcomes) if isinstance(each, BaseException)]
            assert len(refused) == 1
            assert isinstance(outcomes[refused[0]], BrokerError)
            with pytest.raises(BrokerError, match=r"t-0: .*MESSAGE_TOO_LARGE"):
                await producer.flush()
            await producer.flush()
        expected = [number for number in range(10) if number not in refused]
        assert [int(record[3][:2]) for record in fake.topics["t"][0].records()] == expected


async def test_what_never_works_fails_in_time() -> None:
    async with FakeCluster() as fake, Client(fake.bootstrap, timeout=5) as client:
        fake.fault = lambda node, api: NOT_LEADER if api == PRODUCE else None
        async with client.producer(linger=0, delivery_timeout=1.0) as producer:
            delivery = await producer.send("t", b"v")
            with pytest.raises(BrokerError, match="NOT_LEADER"):
                await delivery
            with pytest.raises(BrokerError):
                await producer.flush()


async def test_acks_0_and_1() -> None:
    async with FakeCluster() as fake, Client(fake.bootstrap) as client:
        for acks, offsets in ((0, [-1, -1]), (1, [2, 3])):
            async with client.producer(linger=0, acks=acks) as producer:
                assert [(await (await producer.send("t", b"v"))).offset for _ in range(2)] == offsets
            await asyncio.wait_for(fake.appended(2), SECONDS)
        assert INIT not in {api for _, api in fake.asked}


async def test_memory_is_bounded_and_a_slow_broker_slows_the_sender() -> None:
    async with FakeCluster() as fake, Client(fake.bootstrap) as client:
        async with client.producer(linger=0, batch_bytes=1000, buffer_bytes=5000) as producer:
            for _ in range(200):
                await producer.send("t", bytes(200))
                assert producer._buffered <= 6000
        assert fake.topics["t"][0].end == 200


async def test_errors_of_the_caller() -> None:
    async with FakeCluster() as fake, Client(fake.bootstrap, timeout=1) as client:
        producer = client.producer()
        with pytest.raises(BrokerError, match="the topic has 1 partitions"):
            await producer.send("t", b"v", partition=1)
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await producer.send("nothing", b"v")
        bad = await producer.send("t", b"v", timestamp=-5)
        with pytest.raises(ClientError, match="has the time -5"):
            await bad
        waiting = await producer.send("t", b"v")
        await producer.close(flush=False)
        with pytest.raises(ClientClosed):
            await waiting
        with pytest.raises(ClientClosed):
            await producer.send("t", b"v")
        for options in ({"compression": "rar"}, {"acks": 2}, {"acks": 1, "idempotent": True}, {"max_in_flight": 6}):
            with pytest.raises(ClientError):
                client.producer(**{"idempotent": True, **options})
