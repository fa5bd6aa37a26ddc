"""The broker's own topics, and the one rule for them: clients read them, and the broker alone changes them.

A client can neither create, delete, grow, alter, trim nor write to an internal topic, through whichever door; only how
long the events of `__deliveries` and `__audit`, which are no state, are kept is for their readers to set. The registry
of applications is the one shared topic: the framework writes it as an ordinary client (the same on an Apache Kafka), so
it may be created as the framework creates it and written in the framework's form, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from headrace.errors import InvalidPartitions, InvalidRecords, InvalidTopic, InvalidTopicConfig
from headrace.format import records

INTERNAL = frozenset(
    (
        *("__consumer_offsets", "__transaction_state", "__share_group_state"),
        *("__deliveries", "__queues", "__timers", "__half", "__deduplication", "__configs", "__apps", "__rocketmq"),
        *("__security", "__audit", "__console"),
    )
)
EVENTS = "__deliveries"
SECURITY = "__security"
"""Users and rules."""
CONSOLE = "__console"
"""Alerts, with the secrets of the channels that notify, and registrations."""
HIDDEN = frozenset((SECURITY, CONSOLE))
"""No client reads them, whatever its rights."""
AUDIT = "__audit"
ROCKETMQ = "__rocketmq"
EVENTS_SETTINGS = frozenset(("retention.ms", "retention.bytes", "segment.ms", "segment.bytes"))
# What the topics begin with to which a queue moves messages that would pin its own topic's segments.
PARKED = "__parked-"
# Kafka keeps this one for its controllers; tools that meet a topic of that name take it for theirs.
CLUSTER_METADATA = "__cluster_metadata"

# The settings of a topic that a part of the broker keeps state in: that part trims it, and nothing else does.
STATE_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "durability": "sync",
    "max.message.bytes": str((1 << 31) - 1),
    "retention.bytes": "-1",
    "retention.ms": "-1",
    "segment.bytes": str(16 << 20),
}

# As `headrace.sdk.registry` has them: keys are JSON arrays of a kind and so many parts in all, values JSON objects.
REGISTRY = "headrace-apps"
REGISTRY_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.bytes": "1048576",
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}
REGISTRY_KEY_PARTS = {"app": 2, "sends": 3, "instance": 3, "live": 4}
# Of a batch of the registry, unpacked.
REGISTRY_BATCH_BYTES = 4 << 20


def is_internal(name: str) -> bool:
    """Whether the topic is the broker's own."""
    return name in INTERNAL or name.startswith(PARKED)


def is_protected(name: str) -> bool:
    """Whether clients may not change the topic."""
    return is_internal(name) or name in (REGISTRY, CLUSTER_METADATA)


def check_change(name: str, change: str) -> None:
    """Raise InvalidTopic where a client must not do that to the topic. `change` is a past participle: deleted."""
    if is_protected(name):
        raise InvalidTopic(f"'{name}' is the broker's own topic and cannot be {change}. Choose another topic.")


def check_config(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise InvalidTopic where a client must not change the settings of the topic so."""
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    if name not in (EVENTS, AUDIT) or not changed <= EVENTS_SETTINGS:
        check_change(name, "altered")


def check_new_registry(partitions: int, config: Mapping[str, str]) -> None:
    """Raise unless the registry is to be created as the framework creates it."""
    if partitions not in (-1, 1):
        raise InvalidPartitions(f"'{REGISTRY}' must have 1 partition (got {partitions})")
    wrong = sorted(key for key, value in config.items() if REGISTRY_CONFIG.get(key) != value)
    if wrong:
        raise InvalidTopicConfig(f"'{REGISTRY}' has settings of its own ({wrong[0]}). Create it without settings.")


def check_write(name: str, batch: bytes | bytearray | memoryview) -> None:
    """Raise InvalidTopic where clients must not write to the topic, InvalidRecords or CorruptBatch where the registry
    would get what does not belong there."""
    if name != REGISTRY:
        return check_change(name, "written to")
    for _, _, key, value, _ in records.parse(batch, REGISTRY_BATCH_BYTES):
        if not _is_registry_key(key) or not _is_registry_value(value):
            raise InvalidRecords(
                f"a record with the key {bytes(key or b'')[:80]!r} does not belong in the registry of applications. "
                "Choose another topic."
            )


def _is_registry_key(key: bytes | None) -> bool:
    try:
        parts = json.loads(key or b"")
    except (ValueError, RecursionError):
        return False
    if not isinstance(parts, list) or not all(isinstance(each, str) for each in parts):
        return False
    return bool(parts) and REGISTRY_KEY_PARTS.get(parts[0]) == len(parts)


def _is_registry_value(value: bytes | None) -> bool:
    try:
        return value is None or isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False
