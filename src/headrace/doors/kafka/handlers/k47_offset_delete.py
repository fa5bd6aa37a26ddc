"""OffsetDelete (47), version 0: a group forgets how far it has read.

A topic that a member subscribes to is refused with GROUP_SUBSCRIBED_TO_TOPIC; a group of another protocol than the
consumers' must be empty (NON_EMPTY_GROUP). A partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION; one without a
commit is fine.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.groups import Problem
from headrace.broker.security import Resource
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.partitions import find_partitions


async def handle(call: Call, request: Any) -> dict[str, Any]:
    replies, existing = find_partitions(call, request.topics)
    if not existing:
        return {"error_code": ErrorCode.none, "topics": replies}
    places = [(topic.name, each.partition_index) for _, topic, each in existing]
    problem, problems = await call.broker.groups.delete_offsets(request.group_id, places)
    if problem is not Problem.NONE:
        return {"error_code": problem, "topics": ()}
    for (reply, _, _), its in zip(existing, problems, strict=True):
        reply["error_code"] = its
    topics = " ".join(sorted({name for name, _ in places}))
    call.broker.audit.record(call.session, "group.forget", Resource.GROUP, request.group_id, detail=topics)
    return {"error_code": ErrorCode.none, "topics": replies}
