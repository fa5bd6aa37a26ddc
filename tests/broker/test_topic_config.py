from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.setting_kinds import IGNORED, set_by_operator
from headrace.broker.topic_config import SETTINGS, clean, settings_of, table
from headrace.config import Config
from headrace.errors import InvalidTopicConfig
from headrace.log.interface import Durability, TopicSettings

DOCS = Path(__file__).parents[2] / "docs" / "configuration-topics.md"

# What Apache Kafka 4.3 answers to DescribeConfigs of a topic.
KAFKA = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]


OWN = [
    "consumed.pinned.segments",
    "deduplication.window.ms",
    "delay",
    "durability",
    "index",
    "lake",
    "lake.freshness.ms",
    "lake.schema",
    "mask",
    "overflow",
    "overflow.block.ms",
    "overflow.bytes",
    "overflow.group",
    "overflow.lag",
    "queues.paused",
    "retention",
    "retention.archive",
    "retention.archive.group",
    "rocketmq.perm",
    "rocketmq.message.type",
    "rocketmq.read.queues",
    "rocketmq.write.queues",
]


def test_every_setting_of_kafka_and_headraces_own() -> None:
    assert sorted(SETTINGS) == sorted([*KAFKA, *OWN])


def test_defaults_are_valid_and_make_the_logs_own_defaults() -> None:
    config = Config()
    for setting in SETTINGS.values():
        default = setting.default_in(config)
        assert clean(setting.name, default) == default
        assert not set_by_operator(setting, config)
    assert settings_of({}, config) == TopicSettings()


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("retention.ms", " 5 ", "5"),
        ("retention.ms", "-1", "-1"),
        ("preallocate", "TRUE", "true"),
        ("cleanup.policy", " compact , delete ", "compact,delete"),
        ("cleanup.policy", "compact,compact", "compact"),
        ("cleanup.policy", "", ""),
        ("min.cleanable.dirty.ratio", "0.25", "0.25"),
        ("min.cleanable.dirty.ratio", "1", "1"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("leader.replication.throttled.replicas", "0:1, 1:1", "0:1,1:1"),
        ("compression.gzip.level", "-1", "-1"),
        ("durability", "memory", "memory"),
        ("retention", "consumed", "consumed"),
        ("overflow", "drop-oldest", "drop-oldest"),
        ("overflow.lag", "1", "1"),
        ("overflow.lag", "-1", "-1"),
        ("overflow.bytes", "16384", "16384"),
        ("overflow.group", " readers ", "readers"),
        ("consumed.pinned.segments", "-1", "-1"),
    ],
)
def test_values_as_they_are_stored(name: str, given: str, stored: str) -> None:
    assert clean(name, given) == stored


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("nope", "1"),
        ("retention.ms", "abc"),
        ("retention.ms", ""),
        ("retention.ms", "-2"),
        ("retention.ms", "1.5"),
        ("retention.ms", str(1 << 63)),
        ("segment.bytes", "10"),
        ("segment.bytes", "99999999999"),
        ("segment.ms", "0"),
        ("preallocate", "maybe"),
        ("cleanup.policy", "none"),
        ("cleanup.policy", "delete,x"),
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("compression.lz4.level", "18"),
        ("min.cleanable.dirty.ratio", "2"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "inf"),
        ("message.timestamp.type", "createtime"),
        ("leader.replication.throttled.replicas", "a"),
        ("remote.storage.enable", "true"),
        ("durability", "none"),
        ("retention", "never"),
        ("overflow", "drop"),
        ("overflow.lag", "0"),
        ("overflow.lag", "-2"),
        ("overflow.bytes", "16383"),
        ("overflow.block.ms", "0"),
        ("consumed.pinned.segments", "0"),
    ],
)
def test_values_that_are_refused(name: str, given: str) -> None:
    with pytest.raises(InvalidTopicConfig) as refusal:
        clean(name, given)
    assert name in str(refusal.value)


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(InvalidTopicConfig, match=r"min\.compaction\.lag\.ms"):
        settings_of({"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "10"}, Config())


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"overflow": "block"}, "overflow.lag"),
        ({"overflow": "reject", "overflow.bytes": "16384"}, "overflow.lag"),
        ({"overflow": "drop-oldest", "overflow.lag": "5"}, "overflow.bytes"),
        ({"overflow": "drop-oldest", "overflow.bytes": "16384", "cleanup.policy": "compact"}, "cleanup.policy"),
        ({"retention": "consumed", "cleanup.policy": "compact,delete"}, "cleanup.policy"),
    ],
)
def test_a_policy_without_its_bound_is_refused(given: dict[str, str], missing: str) -> None:
    with pytest.raises(InvalidTopicConfig, match=missing):
        settings_of(given, Config())


def test_drop_oldest_has_several_segments_and_batches_under_its_bound() -> None:
    given = {"overflow": "drop-oldest", "overflow.bytes": "800000"}
    settings = settings_of(given, Config())
    assert (settings.segment_bytes, settings.max_batch_bytes, settings.retention_bytes) == (100_000, 400_000, -1)
    settings = settings_of({**given, "overflow.bytes": str(1 << 40)}, Config())
    assert (settings.segment_bytes, settings.max_batch_bytes) == (1 << 30, 1_048_588)
    memory = {**given, "durability": "memory"}
    assert settings_of(memory, Config()).retention_bytes == 800_000
    assert settings_of({**memory, "retention.bytes": "1000"}, Config()).retention_bytes == 1000
    # The bound means nothing to the other policies.
    assert settings_of({"overflow.bytes": "800000"}, Config()) == TopicSettings()


def test_consumed_topics_are_kept_by_time_and_size_only_if_they_say_so() -> None:
    config = Config(log_retention_ms=7, log_retention_bytes=8)
    settings = settings_of({"retention": "consumed"}, config)
    assert (settings.retention_ms, settings.retention_bytes) == (-1, -1)
    settings = settings_of({"retention": "consumed", "retention.ms": "9"}, config)
    assert (settings.retention_ms, settings.retention_bytes) == (9, -1)
    settings = settings_of({"retention": "consumed", "retention.bytes": "10"}, config)
    assert (settings.retention_ms, settings.retention_bytes) == (-1, 10)


def test_what_the_log_is_told() -> None:
    given = {
        "cleanup.policy": "compact",
        "durability": "async",
        "index": "key",
        "message.timestamp.type": "LogAppendTime",
        "segment.bytes": "2000000",
        "min.cleanable.dirty.ratio": "0.1",
    }
    settings = settings_of(given, Config(log_retention_ms=7, durability="memory"))
    assert (settings.compact, settings.delete) == (True, False)
    assert settings.durability is Durability.ASYNC
    assert settings.log_append_time
    assert settings.segment_bytes == 2_000_000
    assert settings.retention_ms == 7
    assert settings.min_cleanable_dirty_ratio == 0.1


def test_every_honoured_setting_reaches_the_log() -> None:
    """A setting that is not said to be ignored changes what the log is told, save those that other parts act on."""
    other = {
        "cleanup.policy": "compact",
        "durability": "async",
        "index": "key",
        "message.timestamp.type": "LogAppendTime",
        "min.cleanable.dirty.ratio": "0.9",
        "segment.bytes": "1048577",
    }
    acted_on_elsewhere = {
        "remote.storage.enable",
        "consumed.pinned.segments",
        "delay",
        "queues.paused",
        "retention",
        "mask",
    }
    others = ("overflow", "deduplication", "retention.archive", "lake", "rocketmq")
    acted_on_elsewhere |= {name for name in SETTINGS if name.startswith(others)}
    for setting in SETTINGS.values():
        changed = (
            settings_of({setting.name: clean(setting.name, other.get(setting.name, "1"))}, Config())
            if (setting.name not in acted_on_elsewhere and setting.honoured)
            else None
        )
        if changed is not None:
            assert changed != TopicSettings(), setting.name


@pytest.mark.parametrize(
    "value", ["keys", "key,header:", "header", ",".join(f"header:{n}" for n in range(9)), "header:\x01"]
)
def test_an_index_of_what_is_no_field(value: str) -> None:
    with pytest.raises(InvalidTopicConfig):
        clean("index", value)


def test_what_is_ignored_says_so() -> None:
    for setting in SETTINGS.values():
        assert setting.honoured != setting.doc.startswith(IGNORED)
        assert setting.doc.endswith(".")


def test_the_documentation_is_the_table() -> None:
    assert table() in DOCS.read_text(), "paste the output of headrace.broker.topic_config.table() there"
