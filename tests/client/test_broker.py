"""The client against a real broker: Headrace, or the one that HEADRACE_TEST_KAFKA names (an Apache Kafka, say)."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.certificates import Authority
from tests.waiting import SECONDS, until

import headrace
from headrace.client import EARLIEST, LATEST, MAX_TIMESTAMP, BrokerError, Client, ConnectionLost
from headrace.client.lookups import ListedOffset
from headrace.client.messages import request


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


def fresh() -> str:
    return f"t-{uuid4().hex[:12]}"


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_records_in_and_out(client: Client, compression: str) -> None:
    topic = fresh()
    state = await client.admin.create_topic(topic, 3)
    assert state is not None
    assert len(state.partitions) == 3
    sent = {}
    async with client.producer(compression=compression, batch_bytes=4000) as producer:
        deliveries = []
        for number in range(500):
            key = b"key %d" % (number % 20) if number % 3 else None
            value = None if number % 50 == 0 else b"value %d " % number * 5
            headers = [("n", b"%d" % number), ("null", None)] if number % 7 == 0 else []
            record = (1_700_000_000_000 + number, key, value, headers)
            deliveries.append((record, await producer.send(topic, value, key, headers=headers, timestamp=record[0])))
        for record, delivery in deliveries:
            place = await delivery
            sent[place.partition, place.offset] = record
    assert len(sent) == 500
    async with client.consumer() as consumer:
        await consumer.assign({(topic, index): EARLIEST for index in range(3)})
        found = {
            (each.partition, each.offset): each[3:] async for each in consumer.records(await consumer.end_offsets())
        }
    assert found == sent


async def test_large_messages(client: Client) -> None:
    topic = fresh()
    await client.admin.create_topic(topic, 1, {"max.message.bytes": "12000000"})
    value = os.urandom(1000) * 10_000
    async with client.producer() as producer:
        await producer.send(topic, value)
        await producer.send(topic, b"small")
    async with client.consumer() as consumer:
        await consumer.assign({(topic, 0): EARLIEST})
        found = [each.value async for each in consumer.records(await consumer.end_offsets())]
    assert found == [value, b"small"]
    await client.admin.alter_topic_config(topic, {"max.message.bytes": "1000"})
    producer = client.producer()
    for _ in range(50):
        # A change of the configuration takes its time on Kafka.
        try:
            await (await producer.send(topic, value))
        except BrokerError as error:
            refused = error
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("the large message was never refused")
    assert refused.error.name == "message_too_large"
    assert (await (await producer.send(topic, b"goes on"))).offset >= 2
    await producer.close(flush=False)


async def test_offsets(client: Client) -> None:
    topic = fresh()
    await client.admin.create_topic(topic, 2)
    partition = (topic, 1)
    async with client.producer() as producer:
        for stamp in (100, 300, 200, 400):
            await producer.send(topic, b"v", partition=1, timestamp=stamp * 1_000_000)
    expected = {EARLIEST: 0, LATEST: 4, 100_000_000: 0, 100_000_001: 1, 300_000_001: 3, 400_000_001: -1}
    for timestamp, offset in expected.items():
        assert (await client.admin.list_offsets({partition: timestamp}))[partition].offset == offset
    latest = (await client.admin.list_offsets({partition: MAX_TIMESTAMP, (topic, 0): LATEST}))[partition]
    assert latest == ListedOffset(latest.topic, latest.partition, 0, 400_000_000, 3, latest.leader_epoch)
    async with client.consumer() as consumer:
        await consumer.assign_at([partition, (topic, 0)], 250_000_000)
        assert consumer.positions == {partition: 1, (topic, 0): 0}
    assert await client.admin.delete_records({partition: 2}) == {partition: 2}
    assert (await client.admin.list_offsets({partition: EARLIEST}))[partition].offset == 2
    sizes = await client.admin.sizes()
    assert sizes[partition] > 0
    assert sizes[topic, 0] == 0


async def test_topics(client: Client) -> None:
    topic = fresh()
    await client.admin.create_topic(topic, 2, {"retention.ms": "3600000", "cleanup.policy": "compact"})
    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
        await client.admin.create_topic(topic, 2)
    with pytest.raises(BrokerError, match="INVALID_TOPIC"):
        await client.admin.create_topic("no/slash", 1)
    with pytest.raises(BrokerError, match="INVALID_CONFIG"):
        await client.admin.create_topic(fresh(), 1, {"retention.ms": "soon"})
    # One that exists stays as it is; other errors are raised.
    await client.admin.ensure_topic(topic, 5, {"retention.ms": "1000"})
    assert len((await client.cluster.topic(topic)).partitions) == 2
    with pytest.raises(BrokerError, match="no/slash"):
        await client.admin.ensure_topic("no/slash", 1)
    await client.admin.ensure_topic(made := fresh(), 3)
    assert len((await client.cluster.topic(made)).partitions) == 3
    assert await client.admin.create_topic(unmade := fresh(), 1, validate_only=True) is None
    names = {each.name for each in await client.cluster.topics()}
    assert topic in names
    assert unmade not in names
    config = {each.name: each for each in await client.admin.topic_config(topic, documentation=True)}
    assert (config["retention.ms"].value, config["retention.ms"].is_default) == ("3600000", False)
    assert config["segment.bytes"].is_default
    assert config["segment.bytes"].documentation
    await client.admin.create_partitions(topic, 5)
    with pytest.raises(BrokerError, match="INVALID_PARTITIONS"):
        await client.admin.create_partitions(topic, 3)

    async def has_grown() -> bool:
        client.cluster.forget([topic])
        return len((await client.cluster.topic(topic)).partitions) == 5

    # A real Kafka shows what was changed a moment later.
    await until(has_grown)
    async with client.producer() as producer:
        assert (await (await producer.send(topic, b"v", b"k", partition=4))).offset == 0
    await client.admin.delete_topic(topic)
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await client.admin.delete_topic(topic)
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await client.admin.list_offsets({(fresh(), 0): LATEST})


async def test_a_grown_topic_is_noticed_by_a_producer(client: Client) -> None:
    topic = fresh()
    await client.admin.create_topic(topic, 1)
    async with client.producer(linger=0) as producer:
        await (await producer.send(topic, b"v"))
        await client.admin.create_partitions(topic, 3)
        for _ in range(50):
            try:
                assert (await (await producer.send(topic, b"v", partition=2))).partition == 2
                break
            except BrokerError:
                await asyncio.sleep(0.05)
        else:
            pytest.fail("the new partition was never found")


async def test_groups(client: Client) -> None:
    topic, group = fresh(), f"g-{fresh()}"
    await client.admin.create_topic(topic, 2)
    async with client.producer() as producer:
        for number in range(10):
            await producer.send(topic, b"v", partition=number % 2)
    async with client.consumer() as consumer:
        await consumer.assign({(topic, 0): EARLIEST, (topic, 1): 3})
        async for _ in consumer.chunks(await consumer.end_offsets()):
            pass
        await consumer.commit(group)
    committed = await client.admin.committed(group)
    assert {each: found.offset for each, found in committed.items()} == {(topic, 0): 5, (topic, 1): 5}
    assert await client.admin.committed(group, [(topic, 1)]) == {(topic, 1): committed[topic, 1]}
    assert group in {each.group for each in await client.admin.groups()}
    described = await client.admin.describe_group(group)
    assert (described.state, described.type, described.members) == ("Empty", "classic", ())
    await client.admin.commit(group, {(topic, 0): 2}, "by hand")
    assert (await client.admin.committed(group))[topic, 0].metadata == "by hand"
    await client.admin.delete_offsets(group, [(topic, 0)])
    assert set(await client.admin.committed(group)) == {(topic, 1)}
    await client.admin.delete_group(group)
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        await client.admin.delete_group(group)


async def test_a_group_of_the_consumer_protocol(client: Client) -> None:
    topic, group = fresh(), f"g-{fresh()}"
    await client.admin.create_topic(topic, 2)

    async def beat(member: str, epoch: int) -> Any:
        asked = request(
            "consumer_group_heartbeat",
            1,
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            rebalance_timeout=60_000,
            server_assignor="range",
            subscribed_topic_names=[topic],
            topic_partitions=[],
        )
        reply = await (await client.cluster.coordinator(group)).call(asked)
        assert reply.error_code == 0, reply.error_message
        return reply

    assert (await client.admin.describe_group(group)).state == "Dead"
    epoch = (await beat("a", 0)).member_epoch
    [listed] = [each for each in await client.admin.groups() if each.group == group]
    assert (listed.type, listed.protocol_type) == ("consumer", "consumer")
    # Where the broker takes its time for the targets, the member is told of them by a later heartbeat.
    while not (found := await client.admin.describe_group(group)).members[0].partitions:
        await beat("a", epoch)
    [member] = found.members
    assert (found.state, found.type, found.protocol) == ("Stable", "consumer", "range")
    assert (member.member_id, member.instance_id, member.client_id) == ("a", None, "headrace")
    assert member.partitions == member.target == ((topic, 0), (topic, 1))
    await beat("b", 0)
    found = await client.admin.describe_group(group)
    assert found.epoch is not None
    assert found.epoch > epoch
    assert found.state in ("Assigning", "Reconciling")
    # The first has not given anything back yet.
    first, second = sorted(found.members, key=lambda each: each.member_id)
    assert (first.partitions, second.partitions) == (member.partitions, ())
    if found.assignment_epoch == found.epoch:
        assert (first.target, second.target) == (((topic, 0),), ((topic, 1),))
    for each in ("a", "b"):
        await beat(each, -1)
    found = await client.admin.describe_group(group)
    assert (found.state, found.members) == ("Empty", ())
    await client.admin.delete_group(group)


async def test_groups_of_a_broker_without_the_consumer_protocol(client: Client) -> None:
    topic, group = fresh(), f"g-{fresh()}"
    await client.admin.create_topic(topic, 1)
    await client.admin.commit(group, {(topic, 0): 0})
    # As Kafka 3.7 has them.
    connection = await client.cluster.coordinator(group)
    connection.versions = {**connection.versions, 16: (0, 4)}
    del connection.versions[69]
    assert [each.type for each in await client.admin.groups() if each.group == group] == ["classic"]
    assert (await client.admin.describe_group(f"no-{group}")).state == "Dead"


async def test_nobody_there() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    begin = time.monotonic()
    async with Client(f"127.0.0.1:{port}", timeout=0.5) as client:
        with pytest.raises(ConnectionLost, match="the broker closed it"):
            await client.cluster.topics()
    server.close()
    await server.wait_closed()
    async with Client(f"127.0.0.1:{port},127.0.0.1:{port}", timeout=0.5) as client:
        with pytest.raises(ConnectionLost, match="cannot reach "):
            await client.cluster.topics()
    assert time.monotonic() - begin < 20


async def test_a_broker_that_does_not_speak_tls_is_said_to_hang_up() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    async with server, Client(address, tls=ssl.create_default_context(), timeout=0.5) as client:
        with pytest.raises(ConnectionLost, match=r"cannot reach .*: it hung up during the TLS handshake"):
            await client.cluster.any_node()


async def test_a_restarted_broker(tmp_path: Path) -> None:
    """A client survives its broker: the producer goes on without loss or doubles, the consumer too."""
    broker = headrace.Broker(data=tmp_path)
    broker.start()
    host, _, port = broker.kafka.rpartition(":")
    try:
        async with Client(broker.kafka, timeout=20) as client:
            await client.admin.create_topic("t", 1)
            async with client.producer(linger=0) as producer, client.consumer(max_wait=0.1) as consumer:
                await consumer.assign({("t", 0): EARLIEST})
                reading = asyncio.ensure_future(_read(consumer, 60))
                for number in range(20):
                    await (await producer.send("t", b"%d" % number))
                await asyncio.to_thread(broker.stop)
                waiting = [await producer.send("t", b"%d" % number) for number in range(20, 40)]
                await asyncio.sleep(0.2)
                broker = headrace.Broker(data=tmp_path, kafka=f"{host}:{port}")
                await asyncio.to_thread(broker.start)
                await asyncio.gather(*waiting)
                for number in range(40, 60):
                    await (await producer.send("t", b"%d" % number))
                assert await asyncio.wait_for(reading, SECONDS) == [b"%d" % number for number in range(60)]
    finally:
        await asyncio.to_thread(broker.stop)


async def _read(consumer: headrace.client.Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async for record in consumer.records():
        found.append(record.value)
        if len(found) == count:
            return found
    return found


async def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("127.0.0.1")
    client_cert, client_key = authority.issue("a client")
    data = tmp_path / "data"
    with headrace.Broker(data=data, tls_cert=str(cert), tls_key=str(key), tls_client_ca=str(authority.path)) as broker:
        context = ssl.create_default_context(cafile=str(authority.path))
        context.load_cert_chain(client_cert, client_key)
        async with Client(broker.kafka, tls=context) as client:
            await client.admin.create_topic("t", 1)
            async with client.producer() as producer:
                for _ in range(100):
                    await producer.send("t", bytes(20_000))
            async with client.consumer() as consumer:
                await consumer.assign({("t", 0): EARLIEST})
                found = [each.value async for each in consumer.records(await consumer.end_offsets())]
            assert found == [bytes(20_000)] * 100
        async with Client(broker.kafka, tls=ssl.create_default_context(), timeout=SECONDS) as client:
            with pytest.raises(ConnectionLost, match="certificate verify failed"):
                await client.cluster.any_node()
        async with Client(broker.kafka, timeout=SECONDS) as client:
            with pytest.raises(ConnectionLost):
                await client.cluster.any_node()
