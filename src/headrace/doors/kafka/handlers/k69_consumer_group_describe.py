"""ConsumerGroupDescribe (69), versions 0 to 1: groups of the consumer protocol, their members, and who has and shall
have what.

A classic group is GROUP_ID_NOT_FOUND, by which tools know to ask DescribeGroups. Topics that are gone are not shown.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.groups.consumer.places import Places
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.handlers.k15_describe_groups import GROUP_OPERATIONS
from headrace.doors.kafka.partitions import NOT_ASKED

_CONSUMER = 1


async def handle(call: Call, request: Any) -> dict[str, Any]:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    return {"groups": [await _group(call, group_id, operations) for group_id in dict.fromkeys(request.group_ids)]}


async def _group(call: Call, group_id: str, operations: int) -> dict[str, Any]:
    problem, message, group = await call.broker.groups.consumers.describe(group_id)
    if group is None:
        return {
            "error_code": problem,
            "error_message": message,
            "group_id": group_id,
            "group_state": "",
            "authorized_operations": NOT_ASKED,
        }
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
                "assignment": {"topic_partitions": _shown(call, each.assignment)},
                "target_assignment": {"topic_partitions": _shown(call, each.target)},
                "member_type": _CONSUMER,
            }
            for each in group.members
        ],
        "authorized_operations": operations,
    }


def _shown(call: Call, places: Places) -> list[dict[str, Any]]:
    known = call.broker.log.topics.by_id
    return [
        {"topic_id": topic, "topic_name": known[topic].name, "partitions": sorted(indexes)}
        for topic, indexes in places.items()
        if topic in known
    ]
