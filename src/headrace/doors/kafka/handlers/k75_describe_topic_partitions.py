"""DescribeTopicPartitions (75), version 0: topics in order of their names, so many partitions at a time, and where to
go on.

No topics means all. A cursor must name one of the topics asked for; with all topics it may name one that has gone
since, and the answer goes on behind it.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.topics import check_name
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import error_code
from headrace.doors.kafka.partitions import NOT_ASKED, TOPIC_OPERATIONS, describe
from headrace.errors import HeadraceError, UnknownTopic

PARTITIONS_MAX = 2_000


async def handle(call: Call, request: Any) -> dict[str, Any]:
    topics, cursor = call.broker.topics, request.cursor
    names = sorted({topic.name for topic in request.topics} or topics.all)
    first = 0
    if cursor is not None:
        if cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names):
            return _refused(request)
        names = [name for name in names if name >= cursor.topic_name]
        first = cursor.partition_index if names[:1] == [cursor.topic_name] else 0
    left = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    described: list[dict[str, Any]] = []
    for name in names:
        topic = topics.get(name)
        if topic is None:
            described.append(_missing(name, topics.is_internal(name)))
            continue
        if left == 0:
            return {"topics": described, "next_cursor": {"topic_name": name, "partition_index": 0}}
        page = topic.partitions[first : first + left]
        described.append(
            {
                "error_code": ErrorCode.none,
                "name": name,
                "topic_id": topic.id,
                "is_internal": topics.is_internal(name),
                "partitions": [describe(partition, call.broker.node_id) for partition in page],
                "topic_authorized_operations": TOPIC_OPERATIONS,
            }
        )
        left -= len(page)
        reached = first + len(page)
        if reached < len(topic.partitions):
            return {"topics": described, "next_cursor": {"topic_name": name, "partition_index": reached}}
        first = 0
    return {"topics": described, "next_cursor": None}


def _missing(name: str, internal: bool) -> dict[str, Any]:
    try:
        check_name(name)
        error: HeadraceError = UnknownTopic(f"there is no topic '{name}'")
    except HeadraceError as invalid:
        error = invalid
    return {
        "error_code": error_code(error),
        "name": name,
        "is_internal": internal,
        "partitions": (),
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }


def _refused(request: Any) -> dict[str, Any]:
    return {
        "topics": [
            {
                "error_code": ErrorCode.invalid_request,
                "name": topic.name,
                "partitions": (),
                "topic_authorized_operations": NOT_ASKED,
            }
            for topic in request.topics
        ],
        "next_cursor": None,
    }
