"""AlterPartitionReassignments (45), versions 0 to 1: every node of the group has all partitions, and none moves.

Asking for the replicas that a partition has changes nothing, and is no error. Other replicas are refused: nodes are
added to the group and removed from it as a whole. There is never a reassignment to cancel.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call

_OTHERS = (
    "every node of the group has a replica of every partition: it is the group that gets nodes and loses them "
    "(headrace cluster add-node, remove-node)"
)


async def handle(call: Call, request: Any) -> dict[str, Any]:
    responses = []
    for asked in request.topics:
        topic = call.broker.topics.get(asked.name)
        count = 0 if topic is None else len(topic.partitions)
        answers = []
        for each in asked.partitions:
            code, sentence = _judge(call, each, count)
            answers.append({"partition_index": each.partition_index, "error_code": code, "error_message": sentence})
        responses.append({"name": asked.name, "partitions": answers})
    return {"error_code": ErrorCode.none, "error_message": None, "responses": responses}


def _judge(call: Call, asked: Any, count: int) -> tuple[ErrorCode, str | None]:
    if not 0 <= asked.partition_index < count:
        return ErrorCode.unknown_topic_or_partition, f"there is no partition {asked.partition_index} of such a topic"
    if asked.replicas is None:
        return ErrorCode.no_reassignment_in_progress, "no reassignment is under way"
    nodes = call.broker.membership.replicas
    if sorted(asked.replicas) == sorted(nodes):
        return ErrorCode.none, None
    return ErrorCode.invalid_replica_assignment, f"{_OTHERS}. Its nodes are {', '.join(map(str, nodes))}"
