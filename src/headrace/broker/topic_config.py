"""The settings of a topic: every name that Kafka 4 knows, and Headrace's own.

One table holds them. The sentence on what a setting does also names what Headrace accepts and ignores, so that a script
written for Kafka works and does not deceive. A topic stores only what was given for it; `settings_of` maps that and the
defaults to the `TopicSettings` that the log acts on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from headrace.broker.browse.mask import check_mask
from headrace.broker.search.fields import check_index
from headrace.broker.setting_kinds import (
    BROKER_DEFAULTS,
    IGNORED,
    INT_MAX,
    LONG_MAX,
    Check,
    Kind,
    Setting,
    accept,
    as_list,
    at_least,
    clean_value,
    none_or_at_least,
    one_of,
)
from headrace.broker.settings import BrokerSettings
from headrace.errors import InvalidTopicConfig
from headrace.lake import check_place, check_schema
from headrace.log.interface import Durability, TopicSettings

SEGMENTS_UNDER_BOUND = 8

NOTHING: Mapping[str, str] = {}


def _policies(text: str) -> str | None:
    unknown = [policy for policy in as_list(text) if policy not in ("delete", "compact")]
    return f"it is a list of delete and compact, and {unknown[0]} is neither" if unknown else None


def _throttled(text: str) -> str | None:
    given = as_list(text)
    if given in ([], ["*"]):
        return None
    for pair in given:
        partition, _, replica = pair.partition(":")
        if not (partition.isdecimal() and replica.isdecimal()):
            return "it is empty, * or a list of PARTITION:BROKER"
    return None


def _gzip_level(text: str) -> str | None:
    return None if text == "-1" or 1 <= int(text) <= 9 else "it must be -1, or 1 to 9"


# Kafka's settings that are accepted and ignored, by the reason: name, type, default, rule, name of the broker's own.
_IGNORED: Mapping[str, Sequence[tuple[str, Kind, str, Check, str]]] = {
    "batches stay as their producer compressed them.": (
        ("compression.gzip.level", Kind.INT, "-1", _gzip_level, "compression.gzip.level"),
        ("compression.lz4.level", Kind.INT, "9", at_least(1, 17), "compression.lz4.level"),
        (
            "compression.type",
            Kind.STRING,
            "producer",
            one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            "compression.type",
        ),
        ("compression.zstd.level", Kind.INT, "3", at_least(-131072, 22), "compression.zstd.level"),
    ),
    "files are removed once no reader holds them.": (
        ("file.delete.delay.ms", Kind.LONG, "60000", at_least(0), "log.segment.delete.delay.ms"),
    ),
    "`durability` says when records reach the device.": (
        ("flush.messages", Kind.LONG, str(LONG_MAX), at_least(1), "log.flush.interval.messages"),
        ("flush.ms", Kind.LONG, str(LONG_MAX), at_least(0), ""),
    ),
    "`replica.copy.bytes.per.second` bounds what copying takes, and one node has no followers.": (
        ("follower.replication.throttled.replicas", Kind.LIST, "", _throttled, ""),
        ("leader.replication.throttled.replicas", Kind.LIST, "", _throttled, ""),
    ),
    "there is no remote tier.": (
        ("local.retention.bytes", Kind.LONG, "-2", at_least(-2), "log.local.retention.bytes"),
        ("local.retention.ms", Kind.LONG, "-2", at_least(-2), "log.local.retention.ms"),
        ("remote.log.copy.disable", Kind.BOOLEAN, "false", accept, ""),
        ("remote.log.delete.on.disable", Kind.BOOLEAN, "false", accept, ""),
    ),
    "the setting of the group counts (`headrace cluster set`), and one node is all the replicas there are.": (
        ("min.insync.replicas", Kind.INT, "1", at_least(1, INT_MAX), "min.insync.replicas"),
    ),
    "the log reserves the space that it needs.": (("preallocate", Kind.BOOLEAN, "false", accept, "log.preallocate"),),
    "indexes grow as they need to.": (
        ("segment.index.bytes", Kind.INT, "10485760", at_least(4, INT_MAX), "log.index.size.max.bytes"),
    ),
    "segments roll at their own age.": (("segment.jitter.ms", Kind.LONG, "0", at_least(0), ""),),
    "the setting of the group counts (`headrace cluster set`), and one node has no elections.": (
        ("unclean.leader.election.enable", Kind.BOOLEAN, "false", accept, "unclean.leader.election.enable"),
    ),
}
_HONOURED = (
    Setting(
        "cleanup.policy",
        Kind.LIST,
        "delete",
        "What happens to old records: `delete` drops whole segments by age and size, `compact` keeps the last "
        "record of each key, and both may be given; an empty list keeps everything.",
        _policies,
        broker_name="log.cleanup.policy",
    ),
    Setting(
        "consumed.pinned.segments",
        Kind.INT,
        "8",
        "Headrace's own. Under `retention=consumed`, unsettled messages of a queue that keep back more than this "
        "many segments' worth of settled ones are moved to the queue's parking topic; -1: never.",
        none_or_at_least(1),
    ),
    Setting(
        "deduplication.window.ms",
        Kind.LONG,
        "-1",
        "Headrace's own. For how long a message with a `headrace-dedup-id` that was there before is not stored "
        "again; 0: it is. -1: it is, until the first message with an id comes over HTTP or NSQ, which sets the "
        "broker's `deduplication_window_ms` here. Every batch is looked through for ids while there is a window.",
        at_least(-1, 604_800_000),
    ),
    Setting(
        "delay",
        Kind.BOOLEAN,
        "false",
        "Headrace's own. Whether a record with the header `headrace-deliver-at` waits in the timer until then; "
        "every batch is looked through for it.",
    ),
    Setting(
        "delete.retention.ms",
        Kind.LONG,
        "86400000",
        "How long compaction keeps a tombstone, so that slow readers still learn of the deletion.",
        at_least(0),
        broker_name="log.cleaner.delete.retention.ms",
    ),
    Setting(
        "durability",
        Kind.STRING,
        "sync",
        "Headrace's own. What an acknowledgement promises: `sync` survives a power cut, `async` survives the death "
        "of the process, `memory` is never written. It cannot change between `memory` and the others once the "
        "topic is made.",
        one_of("sync", "async", "memory"),
        "durability",
    ),
    Setting(
        "index",
        Kind.LIST,
        "",
        "Headrace's own. What messages can be searched for without reading all of them: a list of `key` (the key, and "
        "RocketMQ's KEYS), `id` (RocketMQ's unique key), `tags` (RocketMQ's tag) and `header:NAME`. Topics that "
        "RocketMQ's clients make have `key,id`; empty: none.",
        check_index,
    ),
    Setting(
        "index.interval.bytes",
        Kind.INT,
        "4096",
        "About how many bytes of records lie between two entries of the offset index.",
        at_least(0, INT_MAX),
        broker_name="log.index.interval.bytes",
    ),
    Setting(
        "lake",
        Kind.STRING,
        "",
        "Headrace's own. A table that follows the topic, written by `headrace pipeline lake`: KIND+PLACE, such as "
        "`iceberg+s3://bucket/orders`, `delta+file:///srv/orders`, `parquet+/srv/orders`. Records are kept until the "
        "table has them, whatever their age and the size; empty: none.",
        check_place,
    ),
    Setting(
        "lake.freshness.ms",
        Kind.LONG,
        "60000",
        "Headrace's own. How soon a record is in the table of `lake`.",
        at_least(1_000),
    ),
    Setting(
        "lake.schema",
        Kind.STRING,
        "",
        "Headrace's own. The columns that values, which are JSON, have in the table of `lake`: Spark's DDL "
        "(`id BIGINT, name STRING`), or a JSON Schema; empty: inferred, and growing with the fields that come.",
        check_schema,
    ),
    Setting(
        "mask",
        Kind.LIST,
        "",
        "Headrace's own. What is hidden from those who look at messages in the console or over HTTP, unless they may "
        "alter the topic's settings and ask for it: a list of `key`, `header:NAME` and paths into values that are JSON "
        "(`customer.card`, `items[*].price`). Consumers get messages as they are.",
        check_mask,
    ),
    Setting(
        "max.compaction.lag.ms",
        Kind.LONG,
        str(LONG_MAX),
        "A record is compacted at the latest when it is this old, however little there is to clean.",
        at_least(1),
        broker_name="log.cleaner.max.compaction.lag.ms",
    ),
    Setting(
        "max.message.bytes",
        Kind.INT,
        "1048588",
        "The largest batch, compressed as it comes, that the topic accepts.",
        at_least(0, INT_MAX),
        "message_max_bytes",
        "message.max.bytes",
    ),
    Setting(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        "3600000",
        "How far a producer's timestamp may lie ahead of the broker's clock.",
        at_least(0),
        broker_name="log.message.timestamp.after.max.ms",
    ),
    Setting(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        str(LONG_MAX),
        "How far a producer's timestamp may lie behind the broker's clock.",
        at_least(0),
        broker_name="log.message.timestamp.before.max.ms",
    ),
    Setting(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Whose clock a record carries: the producer's (`CreateTime`) or the broker's (`LogAppendTime`).",
        one_of("CreateTime", "LogAppendTime"),
        broker_name="log.message.timestamp.type",
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        "0.5",
        "Compaction starts once this share of a partition's bytes has not been compacted yet.",
        at_least(0, 1),
        broker_name="log.cleaner.min.cleanable.ratio",
    ),
    Setting(
        "min.compaction.lag.ms",
        Kind.LONG,
        "0",
        "A record stays uncompacted at least this long.",
        at_least(0),
        broker_name="log.cleaner.min.compaction.lag.ms",
    ),
    Setting(
        "overflow",
        Kind.STRING,
        "spill",
        "Headrace's own. What happens when producers are faster than readers: `spill` keeps everything on disk, "
        "`block` lets producers wait, `reject` refuses them, `drop-oldest` forgets the oldest records. `block` and "
        "`reject` need `overflow.lag`, `drop-oldest` needs `overflow.bytes`.",
        one_of("spill", "block", "reject", "drop-oldest"),
    ),
    Setting(
        "overflow.block.ms",
        Kind.LONG,
        "20000",
        "How long a producer waits at most before it gets an error to retry; never longer than two thirds of "
        "the time that its request allows.",
        at_least(1),
    ),
    Setting(
        "overflow.bytes",
        Kind.LONG,
        "-1",
        "Bytes of each partition that `drop-oldest` keeps at most. Segments roll at an eighth of it, and a batch "
        "larger than half of it is refused.",
        none_or_at_least(16_384),
    ),
    Setting(
        "overflow.group",
        Kind.STRING,
        "",
        "The consumer group whose lag counts for `block` and `reject`; empty: the slowest queue of the topic.",
    ),
    Setting(
        "overflow.lag",
        Kind.LONG,
        "-1",
        "Messages that the slowest queue, or the named group, may be behind before `block` or `reject` sets in.",
        none_or_at_least(1),
    ),
    Setting(
        "queues.paused",
        Kind.BOOLEAN,
        "false",
        "Headrace's own. No queue of the topic hands out messages while this is `true` (NSQ's topic pause).",
    ),
    Setting(
        "remote.storage.enable",
        Kind.BOOLEAN,
        "false",
        "There is no remote tier: only `false` is accepted.",
        one_of("false"),
    ),
    Setting(
        "retention",
        Kind.STRING,
        "time",
        "Headrace's own. `time` keeps records by age and size; `consumed` keeps them until every queue of the "
        "topic has settled them, and by age and size only where the topic itself says so. While the topic has no "
        "queue nothing goes.",
        one_of("time", "consumed"),
    ),
    Setting(
        "retention.archive",
        Kind.STRING,
        "wait",
        "Headrace's own. What it means that `retention.archive.group` has records: `wait` lets retention have them "
        "when their time comes, `drop` lets them go as soon as that frees enough.",
        one_of("wait", "drop"),
    ),
    Setting(
        "retention.archive.group",
        Kind.STRING,
        "",
        "Headrace's own. Records are kept until this consumer group, that of an archive, has committed them, "
        "whatever their age and the size; empty: none.",
    ),
    Setting(
        "retention.bytes",
        Kind.LONG,
        "-1",
        "Bytes kept of each partition under `delete`; -1: no limit.",
        at_least(-1),
        "log_retention_bytes",
        "log.retention.bytes",
    ),
    Setting(
        "retention.ms",
        Kind.LONG,
        "604800000",
        "How long records are kept under `delete`; -1: for ever.",
        at_least(-1),
        "log_retention_ms",
        "log.retention.ms",
    ),
    Setting(
        "rocketmq.message.type",
        Kind.STRING,
        "ANY",
        "Headrace's own. The type of messages that RocketMQ's gRPC clients may send to the topic, as by RocketMQ's "
        "attribute message.type; `ANY` and `MIXED`: each. With `PRIORITY` higher queues are received from first.",
        one_of("ANY", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"),
    ),
    Setting(
        "rocketmq.perm",
        Kind.INT,
        "6",
        "Headrace's own. What RocketMQ's clients may do with the topic: the sum of 4 (read) and 2 (write).",
        at_least(0, 7),
    ),
    Setting(
        "rocketmq.read.queues",
        Kind.INT,
        "-1",
        "Headrace's own. How many partitions, from the first on, RocketMQ's consumers read; -1: all.",
        none_or_at_least(1),
    ),
    Setting(
        "rocketmq.write.queues",
        Kind.INT,
        "-1",
        "Headrace's own. How many partitions, from the first on, RocketMQ's producers write to; -1: all.",
        none_or_at_least(1),
    ),
    Setting(
        "segment.bytes",
        Kind.INT,
        str(1 << 30),
        "A segment rolls at this size; retention and compaction work on rolled segments.",
        at_least(1024 * 1024, INT_MAX),
        "log_segment_bytes",
        "log.segment.bytes",
    ),
    Setting(
        "segment.ms",
        Kind.LONG,
        "604800000",
        "A segment rolls when its first record is this old.",
        at_least(1),
        "log_segment_ms",
        "log.roll.ms",
    ),
)
SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in sorted(
        (
            *_HONOURED,
            *(
                Setting(name, kind, default, IGNORED + why, check, broker_name=broker_name)
                for why, rows in _IGNORED.items()
                for name, kind, default, check, broker_name in rows
            ),
        ),
        key=attrgetter("name"),
    )
}
"""By name, in the order of their names."""


def clean(name: str, text: str) -> str:
    """The value as it is stored. Raises InvalidTopicConfig where name or value make no sense."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise InvalidTopicConfig(f"there is no topic setting '{name}'")
    return clean_value(setting, text)


def settings_of(
    given: Mapping[str, str], config: BrokerSettings, defaults: Mapping[str, str] = NOTHING
) -> TopicSettings:
    """What the log acts on for a topic with these clean settings of its own. `defaults` come before those of `config`:
    they were set while the broker runs."""

    def text(name: str) -> str:
        value = given.get(name, defaults.get(name))
        return value if value is not None else SETTINGS[name].default_in(config)

    def number(name: str) -> int:
        return int(text(name))

    policies = as_list(text("cleanup.policy"))
    if number("min.compaction.lag.ms") > number("max.compaction.lag.ms"):
        raise InvalidTopicConfig(
            f"min.compaction.lag.ms ({number('min.compaction.lag.ms')}) is above max.compaction.lag.ms "
            f"({number('max.compaction.lag.ms')}): raise the latter or lower the former"
        )
    _check_overflow(text)
    consumed = text("retention") == "consumed"
    drops = text("overflow") == "drop-oldest"
    for setting, on in (("retention=consumed", consumed), ("overflow=drop-oldest", drops)):
        if on and "compact" in policies:
            raise InvalidTopicConfig(
                f"{setting} drops the oldest records and cleanup.policy=compact keeps the last of each key: choose one"
            )
    retention_bytes = -1 if consumed and "retention.bytes" not in given else number("retention.bytes")
    segment_bytes, batch_bytes = number("segment.bytes"), number("max.message.bytes")
    if drops:
        # What goes are whole segments, so several must fit under the bound; a `memory` topic has none and is exact.
        bound = number("overflow.bytes")
        segment_bytes = min(segment_bytes, bound // SEGMENTS_UNDER_BOUND)
        batch_bytes = min(batch_bytes, bound // 2)
        if text("durability") == "memory":
            retention_bytes = bound if retention_bytes < 0 else min(retention_bytes, bound)
    return TopicSettings(
        durability=Durability(text("durability")),
        segment_bytes=segment_bytes,
        segment_ms=number("segment.ms"),
        index_interval_bytes=number("index.interval.bytes"),
        retention_ms=-1 if consumed and "retention.ms" not in given else number("retention.ms"),
        retention_bytes=retention_bytes,
        delete="delete" in policies,
        compact="compact" in policies,
        min_cleanable_dirty_ratio=float(text("min.cleanable.dirty.ratio")),
        min_compaction_lag_ms=number("min.compaction.lag.ms"),
        max_compaction_lag_ms=number("max.compaction.lag.ms"),
        delete_retention_ms=number("delete.retention.ms"),
        max_batch_bytes=batch_bytes,
        log_append_time=text("message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        index=",".join(as_list(text("index"))),
    )


def _check_overflow(text: Callable[[str], str]) -> None:
    """Every policy needs its bound."""
    policy = text("overflow")
    if policy in ("block", "reject") and text("overflow.lag") == "-1":
        raise InvalidTopicConfig(f"overflow={policy} needs overflow.lag, the messages that readers may be behind")
    if policy == "drop-oldest" and text("overflow.bytes") == "-1":
        raise InvalidTopicConfig("overflow=drop-oldest needs overflow.bytes, the bytes of each partition to keep")


def delays(given: Mapping[str, str]) -> bool:
    """Whether a topic with these settings of its own looks for messages that are to be delivered later."""
    return given.get("delay") == "true"


def deduplication_ms(given: Mapping[str, str]) -> int:
    """The window of a topic with these settings of its own: 0 none, -1 none yet."""
    return int(given.get("deduplication.window.ms", "-1"))


def deduplicates(given: Mapping[str, str]) -> bool:
    """Whether a topic with these settings of its own looks for messages that were there before."""
    return given.get("deduplication.window.ms", "-1") not in ("-1", "0")


def table() -> str:
    """The settings as the Markdown table of `docs/configuration-topics.md`."""
    lines = ["| setting | type | default | |", "| --- | --- | --- | --- |"]
    for setting in SETTINGS.values():
        default = setting.default_in(BROKER_DEFAULTS) or "(empty)"
        lines.append(f"| `{setting.name}` | {setting.kind.name.lower()} | `{default}` | {setting.doc} |")
    return "\n".join(lines) + "\n"
