"""Settings of groups and of the broker, changed while it runs: answered as by Apache Kafka 4.3.1 unless a test says so,
in effect at once, and there again after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests import brokers
from tests.doors.kafka.local_client import LocalClient
from tests.doors.kafka.test_config_handlers import APPEND, BROKER, DELETE, SET, change, described, replace
from tests.doors.kafka.test_consumer_group_handlers import joins

from headrace.broker.dynamic_config import GROUPS_MAX, Scope
from headrace.broker.internal import is_internal
from headrace.errors import InvalidGroupConfig
from headrace.log.native import NativeLog

GROUP, METRICS, LOGGER, TOPIC = 32, 16, 8, 2
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"
NONE, BAD_REQUEST, BAD_CONFIG = ErrorCode.none, ErrorCode.invalid_request, ErrorCode.invalid_config


async def entries(
    ask: LocalClient, kind: int, name: str, keys: list[str] | None = None
) -> dict[str, tuple[str, int, Any]]:
    """Value, source and synonyms of settings by name."""
    result = await described(ask, kind, name, keys, rich=True)
    assert result.error_code is NONE
    return {
        each.name: (each.value, each.config_source, [(one.name, one.value, one.source) for one in each.synonyms])
        for each in result.configs
    }


def group(name: str = "g") -> dict[str, Any]:
    return {"resource_type": GROUP, "resource_name": name}


def broker(name: str = "") -> dict[str, Any]:
    return {"resource_type": BROKER, "resource_name": name}


# --- groups -----------------------------------------------------------------------------------------------------------


async def test_a_group_that_nobody_set_anything_for(ask: LocalClient) -> None:
    assert await entries(ask, GROUP, "g") == {
        ASSIGNMENT: ("0", 5, []),
        HEARTBEAT: ("5000", 5, [("group.consumer.heartbeat.interval.ms", "5000", 5)]),
        SESSION: ("45000", 5, [("group.consumer.session.timeout.ms", "45000", 5)]),
    }
    assert (await described(ask, GROUP, "")).error_code is BAD_REQUEST
    assert await entries(ask, GROUP, "g", [SESSION, "nope"]) == {
        SESSION: ("45000", 5, [("group.consumer.session.timeout.ms", "45000", 5)])
    }


async def test_a_groups_settings_are_changed(ask: LocalClient) -> None:
    assert await change(ask, (SESSION, SET, "50000"), (HEARTBEAT, SET, "6000"), **group()) is NONE
    found = await entries(ask, GROUP, "g")
    assert found[SESSION] == (
        "50000", 8, [(SESSION, "50000", 8), ("group.consumer.session.timeout.ms", "45000", 5)]
    )  # fmt: skip
    assert found[HEARTBEAT][:2] == ("6000", 8)
    assert (await entries(ask, GROUP, "other"))[SESSION][:2] == ("45000", 5)
    assert await change(ask, (SESSION, DELETE, None), ("nope", DELETE, None), **group()) is NONE
    assert (await entries(ask, GROUP, "g"))[SESSION][:2] == ("45000", 5)
    assert await replace(ask, [(SESSION, "46000")], **group()) is NONE
    found = await entries(ask, GROUP, "g")
    assert (found[SESSION][:2], found[HEARTBEAT][:2]) == (("46000", 8), ("5000", 5))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([(SESSION, SET, "100")], BAD_CONFIG),
        ([(SESSION, SET, "5999")], BAD_CONFIG),
        ([(SESSION, SET, "1800001")], BAD_CONFIG),
        ([(HEARTBEAT, SET, "0")], BAD_CONFIG),
        ([(HEARTBEAT, SET, "45000")], BAD_CONFIG),
        ([(HEARTBEAT, SET, "abc")], BAD_CONFIG),
        ([(ASSIGNMENT, SET, "15001")], BAD_CONFIG),
        ([("nope", SET, "1")], BAD_CONFIG),
        ([("share.session.timeout.ms", SET, "45000")], BAD_CONFIG),
        ([(SESSION, APPEND, "1")], BAD_CONFIG),
        ([(SESSION, SET, None)], BAD_REQUEST),
        ([(SESSION, SET, "46000"), (SESSION, SET, "47000")], BAD_REQUEST),
        ([(SESSION, SET, "46000"), (HEARTBEAT, SET, "abc")], BAD_CONFIG),
    ],
)
async def test_what_a_group_cannot_have(ask: LocalClient, changes: Any, code: ErrorCode) -> None:
    for validate in (True, False):
        assert await change(ask, *changes, validate=validate, **group()) is code
    assert (await entries(ask, GROUP, "g"))[SESSION][1] == 5
    assert await change(ask, (SESSION, SET, "50000"), **group("")) is BAD_REQUEST
    assert "__configs" not in ask.broker.topics.all


async def test_what_is_only_tried_changes_nothing(ask: LocalClient) -> None:
    assert await change(ask, (SESSION, SET, "50000"), validate=True, **group()) is NONE
    assert await change(ask, ("log.retention.ms", SET, "50000"), validate=True, **broker()) is NONE
    assert (await entries(ask, GROUP, "g"))[SESSION][1] == 5
    assert "__configs" not in ask.broker.topics.all


async def test_members_go_by_their_groups_settings(ask: LocalClient) -> None:
    await ask.broker.topics.create("rain", 1)
    joined = await joins(ask, 1)
    assert joined.heartbeat_interval.total_seconds() == 5
    assert await change(ask, (SESSION, SET, "6000"), (HEARTBEAT, SET, "200"), **group("readers")) is NONE
    again = await joins(ask, 1)
    assert again.heartbeat_interval.total_seconds() == 0.2
    settings = ask.broker.groups.consumers.settings_of("readers")
    assert (settings.session_ms, settings.heartbeat_ms) == (6_000, 200)
    assert ask.broker.groups.consumers.settings_of("other").session_ms == 45_000


async def test_so_many_groups_and_no_more(ask: LocalClient) -> None:
    dynamic = ask.broker.dynamic
    for number in range(GROUPS_MAX - 1):
        dynamic._apply(Scope.GROUP, str(number), {SESSION: "50000"})
    assert await change(ask, (SESSION, SET, "50000"), **group("last")) is NONE
    assert await change(ask, (SESSION, SET, "50000"), **group("one more")) is BAD_CONFIG
    assert await change(ask, (SESSION, SET, "51000"), **group("last")) is NONE
    with pytest.raises(InvalidGroupConfig):
        await dynamic.alter(Scope.GROUP, "x" * 8_192, lambda own: {SESSION: "50000"})


# --- the broker -------------------------------------------------------------------------------------------------------


async def test_defaults_of_topics_are_changed(ask: LocalClient) -> None:
    topic = await ask.broker.topics.create("t", 1)
    own = await ask.broker.topics.create("own", 1, {"retention.ms": "7000"})
    offsets = await ask.broker.topics.create("__consumer_offsets", 1, {"cleanup.policy": "compact"}, internal=True)
    assert await change(ask, ("log.retention.ms", SET, "3600000"), **broker()) is NONE
    assert (topic.settings.retention_ms, own.settings.retention_ms) == (3_600_000, 7_000)
    assert offsets.settings.retention_ms == 604_800_000
    assert await entries(ask, TOPIC, "t", ["retention.ms"]) == {
        "retention.ms": ("3600000", 3, [("log.retention.ms", "3600000", 3), ("log.retention.ms", "604800000", 5)])
    }
    assert await entries(ask, BROKER, "") == {
        "log.retention.ms": ("3600000", 3, [("log.retention.ms", "3600000", 3)])
    }  # fmt: skip
    # What is set for this broker comes first.
    assert await change(ask, ("log.retention.ms", SET, "5000"), **broker("1")) is NONE
    assert topic.settings.retention_ms == 5_000
    assert (await entries(ask, BROKER, "1", ["log.retention.ms"]))["log.retention.ms"] == (
        "5000", 2,
        [("log.retention.ms", "5000", 2), ("log.retention.ms", "3600000", 3), ("log.retention.ms", "604800000", 5)],
    )  # fmt: skip
    assert (await ask.broker.topics.create("later", 1)).settings.retention_ms == 5_000
    for name, expected in (("1", 3_600_000), ("", 604_800_000)):
        assert await change(ask, ("log.retention.ms", DELETE, None), **broker(name)) is NONE
        assert topic.settings.retention_ms == expected
    assert await entries(ask, BROKER, "") == {}


async def test_topics_that_change_meanwhile_follow_too(ask: LocalClient) -> None:
    topics = ask.broker.topics
    for number in range(100):
        await topics.create(f"t{number}", 1)
    await asyncio.gather(
        change(ask, ("log.retention.ms", SET, "5000"), **broker()),
        *(topics.alter_config(f"t{number}", lambda own: {"segment.ms": "7000"}) for number in range(100)),
        *(topics.create(f"u{number}", 1) for number in range(20)),
        topics.delete("t50"),
        return_exceptions=True,
    )
    assert "t50" not in topics.all
    for name, topic in topics.all.items():
        if not is_internal(name):
            expected = 7_000 if name.startswith("t") else 604_800_000
            assert (topic.settings.retention_ms, topic.settings.segment_ms) == (5_000, expected), name


async def test_a_list_is_appended_to_what_counts(ask: LocalClient) -> None:
    topic = await ask.broker.topics.create("t", 1)
    assert await change(ask, ("log.cleanup.policy", APPEND, "compact"), **broker()) is NONE
    assert (topic.settings.delete, topic.settings.compact) == (True, True)
    assert await change(ask, ("cleanup.policy", APPEND, "delete"), resource_type=TOPIC, resource_name="t") is NONE
    assert topic.config == {"cleanup.policy": "delete,compact"}


@pytest.mark.parametrize("name", ["", "1"])
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("broker.id", "5"),
        ("num.partitions", "5"),
        ("auto.create.topics.enable", "false"),
        ("log.retention.ms", "abc"),
        ("message.max.bytes", "-5"),
        ("log.cleaner.backoff.ms", "0"),
        # Kafka can change this, and takes names that it does not know.
        ("max.connections", "500"),
        ("nope", "5"),
        # A topic could not follow.
        ("log.cleaner.max.compaction.lag.ms", "1000"),
    ],
)
async def test_what_of_the_broker_cannot_change(ask: LocalClient, name: str, setting: str, value: str) -> None:
    topic = await ask.broker.topics.create("t", 1, {"min.compaction.lag.ms": "2000"})
    before = topic.settings
    assert await change(ask, (setting, SET, value), **broker(name)) is BAD_REQUEST
    assert (await entries(ask, BROKER, ""), topic.settings) == ({}, before)


async def test_the_log_goes_by_what_is_set_now(tmp_path: Path) -> None:
    async with brokers.running(tmp_path, node_id=1, compaction_check_ms=7_000) as first:
        ask = LocalClient(first)
        log = first.log
        assert isinstance(log, NativeLog)
        assert await change(ask, ("log.cleaner.backoff.ms", SET, "2000"), **broker()) is NONE
        assert await change(ask, ("producer.id.expiration.ms", SET, "5000"), **broker("1")) is NONE
        assert (log.config.compaction_check_ms, log.config.producer_id_expiration_ms) == (2_000, 5_000)
        assert (await entries(ask, BROKER, "1", ["log.cleaner.backoff.ms"]))["log.cleaner.backoff.ms"] == (
            "2000", 3,
            [("log.cleaner.backoff.ms", value, source) for value, source in (("2000", 3), ("7000", 4), ("15000", 5))],
        )  # fmt: skip
    async with brokers.running(tmp_path, node_id=1, compaction_check_ms=7_000) as second:
        log = second.log
        assert isinstance(log, NativeLog)
        assert (log.config.compaction_check_ms, log.config.producer_id_expiration_ms) == (2_000, 5_000)
        assert await change(LocalClient(second), ("log.cleaner.backoff.ms", DELETE, None), **broker()) is NONE
        assert log.config.compaction_check_ms == 7_000


async def test_changes_outlive_a_restart(tmp_path: Path) -> None:
    async with brokers.running(tmp_path, node_id=1) as first:
        ask = LocalClient(first)
        await first.topics.create("t", 1)
        assert await change(ask, (SESSION, SET, "50000"), (HEARTBEAT, SET, "6000"), **group()) is NONE
        assert await change(ask, (HEARTBEAT, DELETE, None), **group()) is NONE
        assert await change(ask, (SESSION, SET, "50000"), **group("gone")) is NONE
        assert await change(ask, (SESSION, DELETE, None), **group("gone")) is NONE
        assert await change(ask, ("log.segment.bytes", SET, "2000000"), **broker("1")) is NONE
        assert await change(ask, ("log.segment.bytes", SET, "3000000"), **broker()) is NONE
    async with brokers.running(tmp_path, node_id=1) as second:
        ask = LocalClient(second)
        found = await entries(ask, GROUP, "g")
        assert (found[SESSION][:2], found[HEARTBEAT][:2]) == (("50000", 8), ("5000", 5))
        assert second.groups.consumers.settings_of("g").session_ms == 50_000
        assert second.dynamic.names(Scope.GROUP) == ["g"]
        assert second.topics.all["t"].settings.segment_bytes == 2_000_000
        assert (await second.topics.create("u", 1)).settings.segment_bytes == 2_000_000
    # A topic that was last seen with them, and a broker of another number.
    async with brokers.running(tmp_path, node_id=2) as third:
        assert third.topics.all["t"].settings.segment_bytes == 3_000_000


# --- what has settings ------------------------------------------------------------------------------------------------


async def listed(ask: LocalClient, *types: int, version: int = 1) -> Any:
    reply = await ask("list_config_resources", version, resource_types=[*types])
    found = [(getattr(each, "resource_type", METRICS), each.resource_name) for each in reply.config_resources]
    return reply.error_code, found


async def test_list_config_resources(ask: LocalClient) -> None:
    await ask.broker.topics.create("t", 1)
    await change(ask, (SESSION, SET, "50000"), **group())
    every = [(GROUP, "g"), (LOGGER, "1"), (BROKER, "1"), (TOPIC, "__configs"), (TOPIC, "t")]
    assert await listed(ask) == (NONE, every)
    assert await listed(ask, GROUP) == (NONE, [(GROUP, "g")])
    assert await listed(ask, TOPIC, BROKER, TOPIC) == (NONE, [(TOPIC, "__configs"), (TOPIC, "t"), (BROKER, "1")])
    assert await listed(ask, METRICS) == (NONE, [])
    assert await listed(ask, TOPIC, 99) == (ErrorCode.unsupported_version, [])
    assert await listed(ask, version=0) == (NONE, [])
