"""A stream whose topics are deleted, made anew, or stand still, without Spark: what its reader says and plans."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from structlog.testing import capture_logs
from tests.pipeline.topics import Topics

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.waiting import wait_until

import headrace
from headrace.pipeline import readers
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import parse
from headrace.pipeline.origin import DataLost, Range
from headrace.pipeline.range_reader import read_range

pytestmark = pytest.mark.timeout(60)

ALL = ReadAllAvailable()
LAX = {"failOnDataLoss": "false"}


def stream(topics: Topics, **options: str) -> readers.StreamReader:
    said = {"kafka.bootstrap.servers": topics.address, "startingOffsets": "earliest", "timeout": "2", **options}
    return readers.StreamReader(parse(said, streaming=True))


def planned(reader: readers.StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    pieces = reader.partitions(start, end)
    return [(each.wanted.start, each.wanted.end) for each in pieces if isinstance(each, readers.RangePartition)]


def filled(topics: Topics, count: int) -> str:
    topic = topics.create()
    topics.fill(topic, [b"%d" % number for number in range(count)])
    return topic


def delete(topics: Topics, topic: str) -> None:
    topics.ask(lambda client: client.admin.delete_topic(topic))


def anew(topics: Topics, topic: str, count: int) -> None:
    delete(topics, topic)
    topics.ask(lambda client: client.admin.create_topic(topic, 1))
    topics.fill(topic, [b"%d" % number for number in range(count)])


def test_a_topic_that_is_deleted_ends_a_stream_or_is_left_out(topics: Topics) -> None:
    topic, other = filled(topics, 20), filled(topics, 3)
    begun = {topic: {"0": 20}, other: {"0": 0}}
    strict, lax = (stream(topics, subscribe=f"{topic},{other}", **more) for more in ({}, LAX))
    by_pattern = stream(topics, subscribePattern=f"{topic}|{other}")
    delete(topics, topic)
    for reader in (strict, by_pattern):
        with pytest.raises(DataLost, match=f"{topic}-0: 20 was to be read next, and there is no such partition"):
            reader.latestOffset(begun, ALL)
    assert lax.latestOffset(begun, ALL) == {other: {"0": 3}}
    # A batch that was planned before, and is run again.
    with pytest.raises(DataLost, match=f"{topic}-0: 5 was to be read next"):
        strict.partitions({topic: {"0": 5}}, {topic: {"0": 20}})
    assert planned(lax, {topic: {"0": 5}, other: {"0": 1}}, {topic: {"0": 20}, other: {"0": 3}}) == [(1, 3)]


def test_what_is_not_asked_for_any_more_is_nobodys_loss(topics: Topics) -> None:
    topic, other = filled(topics, 2), filled(topics, 3)
    begun = {topic: {"0": 2}, other: {"0": 0}}
    assert stream(topics, subscribe=other).latestOffset(begun, ALL) == {other: {"0": 3}}


def test_a_topic_that_is_made_anew_ends_a_stream_or_is_read_from_its_beginning(topics: Topics) -> None:
    topic = filled(topics, 20)
    strict, lax = (stream(topics, subscribe=topic, **more) for more in ({}, LAX))
    anew(topics, topic, 5)
    begun = {topic: {"0": 20}}
    with pytest.raises(DataLost, match="has come to 20, and the log ends at 5"):
        strict.latestOffset(begun, ALL)
    with pytest.raises(DataLost, match="has come to 20, and the log ends at 5"):
        strict.partitions({topic: {"0": 10}}, {topic: {"0": 20}})
    # What was planned of the old one is gone; the new one is read once, in as many batches as there may be.
    assert planned(lax, {topic: {"0": 3}}, {topic: {"0": 20}}) == []
    assert lax.latestOffset(begun, ALL) == {topic: {"0": 5}}
    assert planned(lax, begun, {topic: {"0": 5}}) == [(0, 5)]
    some = lax.latestOffset(begun, ReadMaxRows(2))
    assert some == {topic: {"0": 2}}
    assert planned(lax, begun, some) == [(0, 2)]
    assert planned(lax, some, lax.latestOffset(some, ALL)) == [(2, 5)]


def test_a_task_whose_topic_is_gone_or_shorter_says_so_or_reads_what_is_left(topics: Topics) -> None:
    topic = filled(topics, 5)

    def rows(wanted: Range, **more: str) -> int:
        said = {"kafka.bootstrap.servers": topics.address, "subscribe": topic, "timeout": "1", **more}
        return sum(each.num_rows for each in read_range(parse(said, streaming=True), wanted))

    for wanted, left in ((Range(topic, 0, 2, 9), 3), (Range(topic, 0, 7, 9), 0), (Range("nowhere", 0, 0, 9), 0)):
        with pytest.raises(DataLost, match="not all of them are in the log any more"):
            rows(wanted)
        assert rows(wanted, **LAX) == left


def test_a_query_that_stands_in_an_open_transaction_waits(topics: Topics) -> None:
    topic = topics.create()
    producer = Producer({"bootstrap.servers": topics.address, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(4):
        producer.produce(topic, b"open")
    producer.flush(10)
    reader = stream(topics, subscribe=topic)
    begun = {topic: {"0": 3}}
    assert reader.latestOffset(begun, ALL) == begun
    producer.abort_transaction()
    # Nothing of it is to be read, and it is waited for nothing.
    end = reader.latestOffset(begun, ALL)
    assert end == {topic: {"0": 5}}
    assert [each.num_rows for piece in reader.partitions(begun, end) for each in reader.read(piece)] == []


def test_a_query_of_what_is_available_may_end_before_the_log(topics: Topics) -> None:
    topic = filled(topics, 20)
    said = {"kafka.bootstrap.servers": topics.address, "subscribe": topic, "startingOffsets": "earliest"}
    end = {"endingOffsets": f'{{"{topic}": {{"0": 12}}}}'}

    def begin() -> readers.StreamReader:
        return readers.StreamReader(parse({**said, **end}, streaming=True, bounded=True))

    reader = begin()
    with pytest.raises(InvalidOption, match="this stream has no end"):
        reader.latestOffset({topic: {"0": 0}}, ALL)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset({topic: {"0": 0}}, ReadMaxRows(5)) == {topic: {"0": 5}}
    assert reader.latestOffset({topic: {"0": 5}}, ALL) == {topic: {"0": 12}}
    # The same again, and a range that lies before what is done: there is nothing left.
    topics.fill(topic, [b"more"])
    reader = begin()
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset({topic: {"0": 12}}, ALL) == {topic: {"0": 12}}
    assert reader.latestOffset({topic: {"0": 15}}, ALL) == {topic: {"0": 15}}
    anew(topics, topic, 3)
    reader = begin()
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLost, match="made anew"):
        reader.latestOffset({topic: {"0": 12}}, ALL)


def test_the_group_is_told_once_where_a_query_stands(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = filled(topics, 2)
    reader = stream(topics, subscribe=topic, **{"kafka.group.id": topic})
    told = []
    asked: Callable[..., Any] = readers.CatalogueConnection.__call__

    def counted(self: readers.CatalogueConnection, ask: Any) -> Any:
        told.append(ask.__name__)
        return asked(self, ask)

    monkeypatch.setattr(readers.CatalogueConnection, "__call__", counted)
    for _ in range(3):
        reader.latestOffset({topic: {"0": 1}}, ALL)
    reader.commit({topic: {"0": 2}})
    assert told.count("follow") == 2
    assert topics.committed(topic) == {(topic, 0): 2}


def test_a_stream_keeps_its_connection_over_restarts_of_the_broker(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        kafka = f"127.0.0.1:{free.getsockname()[1]}"
    with headrace.Broker(tmp_path, kafka=kafka) as broker:
        topics = Topics(broker.kafka)
        topic = filled(topics, 2)
        reader = stream(topics, subscribe=topic, timeout="20")
        assert reader.latestOffset({topic: {"0": 0}}, ALL) == {topic: {"0": 2}}
    with headrace.Broker(tmp_path, kafka=kafka):
        topics.fill(topic, [b"2"])
        assert reader.latestOffset({topic: {"0": 0}}, ALL) == {topic: {"0": 3}}
        # A reader goes to tasks as it is.
        again = pickle.loads(pickle.dumps(reader))
        pieces = again.partitions({topic: {"0": 1}}, {topic: {"0": 3}})
        assert [each.num_rows for piece in pieces for each in again.read(piece)] == [2]
        again.stop()
        reader.stop()
        assert reader.reportLatestOffset() == {topic: {"0": 3}}
        reader.stop()


def test_a_batch_waits_for_enough_or_for_long_enough(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = filled(topics, 2)
    now = 100.0
    monkeypatch.setattr(readers, "monotonic", lambda: now)
    reader = stream(topics, subscribe=topic, minOffsetsPerTrigger="3", maxTriggerDelay="1m")
    first, two, five = ({topic: {"0": offset}} for offset in (0, 2, 5))
    # As with Spark's own source, the first batch waits for nothing.
    assert reader.latestOffset(first, ALL) == two
    topics.fill(topic, [b"2", b"3"])
    assert reader.latestOffset(two, ALL) == two
    topics.fill(topic, [b"4"])
    assert reader.latestOffset(two, ALL) == five
    topics.fill(topic, [b"5"])
    now += 59
    assert reader.latestOffset(five, ALL) == five
    now += 1
    assert reader.latestOffset(five, ALL) == {topic: {"0": 6}}
    # A query that takes what is there now waits for nothing.
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(five, ALL) == {topic: {"0": 6}}


def test_offsets_of_partitions_that_are_not_read_are_named(topics: Topics) -> None:
    topic = filled(topics, 2)
    for offsets in (f'{{"{topic}": {{"1": 0}}}}', '{"evnts": {"0": 0}}'):
        with pytest.raises(InvalidOption, match="is not among the partitions that are read"):
            stream(topics, subscribe=topic, startingOffsets=offsets).initialOffset()
    times = f'{{"{topic}": {{"0": 4000000000000}}}}'
    assert stream(topics, subscribe=topic, startingOffsetsByTimestamp=times).initialOffset() == {topic: {"0": 2}}
    strict = stream(
        topics, subscribe=topic, startingOffsetsByTimestamp=times, startingOffsetsByTimestampStrategy="error"
    )
    with pytest.raises(InvalidOption, match="has no record of 4000000000000 ms or later"):
        strict.initialOffset()


def test_a_pattern_means_the_brokers_own_topics_only_where_it_says_so(topics: Topics) -> None:
    topic = filled(topics, 1)
    topics.ask(lambda client: client.admin.commit("some-group", {(topic, 0): 1}))
    found = stream(topics, subscribePattern=".*").initialOffset()
    assert topic in found
    assert not [name for name in found if name.startswith("__")]
    assert "__consumer_offsets" in stream(topics, subscribePattern="__consumer.*").initialOffset()


def test_a_group_with_members_is_not_asked_again_and_again(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, group = filled(topics, 5), "members"
    consumer = Consumer({"bootstrap.servers": topics.address, "group.id": group, "enable.auto.commit": False})
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()))
    reader = stream(topics, subscribe=topic, **{"kafka.group.id": group})
    with capture_logs() as logs:
        for _ in range(10):
            assert reader.latestOffset({topic: {"0": 3}}, ALL) == {topic: {"0": 5}}
    assert [each["event"] for each in logs] == ["the query's group could not be moved"]
    # Once its members are gone, it follows.
    consumer.close()
    reader.commit({topic: {"0": 5}})
    assert (topic, 0) not in topics.committed(group)
    monkeypatch.setattr(readers, "REFUSED_SECONDS", 0.0)
    reader.commit({topic: {"0": 5}})
    assert topics.committed(group) == {(topic, 0): 5}
    reader.stop()
