"""OffsetForLeaderEpoch (23), versions 2 to 4: where an epoch ended, by which a client sees that the log was cut."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import error_code
from headrace.doors.kafka.partitions import warm_partition
from headrace.errors import HeadraceError


async def handle(call: Call, request: Any) -> dict[str, Any]:
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            answer: dict[str, Any] = {"partition": asked.partition, "error_code": ErrorCode.none}
            try:
                call.check(Operation.DESCRIBE, Resource.TOPIC, topic.topic)
                partition = await warm_partition(call.broker, topic.topic, asked.partition, asked.current_leader_epoch)
                answer["leader_epoch"], answer["end_offset"] = partition.epoch_end(asked.leader_epoch)
            except HeadraceError as error:
                answer["error_code"] = error_code(error)
            answers.append(answer)
        topics.append({"topic": topic.topic, "partitions": answers})
    return {"topics": topics}
