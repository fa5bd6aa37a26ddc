"""ConsumerGroupHeartbeat and ConsumerGroupDescribe on the wire. What groups do is in tests/broker/groups/consumer."""

from __future__ import annotations

import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tests.doors.kafka.local_client import LocalClient

from headrace.doors.kafka.handlers import k68_consumer_group_heartbeat


async def joins(ask: LocalClient, version: int, member: str = "m", **fields: Any) -> Any:
    asked = {"rebalance_timeout": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": [], **fields}
    return await ask("consumer_group_heartbeat", version, group_id="readers", member_id=member, member_epoch=0, **asked)


@pytest.mark.parametrize("version", range(2))
async def test_a_member_joins_and_is_shown(ask: LocalClient, version: int) -> None:
    topic = await ask.broker.topics.create("t", 2, {})
    reply = await joins(ask, version, instance_id="i", rack_id="r", server_assignor="range")
    assert (reply.error_code, reply.error_message, reply.member_id) == (ErrorCode.none, None, "m")
    assert reply.heartbeat_interval == timedelta(seconds=5)
    [assigned] = reply.assignment.topic_partitions
    assert (assigned.topic_id, assigned.partitions) == (topic.id, (0, 1))
    again = await ask(
        "consumer_group_heartbeat",
        version,
        group_id="readers",
        member_id="m",
        member_epoch=reply.member_epoch,
        instance_id="i",
        rebalance_timeout=-1,
        subscribed_topic_names=None,
        topic_partitions=None,
    )
    assert (again.error_code, again.member_epoch, again.assignment) == (ErrorCode.none, reply.member_epoch, None)

    asked = {"group_ids": ["readers", "nobody"], "include_authorized_operations": False}
    found, missing = (await ask("consumer_group_describe", version, **asked)).groups
    assert (missing.error_code, missing.members) == (ErrorCode.group_id_not_found, ())
    assert (found.group_state, found.assignor_name) == ("Stable", "range")
    assert found.group_epoch == found.assignment_epoch == reply.member_epoch
    [member] = found.members
    assert (member.member_id, member.instance_id, member.rack_id) == ("m", "i", "r")
    assert (member.member_epoch, member.subscribed_topic_names) == (reply.member_epoch, ("t",))
    for each in (member.assignment, member.target_assignment):
        [shown] = each.topic_partitions
        assert (shown.topic_id, shown.topic_name, shown.partitions) == (topic.id, "t", (0, 1))
    if version >= 1:
        assert member.member_type == 1

    # Who is asked for by DescribeGroups is told that there is no such classic group.
    [classic] = (await ask("describe_groups", 6, groups=["readers"], include_authorized_operations=False)).groups
    assert (classic.error_code, classic.group_state) == (ErrorCode.group_id_not_found, "Dead")
    for types, expected in (["Consumer"], ["readers"]), (["classic"], []), ([], ["readers"]):
        listed = (await ask("list_groups", 5, states_filter=[], types_filter=types)).groups
        assert [each.group_id for each in listed] == expected

    await ask("delete_topics", 6, topics=[{"name": "t", "topic_id": None}], timeout=1000)
    found, _ = (await ask("consumer_group_describe", version, **asked)).groups
    assert found.members[0].assignment.topic_partitions == ()


async def test_the_assignor_is_what_members_wish_now(ask: LocalClient) -> None:
    async def assignor() -> str:
        asked = {"group_ids": ["readers"], "include_authorized_operations": False}
        return (await ask("consumer_group_describe", 1, **asked)).groups[0].assignor_name

    await joins(ask, 1, server_assignor="range")
    assert await assignor() == "range"
    left = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
    await ask("consumer_group_heartbeat", 1, group_id="readers", member_id="m", member_epoch=-1, **left)
    assert await assignor() == "uniform"


async def test_members_draw_their_ids_from_version_1_on(ask: LocalClient) -> None:
    drawn = (await joins(ask, 0, member="")).member_id
    assert drawn
    assert (await joins(ask, 1, member="")).error_code == ErrorCode.invalid_request
    assert (await joins(ask, 1, member="mine")).member_id == "mine"


async def test_a_refusal_says_why_and_leaves_no_group(ask: LocalClient) -> None:
    for fields, code in (
        ({"rebalance_timeout": -1}, ErrorCode.invalid_request),
        ({"server_assignor": "fair"}, ErrorCode.unsupported_assignor),
        ({"subscribed_topic_regex": "("}, ErrorCode.invalid_regular_expression),
    ):
        reply = await joins(ask, 1, **fields)
        assert (reply.error_code, reply.assignment) == (code, None)
        assert reply.error_message
    assert (await ask("list_groups", 5, states_filter=[], types_filter=[])).groups == ()


async def test_a_classic_group_is_not_described(ask: LocalClient) -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}]}]
    await ask.broker.topics.create("t", 1, {})
    committed = await ask(
        "offset_commit", 9, group_id="plain", generation_id_or_member_epoch=-1, member_id="", topics=topics
    )
    assert committed.topics[0].partitions[0].error_code == ErrorCode.none
    [found] = (await ask("consumer_group_describe", 1, group_ids=["plain"], include_authorized_operations=False)).groups
    assert (found.error_code, found.error_message) == (
        ErrorCode.group_id_not_found,
        "Group plain is not a consumer group.",
    )


async def classic_joins(ask: LocalClient, member: str = "", **fields: Any) -> Any:
    asked = {
        "group_id": "readers",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        **fields,
    }
    return await ask("join_group", 3, **asked)


async def kind_of(ask: LocalClient) -> list[str]:
    return [each.group_type for each in (await ask("list_groups", 5, states_filter=[], types_filter=[])).groups]


async def test_a_refused_member_does_not_change_the_protocol(ask: LocalClient) -> None:
    await ask.broker.topics.create("t", 2, {})
    member = (await classic_joins(ask)).member_id
    assert (await joins(ask, 1)).error_code is ErrorCode.group_id_not_found
    await ask("leave_group", 2, group_id="readers", member_id=member)
    assert (await joins(ask, 1, subscribed_topic_regex="(")).error_code is ErrorCode.invalid_regular_expression
    assert await kind_of(ask) == ["classic"]
    assert (await joins(ask, 1)).error_code is ErrorCode.none
    assert await kind_of(ask) == ["consumer"]

    assert (await classic_joins(ask)).error_code is ErrorCode.inconsistent_group_protocol
    left = {"member_id": "m", "group_instance_id": None, "reason": None}
    assert (await ask("leave_group", 5, group_id="readers", members=[left])).members[0].error_code is ErrorCode.none
    assert (await classic_joins(ask, "nobody")).error_code is ErrorCode.unknown_member_id
    assert (await classic_joins(ask, protocols=[])).error_code is ErrorCode.inconsistent_group_protocol
    assert await kind_of(ask) == ["consumer"]
    assert (await classic_joins(ask)).error_code is ErrorCode.none
    assert await kind_of(ask) == ["classic"]


async def test_a_classic_member_that_never_came_back_is_not_waited_for(ask: LocalClient) -> None:
    await ask.broker.topics.create("t", 2, {})
    metadata = {"group_instance_id": None, "reason": None}
    asked = {"group_id": "readers", "session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer"}
    asked |= {"protocols": [{"name": "range", "metadata": b""}], **metadata}
    drawn = await ask("join_group", 9, member_id="", **asked)
    assert drawn.error_code is ErrorCode.member_id_required
    assert (await joins(ask, 1)).error_code is ErrorCode.none
    assert await kind_of(ask) == ["consumer"]
    late = await ask("join_group", 9, member_id=drawn.member_id, **asked)
    assert late.error_code is ErrorCode.inconsistent_group_protocol


async def test_limits(ask: LocalClient) -> None:
    await ask.broker.topics.create("t", 2, {})
    longest, most = "x" * 255, [f"t{number}" for number in range(10_000)]
    for fields in (
        {"member": longest + "x"},
        {"instance_id": longest + "x"},
        {"rack_id": longest + "x"},
        {"rebalance_timeout": -2},
        {"subscribed_topic_names": [*most, "one more"]},
        {"subscribed_topic_names": ["x" * 250]},
    ):
        assert (await joins(ask, 1, **fields)).error_code is ErrorCode.invalid_request, fields
    for heavy in (r"(?i:\pL{1,300})", r"(?:\pL{0,100}){0,9}"):
        assert (await joins(ask, 1, subscribed_topic_regex=heavy)).error_code is ErrorCode.invalid_regular_expression
    reply = await joins(ask, 1, member=longest, subscribed_topic_names=[*most[1:], "x" * 249])
    assert reply.error_code is ErrorCode.none


async def test_partitions_named_twice(ask: LocalClient) -> None:
    """What a member owns is all that it names, however it does."""
    topic = await ask.broker.topics.create("t", 2, {})
    first = await joins(ask, 1, "a")
    await joins(ask, 1, "b")
    parts = [{"topic_id": topic.id, "partitions": [index]} for index in (1, 0)]
    asked = {"group_id": "readers", "member_id": "a", "member_epoch": first.member_epoch, "rebalance_timeout": -1}
    for _ in range(2):
        told = await ask("consumer_group_heartbeat", 1, subscribed_topic_names=None, topic_partitions=parts, **asked)
        assert told.member_epoch == first.member_epoch, "it has given nothing back yet"


def test_a_topic_named_many_times_holds_nobody_up() -> None:
    """A megabyte of names took seconds on the loop."""
    named = [SimpleNamespace(topic_id=UUID(int=7), partitions=(index,)) for index in range(40_000)]
    before = time.process_time()
    assert k68_consumer_group_heartbeat.owned_places(named) == {UUID(int=7): frozenset(range(40_000))}
    assert time.process_time() - before < 1


async def test_a_group_that_is_asked_for_twice_is_told_once(ask: LocalClient) -> None:
    await ask.broker.topics.create("t", 2, {})
    await joins(ask, 1)
    asked = {"group_ids": ["readers", "readers"], "include_authorized_operations": False}
    assert len((await ask("consumer_group_describe", 1, **asked)).groups) == 1
