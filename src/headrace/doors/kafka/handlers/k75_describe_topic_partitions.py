"""DescribeTopicPartitions (75), version 0: topics in order of their names, so many partitions at a time, and where to
go on.

No topics means all. A cursor must name one of the topics asked for; with all topics it may name one that has gone
since, and the answer goes on behind it.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.partitions import describe_topic, refuse_topic
from headrace.doors.kafka.placement import Placement
from headrace.doors.kafka.rights import NOT_ASKED, Operations, visible

PARTITIONS_MAX = 2_000


async def handle(call: Call, request: Any) -> dict[str, Any]:
    topics, cursor, placement = call.broker.topics, request.cursor, Placement.of(call.broker, call.listener)
    operations = Operations(call, Resource.TOPIC)
    asked = {topic.name for topic in request.topics}
    # Of all topics, those that are hidden from the client are left out.
    names = sorted(asked or await visible(call, Resource.TOPIC, topics.all))
    first = 0
    if cursor is not None:
        if cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names):
            return _refuse(request)
        names = [name for name in names if name >= cursor.topic_name]
        first = cursor.partition_index if names[:1] == [cursor.topic_name] else 0
    left = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    described: list[dict[str, Any]] = []
    for name in names:
        if asked and not call.allows(Operation.DESCRIBE, Resource.TOPIC, name):
            described.append(refuse_topic(ErrorCode.topic_authorization_failed, name, NOT_ASKED))
            continue
        topic = topics.get(name)
        if topic is None:
            described.append(refuse_topic(None, name, NOT_ASKED))
            continue
        if left == 0:
            return {"topics": described, "next_cursor": {"topic_name": name, "partition_index": 0}}
        page = topic.partitions[first : first + left]
        described.append(describe_topic(placement, topic, operations.on(name), page))
        left -= len(page)
        reached = first + len(page)
        if reached < len(topic.partitions):
            return {"topics": described, "next_cursor": {"topic_name": name, "partition_index": reached}}
        first = 0
    return {"topics": described, "next_cursor": None}


def _refuse(request: Any) -> dict[str, Any]:
    return {
        "topics": [refuse_topic(ErrorCode.invalid_request, topic.name, NOT_ASKED) for topic in request.topics],
        "next_cursor": None,
    }
