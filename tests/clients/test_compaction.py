"""A compacted topic as clients see it: the last message of each key, at its own offset, across the gaps."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.clients.trio import CLIENTS, CODECS, PATIENCE, PLAIN, How, Message, Read, make_topic
from tests.waiting import wait_until

import headrace
from headrace.embedded import Broker

# Compaction looks often, and segments are small: only rolled ones that a checkpoint has passed are compacted. Little
# may stay in memory, so that it is files that are read.
QUICK: dict[str, Any] = {
    "compaction_check_ms": 50,
    "retention_check_ms": 50,
    "checkpoint_ms": 100,
    "log_segment_bytes": 20_000,
    "tail_bytes": 1_000,
}
EAGER = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
SMALL_BATCHES = How(batch_bytes=2_000)


def ends(address: str, topic: str) -> tuple[int, int]:
    """The first offset of a topic and the one after its last."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "log_level": 0})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE, cached=False) or (0, 0)
    consumer.close()
    return low, high


def read(address: str, topic: str, client: str = "confluent") -> list[Read]:
    """All that is left of a topic."""
    return CLIENTS[client].read(address, topic, 1 << 30, replace(PLAIN, end=ends(address, topic)[1]))


def latest(messages: list[Message]) -> dict[bytes | None, bytes | None]:
    return {each.key: each.value for each in messages}


def seen(found: list[Read]) -> dict[bytes | None, bytes | None]:
    return {each.key: each.value for each in found}


def overwriting(keys: int, count: int, seed: int = 0) -> list[Message]:
    """Messages of a few keys, each overwritten many times, and a few keys that are written once."""
    chance = random.Random(seed)
    return [
        Message(
            (b"%d " % number).ljust(200, b"x"),
            b"once-%d-%d" % (seed, number) if number % 50 == 7 else b"key-%d" % chance.randrange(keys),
            (("n", b"%d" % number),),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_the_last_value_of_each_key_is_left(tmp_path: Path, codec: str) -> None:
    given = overwriting(20, 1_000)
    # Large segments hold little when they are packed.
    size = 20_000 if codec == "none" else 2_000
    with headrace.Broker(tmp_path / "data", **QUICK | {"log_segment_bytes": size}) as broker:
        make_topic(broker.kafka, "t", **EAGER)
        how = replace(SMALL_BATCHES, compression=codec)
        CLIENTS["confluent"].write(broker.kafka, "t", given[:500], how)
        CLIENTS["aiokafka"].write(broker.kafka, "t", given[500:], how)
        wait_until(lambda: len(read(broker.kafka, "t")) < 400, "compacted")
        for name in CLIENTS:
            check(read(broker.kafka, "t", name), given)
    # The files are what they were, and the log goes on behind them.
    with headrace.Broker(tmp_path / "data", **QUICK) as broker:
        for name in CLIENTS:
            check(read(broker.kafka, "t", name), given)
        more = overwriting(20, 100, seed=1)
        CLIENTS["kafka-python"].write(broker.kafka, "t", more, how)
        check(read(broker.kafka, "t"), given + more)


def check(found: list[Read], given: list[Message]) -> None:
    """Each message that is left is the one that was written at its offset, and no key has lost its last one."""
    offsets = [each.offset for each in found]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == len(given) - 1
    for each in found:
        sent = given[each.offset]
        assert (each.key, each.value, each.headers) == (sent.key, sent.value, sent.headers)
    assert seen(found) == latest(given)


def test_reading_from_within_a_gap(tmp_path: Path) -> None:
    given = overwriting(5, 500)
    with headrace.Broker(tmp_path / "data", **QUICK) as broker:
        make_topic(broker.kafka, "t", **EAGER)
        CLIENTS["confluent"].write(broker.kafka, "t", given, SMALL_BATCHES)
        wait_until(lambda: len(read(broker.kafka, "t")) < 300, "compacted")
        left = [each.offset for each in read(broker.kafka, "t")]
        gap = next(offset for offset in range(500) if offset not in left)
        consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "g", "auto.offset.reset": "error"})
        for start in (0, gap, left[0] + 1, left[-1]):
            consumer.assign([TopicPartition("t", 0, start)])
            message = consumer.poll(PATIENCE)
            assert message is not None
            assert message.error() is None
            # Compaction may go on meanwhile, but never below what is the last of its key.
            assert message.offset() in [offset for offset in left if offset >= start]
        consumer.close()
        low, high = ends(broker.kafka, "t")
        assert (low, high) == (0, 500)


def test_tombstones_delete_and_then_go_themselves(tmp_path: Path) -> None:
    given = overwriting(10, 300)
    deleted = [Message(None, b"key-%d" % number) for number in range(5)]
    with headrace.Broker(tmp_path / "data", **QUICK) as broker:
        make_topic(broker.kafka, "kept", **EAGER, delete_retention_ms=86_400_000)
        make_topic(broker.kafka, "gone", **EAGER, delete_retention_ms=0)
        for topic in ("kept", "gone"):
            CLIENTS["confluent"].write(broker.kafka, topic, given + deleted, SMALL_BATCHES)
            # Other keys push the tombstones out of the newest segment.
            CLIENTS["confluent"].write(broker.kafka, topic, pushing(), SMALL_BATCHES)

        def values_of_deleted(topic: str) -> list[bytes | None]:
            return [each.value for each in read(broker.kafka, topic) if each.key in latest(deleted)]

        wait_until(lambda: values_of_deleted("kept") == [None] * 5, "only the tombstones of deleted keys are left")
        # The first pass keeps them, for readers on their way; only a later pass takes them.
        wait_until(lambda: pushed(broker, "gone") and values_of_deleted("gone") == [], "the tombstones are gone")
        assert values_of_deleted("kept") == [None] * 5
        for name in CLIENTS:
            assert {key for key, value in seen(read(broker.kafka, "kept", name)).items() if value is None} == set(
                latest(deleted)
            )
        rest = {b"key-%d" % number for number in range(5, 10)}
        for topic in ("kept", "gone"):
            found = seen(read(broker.kafka, topic))
            assert {key: found[key] for key in rest} == {key: latest(given)[key] for key in rest}
    with headrace.Broker(tmp_path / "data", **QUICK) as broker:
        assert not {each.key for each in read(broker.kafka, "gone")} & set(latest(deleted))


def pushing() -> list[Message]:
    return [Message(bytes(200), b"other-%d" % (number % 3)) for number in range(250)]


def pushed(broker: Broker, topic: str) -> bool:
    """Something new to compact, so that there is another pass."""
    CLIENTS["confluent"].write(broker.kafka, topic, pushing()[:110], SMALL_BATCHES)
    return True


def test_compact_and_delete(tmp_path: Path) -> None:
    given = overwriting(10, 400)
    old = [replace(each, timestamp=1_000) for each in given[:300]]
    with headrace.Broker(tmp_path / "data", **QUICK) as broker:
        make_topic(broker.kafka, "both", **EAGER | {"cleanup_policy": "compact,delete"}, retention_ms=86_400_000)
        CLIENTS["confluent"].write(broker.kafka, "both", old, SMALL_BATCHES)
        wait_until(lambda: ends(broker.kafka, "both")[0] > 0, "old segments are dropped")
        CLIENTS["confluent"].write(broker.kafka, "both", given[300:], SMALL_BATCHES)
        wait_until(lambda: len(read(broker.kafka, "both")) < 100, "the rest is compacted")
        for name in CLIENTS:
            found = read(broker.kafka, "both", name)
            new = {key: value for key, value in seen(found).items() if value in {each.value for each in given[300:]}}
            assert new == latest(given[300:])


def test_a_message_without_a_key_is_refused(tmp_path: Path) -> None:
    with headrace.Broker(tmp_path / "data", **QUICK) as broker:
        make_topic(broker.kafka, "t", **EAGER)
        with pytest.raises(KafkaException) as refused:
            CLIENTS["confluent"].write(broker.kafka, "t", [Message(b"no key")])
        assert refused.value.args[0].code() == KafkaError.INVALID_RECORD
        CLIENTS["confluent"].write(broker.kafka, "t", [Message(b"value", b"key")])
        assert seen(read(broker.kafka, "t")) == {b"key": b"value"}


def test_compaction_under_writers_and_readers(tmp_path: Path) -> None:
    """Idempotent writers go on while their old batches are rewritten, over a restart too."""
    with headrace.Broker(tmp_path / "data", **QUICK) as broker:
        make_topic(broker.kafka, "t", **EAGER)
        given: list[Message] = []
        for turn in range(6):
            more = overwriting(8, 200, seed=turn)
            how = replace(SMALL_BATCHES, idempotent=True)
            offsets = CLIENTS["confluent"].write(broker.kafka, "t", more, how)
            assert offsets == list(range(len(given), len(given) + 200))
            given += more
            check(read(broker.kafka, "t"), given)
            if turn == 3:
                broker.stop()
                broker.start()
        wait_until(lambda: len(read(broker.kafka, "t")) < 400, "compacted")
        check(read(broker.kafka, "t"), given)
