"""OffsetDelete (47), version 0: a group forgets how far it has read.

A topic that a member subscribes to is refused with GROUP_SUBSCRIBED_TO_TOPIC; a group of another protocol than the
consumers' must be empty (NON_EMPTY_GROUP). A partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION; one without a
commit is fine.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.groups import Problem
from headrace.doors.kafka.call import Call

VERSIONS = (0, 0)


async def handle(call: Call, request: Any) -> dict[str, Any]:
    """Answer one request."""
    broker = call.broker
    replies = []
    waiting = []
    places = []
    for asked in request.topics:
        topic = broker.log.topics.get(asked.name)
        partitions = []
        for each in asked.partitions:
            reply: dict[str, Any] = {"partition_index": each.partition_index}
            partitions.append(reply)
            if topic is None or not 0 <= each.partition_index < len(topic.partitions):
                reply["error_code"] = ErrorCode.unknown_topic_or_partition
            else:
                waiting.append(reply)
                places.append((topic.name, each.partition_index))
        replies.append({"name": asked.name, "partitions": partitions})
    problem, problems = await broker.groups.delete_offsets(request.group_id, places)
    if problem is not Problem.NONE:
        return {"error_code": problem, "topics": ()}
    for reply, its in zip(waiting, problems, strict=True):
        reply["error_code"] = its
    return {"error_code": ErrorCode.none, "topics": replies}
