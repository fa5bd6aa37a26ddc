"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, DeleteRecords, DescribeLogDirs.

The expected codes and fields are what Apache Kafka 4.3.1 answered to the same requests, unless a test says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.doors.kafka.local_client import LocalClient
from tests.waiting import until

from headrace.broker.dynamic_config import DYNAMIC
from headrace.broker.topic_config import SETTINGS
from headrace.format import records

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
BAD_REQUEST, BAD_CONFIG = ErrorCode.invalid_request, ErrorCode.invalid_config


async def described(
    ask: LocalClient, kind: int, name: str, keys: list[str] | None = None, version: int = 4, rich: bool = False
) -> Any:
    reply = await ask(
        "describe_configs",
        version,
        resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": keys}],
        include_synonyms=rich,
        include_documentation=rich,
    )
    (result,) = reply.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def own(ask: LocalClient) -> dict[str, str]:
    result = await described(ask, TOPIC, "t")
    return {entry.name: entry.value for entry in result.configs if entry.config_source == 1}


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_a_topic_in_every_version(ask: LocalClient, version: int) -> None:
    await ask.broker.topics.create("t", 1, {"segment.bytes": "2000000"})
    keys = ["retention.ms", "segment.bytes", "nope"]
    result = await described(ask, TOPIC, "t", keys, version, rich=True)
    retention, segment = sorted(result.configs, key=lambda entry: entry.name)
    assert (retention.value, retention.config_source, retention.read_only) == ("604800000", 5, False)
    assert (segment.value, segment.config_source, segment.is_sensitive) == ("2000000", 1, False)
    assert [(each.name, each.value, each.source) for each in segment.synonyms] == [
        ("segment.bytes", "2000000", 1),
        ("log.segment.bytes", str(1 << 30), 5),
    ]
    if version >= 3:
        assert (retention.config_type, segment.config_type) == (5, 3)
        assert segment.documentation
    bare = await described(ask, TOPIC, "t", keys, version)
    assert all(entry.synonyms == () for entry in bare.configs)
    assert all(getattr(entry, "documentation", None) is None for entry in bare.configs)


@pytest.mark.parametrize("asking_settings", [{"log_retention_ms": 5000}], indirect=True)
async def test_what_the_operator_set_is_said(ask: LocalClient) -> None:
    await ask.broker.topics.create("t")
    (entry,) = (await described(ask, TOPIC, "t", ["retention.ms"], rich=True)).configs
    assert (entry.value, entry.config_source) == ("5000", 4)
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        ("log.retention.ms", "5000", 4),
        ("log.retention.ms", "604800000", 5),
    ]


async def test_keys_that_mean_all(ask: LocalClient) -> None:
    await ask.broker.topics.create("t")
    everything = [entry.name for entry in (await described(ask, TOPIC, "t")).configs]
    assert everything == sorted(SETTINGS)
    assert [entry.name for entry in (await described(ask, TOPIC, "t", [])).configs] == everything
    assert (await described(ask, TOPIC, "t", ["nope"])).configs == ()


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "a b", ErrorCode.invalid_topic_exception),
        (TOPIC, "", ErrorCode.invalid_topic_exception),
        (BROKER, "", ErrorCode.none),
        (BROKER, "9", BAD_REQUEST),
        (BROKER, "abc", BAD_REQUEST),
        (LOGGER, "1", ErrorCode.none),
        (LOGGER, "9", BAD_REQUEST),
        (LOGGER, "", BAD_REQUEST),
        (0, "x", BAD_REQUEST),
        (99, "x", BAD_REQUEST),
    ],
)
async def test_resources_that_are_described(ask: LocalClient, kind: int, name: str, code: ErrorCode) -> None:
    result = await described(ask, kind, name)
    assert result.error_code is code
    assert bool(result.error_message) == (code is not ErrorCode.none)


@pytest.mark.parametrize("asking_settings", [{"num_partitions": 3, "offsets_retention_ms": 120_000}], indirect=True)
async def test_describe_the_broker(ask: LocalClient) -> None:
    result = await described(ask, BROKER, "1", rich=True)
    entries = {entry.name: entry for entry in result.configs}
    assert len(entries) == len(result.configs)
    assert all(entry.documentation for entry in result.configs)
    assert {entry.name for entry in result.configs if not entry.read_only} == set(DYNAMIC)
    found = {name: (entries[name].value, entries[name].config_source, entries[name].config_type) for name in entries}
    assert found["num.partitions"] == ("3", 4, 3)
    assert found["message.max.bytes"] == ("1048588", 5, 3)
    assert found["auto.create.topics.enable"] == ("true", 5, 1)
    assert found["offsets.retention.minutes"] == ("2", 4, 3)
    assert found["advertised.listeners"] == ("PLAINTEXT://broker.test:9092", 4, 7)
    assert found["log.cleanup.policy"] == ("delete", 5, 7)
    assert found["node.id"] == ("1", 4, 3)


# --- changing ---------------------------------------------------------------------------------------------------------


async def replace(
    ask: LocalClient, configs: Sequence[tuple[str, str | None]], validate: bool = False, **resource: Any
) -> Any:
    given = {"resource_type": TOPIC, "resource_name": "t"} | resource
    configs_given = [{"name": name, "value": value} for name, value in configs]
    reply = await ask("alter_configs", 2, resources=[given | {"configs": configs_given}], validate_only=validate)
    return reply.responses[0].error_code


async def change(
    ask: LocalClient, *configs: tuple[str, int, str | None], validate: bool = False, version: int = 1, **resource: Any
) -> Any:
    given = {"resource_type": TOPIC, "resource_name": "t"} | resource
    changes = [{"name": name, "config_operation": operation, "value": value} for name, operation, value in configs]
    reply = await ask(
        "incremental_alter_configs", version, resources=[given | {"configs": changes}], validate_only=validate
    )
    (response,) = reply.responses
    assert bool(response.error_message) == (response.error_code is not ErrorCode.none)
    return response.error_code


async def test_alter_configs_replaces_everything(ask: LocalClient) -> None:
    topic = await ask.broker.topics.create("t", 1, {"retention.ms": "1000"})
    assert await replace(ask, [("segment.ms", "5000")]) is ErrorCode.none
    assert await own(ask) == {"segment.ms": "5000"}
    assert (topic.settings.segment_ms, topic.settings.retention_ms) == (5000, 604_800_000)
    assert await replace(ask, [("segment.ms", "6000")], validate=True) is ErrorCode.none
    for configs, code in (
        ([("nope", "1")], BAD_CONFIG),
        ([("segment.ms", "x")], BAD_CONFIG),
        ([("segment.ms", None)], BAD_REQUEST),
        ([("segment.ms", "1"), ("segment.ms", "2")], BAD_REQUEST),
    ):
        assert await replace(ask, configs) is code
        assert await replace(ask, configs, validate=True) is code
    assert await own(ask) == {"segment.ms": "5000"}
    assert await replace(ask, []) is ErrorCode.none
    assert await own(ask) == {}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "a b", ErrorCode.invalid_topic_exception),
        (TOPIC, "", BAD_REQUEST),
        # Kafka can change this while it runs; Headrace says that it cannot.
        (LOGGER, "1", BAD_REQUEST),
        (BROKER, "9", BAD_REQUEST),
        (99, "x", BAD_REQUEST),
    ],
)
async def test_resources_that_cannot_be_changed(ask: LocalClient, kind: int, name: str, code: ErrorCode) -> None:
    resource = {"resource_type": kind, "resource_name": name}
    for validate in (True, False):
        assert await replace(ask, [("log.retention.ms", "1")], validate, **resource) is code
        assert await change(ask, ("log.retention.ms", SET, "1"), validate=validate, **resource) is code


async def test_incremental_changes(ask: LocalClient) -> None:
    topic = await ask.broker.topics.create("t")
    assert await change(ask, ("segment.ms", SET, "5000"), ("retention.ms", SET, "9")) is ErrorCode.none
    assert (topic.settings.segment_ms, topic.settings.retention_ms) == (5000, 9)
    assert await change(ask, ("segment.ms", DELETE, None)) is ErrorCode.none
    assert await own(ask) == {"retention.ms": "9"}
    for _ in range(2):
        assert await change(ask, ("retention.ms", DELETE, "x"), ("nope", DELETE, None), version=0) is ErrorCode.none
        assert await own(ask) == {}


async def test_incremental_changes_of_lists(ask: LocalClient) -> None:
    topic = await ask.broker.topics.create("t")
    for operation, value, result in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "compact", ""),
        (APPEND, "compact,delete", "compact,delete"),
        (SET, "", ""),
    ):
        assert await change(ask, ("cleanup.policy", operation, value)) is ErrorCode.none
        assert await own(ask) == {"cleanup.policy": result}
        assert (topic.settings.compact, topic.settings.delete) == ("compact" in result, "delete" in result)


async def test_incremental_changes_that_are_refused(ask: LocalClient) -> None:
    await ask.broker.topics.create("t")
    for configs, code in (
        ([("retention.ms", APPEND, "5")], BAD_CONFIG),
        ([("retention.ms", SUBTRACT, "5")], BAD_CONFIG),
        ([("nope", APPEND, "5")], BAD_CONFIG),
        ([("nope", SET, "5")], BAD_CONFIG),
        ([("retention.ms", SET, "x")], BAD_CONFIG),
        ([("retention.ms", SET, "")], BAD_CONFIG),
        ([("cleanup.policy", APPEND, "x")], BAD_CONFIG),
        ([("retention.ms", SET, None)], BAD_REQUEST),
        ([("cleanup.policy", APPEND, None)], BAD_REQUEST),
        ([("retention.ms", SET, "5"), ("retention.ms", DELETE, None)], BAD_REQUEST),
        ([("segment.ms", SET, "5"), ("retention.ms", SET, "x")], BAD_CONFIG),
        # Kafka answers UNKNOWN_SERVER_ERROR.
        ([("retention.ms", 9, "5")], BAD_REQUEST),
    ):
        assert await change(ask, *configs) is code
        assert await change(ask, *configs, validate=True) is code
        assert await own(ask) == {}
    assert await change(ask, ("retention.ms", SET, "5"), validate=True) is ErrorCode.none
    assert await own(ask) == {}


async def test_a_resource_named_twice(ask: LocalClient) -> None:
    await ask.broker.topics.create("t")
    resource = {"resource_type": TOPIC, "resource_name": "t"}
    changes = [{"name": "retention.ms", "config_operation": SET, "value": "5"}]
    reply = await ask(
        "incremental_alter_configs", 1, resources=[resource | {"configs": changes}] * 2, validate_only=False
    )
    assert [response.error_code for response in reply.responses] == [BAD_REQUEST, BAD_REQUEST]
    assert await own(ask) == {}


# --- records and sizes ------------------------------------------------------------------------------------------------


async def filled(ask: LocalClient, name: str = "t", **config: str) -> Any:
    topic = await ask.broker.topics.create(name, 2, {key.replace("_", "."): value for key, value in config.items()})
    partition = topic.partitions[0]
    if not partition.loaded:
        await partition.load()
    for _ in range(10):
        partition.append(records.build([(ask.broker.runtime.clock.now_ms(), b"key", b"value", [])]))
    # Batches of one turn are written together.
    await until(lambda: partition.high_watermark == 10)
    return topic


async def trimmed(ask: LocalClient, name: str, index: int, offset: int, version: int = 2, timeout: int = 1000) -> Any:
    asked = [{"name": name, "partitions": [{"partition_index": index, "offset": offset}]}]
    reply = await ask("delete_records", version, topics=asked, timeout=timeout)
    (topic,) = reply.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == (name, index)
    return partition.low_watermark, partition.error_code


async def test_delete_records(ask: LocalClient) -> None:
    topic = await filled(ask)
    out_of_range = (-1, ErrorCode.offset_out_of_range)
    unknown = (-1, ErrorCode.unknown_topic_or_partition)
    for version in range(3):
        assert await trimmed(ask, "t", 0, 5, version) == (5, ErrorCode.none)
    assert topic.partitions[0].start == 5
    assert await trimmed(ask, "t", 0, 3) == (5, ErrorCode.none)
    assert await trimmed(ask, "t", 0, 11) == out_of_range
    assert await trimmed(ask, "t", 0, -2) == out_of_range
    assert await trimmed(ask, "t", 0, -1, timeout=0) == (10, ErrorCode.none)
    assert await trimmed(ask, "t", 1, -1) == (0, ErrorCode.none)
    for name, index in (("t", 7), ("t", -1), ("nope", 0), ("a b", 0)):
        assert await trimmed(ask, name, index, 0) == unknown


async def test_delete_records_that_may_not_go(ask: LocalClient) -> None:
    await filled(ask, "compacted", cleanup_policy="compact")
    assert await trimmed(ask, "compacted", 0, -1) == (-1, ErrorCode.policy_violation)
    await filled(ask, "both", cleanup_policy="compact,delete")
    assert await trimmed(ask, "both", 0, -1) == (10, ErrorCode.none)
    await ask.broker.topics.create("__consumer_offsets", 1, internal=True)
    assert await trimmed(ask, "__consumer_offsets", 0, 0) == (-1, ErrorCode.invalid_topic_exception)


async def test_delete_records_named_twice(ask: LocalClient) -> None:
    await filled(ask)
    partitions = [{"partition_index": 0, "offset": offset} for offset in (2, 4)]
    asked = [
        {"name": "t", "partitions": partitions},
        {"name": "t", "partitions": [{"partition_index": 1, "offset": 0}]},
    ]
    (topic,) = (await ask("delete_records", 2, topics=asked, timeout=1000)).topics
    assert [(each.partition_index, each.low_watermark) for each in topic.partitions] == [(0, 4), (1, 0)]


@pytest.mark.parametrize("version", range(1, 6))
async def test_log_dirs(ask: LocalClient, version: int) -> None:
    await filled(ask)
    asked = [{"topic": "t", "partitions": [0, 1, 9, 0]}, {"topic": "nope", "partitions": [0]}]
    reply = await ask("describe_log_dirs", version, topics=asked)
    (folder,) = reply.results
    assert folder.log_dir == ask.broker.config.data
    (topic,) = folder.topics
    size = len(records.build([(1, b"key", b"value", [])])) * 10
    assert [(each.partition_index, each.partition_size) for each in topic.partitions] == [(0, size), (1, 0)]
    assert all(each.offset_lag == 0 and not each.is_future_key for each in topic.partitions)
    if version >= 4:
        assert folder.usable_bytes > 0
    assert (await ask("describe_log_dirs", version, topics=[])).results[0].topics == ()
    everything = (await ask("describe_log_dirs", version, topics=None)).results[0]
    assert [(topic.name, len(topic.partitions)) for topic in everything.topics] == [("t", 2)]


async def test_the_level_of_the_logger_is_changed_elsewhere(ask: LocalClient) -> None:
    resource = {"resource_type": 8, "resource_name": "1", "configs": [{"name": "root", "value": "DEBUG"}]}
    reply = await ask("alter_configs", 2, resources=[resource], validate_only=False)
    assert reply.responses[0].error_code is BAD_REQUEST
    assert "PUT /config/log_level" in reply.responses[0].error_message
