"""Settings of groups: stored, listed, honoured, deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.test_lookup import only, send_back
from tests.serve_process import ServeProcess

import headrace
from headrace.doors.rocketmq.codes import Code, Request

UPDATE = Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


def update(raw: Raw, group: str, **settings: Any) -> int:
    return raw.ask(UPDATE, {}, json.dumps({"groupName": group, **settings}).encode()).code


def groups(raw: Raw) -> Any:
    return raw.json(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)["subscriptionGroupTable"]


def test_settings_are_stored_and_deleted(raw: Raw, group: str) -> None:
    assert update(raw, group, retryMaxTimes=3, consumeTimeoutMinute=20) == Code.SUCCESS
    found = raw.json(Request.GET_SUBSCRIPTIONGROUP_CONFIG, group=group)
    assert (found["retryMaxTimes"], found["consumeTimeoutMinute"], found["retryQueueNums"]) == (3, 20, 1)
    assert groups(raw)[group] == found
    both = {"groupConfigList": [{"groupName": f"{group}-{number}"} for number in range(2)]}
    asked = Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    assert raw.ask(asked, {}, json.dumps(both).encode()).code == Code.SUCCESS
    assert {f"{group}-0", f"{group}-1"} <= set(groups(raw))
    assert raw.ask(Request.DELETE_SUBSCRIPTIONGROUP, {"groupName": group}).code == Code.SUCCESS
    assert group not in groups(raw)
    assert raw.ask(Request.DELETE_SUBSCRIPTIONGROUP, {"groupName": "never-was"}).code == Code.SUCCESS
    # Every group has settings, unless groups must be made first.
    assert raw.json(Request.GET_SUBSCRIPTIONGROUP_CONFIG, group=group)["retryMaxTimes"] == 16


@pytest.mark.parametrize(
    "settings",
    [{"retryMaxTimes": "3"}, {"consumeEnable": 1}, {"retryMaxTimes": 1 << 31}, {"attributes": {"a": "x" * 20_000}}],
)
def test_settings_that_make_no_sense(raw: Raw, group: str, settings: dict[str, Any]) -> None:
    assert update(raw, group, **settings) == Code.INVALID_PARAMETER
    assert group not in groups(raw)


@pytest.mark.parametrize("name", ["", "bad$name", "x" * 256])
def test_names_that_make_no_sense(raw: Raw, name: str) -> None:
    assert update(raw, name) == Code.INVALID_PARAMETER
    assert raw.ask(UPDATE, {}, b"[]").code == Code.SYSTEM_ERROR


def test_a_group_that_may_not_consume(raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, b"x")
    update(raw, group, consumeEnable=False)
    refused = raw.answer(raw.pull(topic, consumerGroup=group))
    assert (refused.code, refused.fields) == (Code.NO_PERMISSION, {"forbiddenType": "2"})
    update(raw, group, consumeBroadcastEnable=False)
    assert raw.answer(raw.pull(topic, consumerGroup=group)).code == Code.SUCCESS
    raw.heartbeat("one", {group: {topic: "*"}}, model="BROADCASTING")
    refused = raw.answer(raw.pull(topic, consumerGroup=group))
    assert (refused.code, refused.fields) == (Code.NO_PERMISSION, {"forbiddenType": "4"})


def test_how_often_a_message_comes_again(raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, b"work")
    (first,) = raw.read(topic)
    update(raw, group, retryMaxTimes=1, retryQueueNums=2)
    assert send_back(raw, first, group, maxReconsumeTimes=-1).code == Code.SUCCESS
    retry = f"%RETRY%{group}"
    queue = first.physical_offset % 2
    assert raw.json(Request.GET_TOPIC_CONFIG, topic=retry)["readQueueNums"] == 2
    again = None
    while again is None:
        again = next(iter(raw.read(retry, queue)), None)
    assert send_back(raw, again, group, maxReconsumeTimes=-1).code == Code.SUCCESS
    assert only(raw, f"%DLQ%{group}").body == b"work"
    update(raw, group, retryQueueNums=0)
    assert send_back(raw, first, group).code == Code.SUCCESS
    assert raw.ask(Request.GET_MAX_OFFSET, {"topic": retry, "queueId": queue}).fields == {"offset": "1"}


def test_members_that_are_not_notified(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    update(raw, group, notifyConsumerIdsChangedEnable=False)
    raw.heartbeat("one", {group: {topic: "*"}})
    with Raw(broker.rocketmq) as other:
        other.heartbeat("two", {group: {topic: "*"}})
        assert len(raw.json(Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)["consumerIdList"]) == 2
    assert raw.asked == []


def test_positions_are_deleted_with_a_group_without_members(raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, b"x")
    place = {"consumerGroup": group, "topic": topic, "queueId": 0}
    raw.ask(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 1})
    raw.heartbeat("one", {group: {topic: "*"}})
    delete = {"groupName": group, "cleanOffset": "true"}
    refused = raw.ask(Request.DELETE_SUBSCRIPTIONGROUP, delete)
    assert (refused.code, "has members" in (refused.remark or "")) == (Code.SYSTEM_ERROR, True)
    raw.ask(Request.UNREGISTER_CLIENT, {"clientID": "one", "consumerGroup": group})
    assert raw.ask(Request.DELETE_SUBSCRIPTIONGROUP, delete).code == Code.SUCCESS
    assert raw.ask(Request.QUERY_CONSUMER_OFFSET, place).fields == {"offset": "0"}
    assert group not in groups(raw)


def test_settings_survive_a_kill(tmp_path: Path) -> None:
    flags = ("--rocketmq", "127.0.0.1:0", "--rocketmq-namesrv", "off")
    with ServeProcess(tmp_path / "data", *flags) as serving:
        with Raw(serving.addresses["rocketmq"]) as raw:
            assert update(raw, "g", retryMaxTimes=7) == Code.SUCCESS
        serving.kill()
    with ServeProcess(tmp_path / "data", *flags) as serving, Raw(serving.addresses["rocketmq"]) as raw:
        assert groups(raw)["g"]["retryMaxTimes"] == 7


def test_groups_that_must_be_made_first() -> None:
    any_port = "127.0.0.1:0"
    with (
        headrace.Broker(rocketmq=any_port, rocketmq_auto_create_groups=False, rocketmq_groups_max=2) as broker,
        Raw(broker.rocketmq) as raw,
    ):
        raw.sent("t", b"x")
        missing = Code.SUBSCRIPTION_GROUP_NOT_EXIST
        place = {"consumerGroup": "g", "topic": "t", "queueId": 0}
        (message,) = raw.read("t") if update(raw, "readers") == Code.SUCCESS else []
        assert raw.heartbeat("one", {"g": {"t": "*"}}).code == Code.SUCCESS
        assert raw.ask(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}).code == Code.SYSTEM_ERROR
        assert raw.answer(raw.pull("t", consumerGroup="g")).code == missing
        assert raw.ask(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 1}).code == missing
        assert raw.ask(Request.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}).code == missing
        assert send_back(raw, message, "g").code == missing
        assert update(raw, "g") == Code.SUCCESS
        assert raw.heartbeat("one", {"g": {"t": "*"}}).code == Code.SUCCESS
        assert raw.answer(raw.pull("t", consumerGroup="g", sysFlag=0)).code == Code.SUCCESS
        assert update(raw, "one-more") == Code.SYSTEM_ERROR, "there is room for two"
        assert update(raw, "g", retryMaxTimes=1) == Code.SUCCESS
