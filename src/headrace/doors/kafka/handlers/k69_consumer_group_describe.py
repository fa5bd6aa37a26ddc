"""ConsumerGroupDescribe (69), versions 0 to 1: groups of the consumer protocol, their members, and who has and shall
have what.

A group with a topic that the client may not describe is TOPIC_AUTHORIZATION_FAILED, without its members. A classic
group is GROUP_ID_NOT_FOUND, by which tools know to ask DescribeGroups. Topics that are gone are not shown.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.groups.consumer.places import Places
from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.rights import NOT_ASKED, Operations

_CONSUMER = 1


async def handle(call: Call, request: Any) -> dict[str, Any]:
    asked = Operations(call, Resource.GROUP, request.include_authorized_operations)
    return {"groups": [await _group(call, group_id, asked) for group_id in dict.fromkeys(request.group_ids)]}


async def _group(call: Call, group_id: str, asked: Operations) -> dict[str, Any]:
    if not call.allows(Operation.DESCRIBE, Resource.GROUP, group_id):
        return _refuse(group_id, ErrorCode.group_authorization_failed)
    problem, message, group = await call.broker.groups.consumers.describe(group_id)
    if group is None:
        return _refuse(group_id, problem, message)
    known = call.broker.log.topics.by_id
    topics = {
        known[topic].name for each in group.members for topic in (*each.assignment, *each.target) if topic in known
    }
    topics.update(*(each.traits.topics for each in group.members))
    if len(call.broker.security.visible(call.session, Resource.TOPIC, topics)) < len(topics):
        sentence = "the group has topics that the client is not authorized to describe"
        return _refuse(group_id, ErrorCode.topic_authorization_failed, sentence)
    return {
        "error_code": problem,
        "group_id": group_id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [
            {
                "member_id": each.member_id,
                "instance_id": each.traits.instance_id,
                "rack_id": each.traits.rack_id,
                "member_epoch": each.epoch,
                "client_id": each.traits.client_id,
                "client_host": each.traits.client_host,
                "subscribed_topic_names": each.traits.topics,
                "subscribed_topic_regex": each.traits.pattern,
                "assignment": {"topic_partitions": _describe_places(call, each.assignment)},
                "target_assignment": {"topic_partitions": _describe_places(call, each.target)},
                "member_type": _CONSUMER,
            }
            for each in group.members
        ],
        "authorized_operations": asked.on(group_id),
    }


def _refuse(group_id: str, code: int, sentence: str | None = None) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": sentence,
        "group_id": group_id,
        "group_state": "",
        "authorized_operations": NOT_ASKED,
    }


def _describe_places(call: Call, places: Places) -> list[dict[str, Any]]:
    known = call.broker.log.topics.by_id
    return [
        {"topic_id": topic, "topic_name": known[topic].name, "partitions": sorted(indexes)}
        for topic, indexes in places.items()
        if topic in known
    ]
