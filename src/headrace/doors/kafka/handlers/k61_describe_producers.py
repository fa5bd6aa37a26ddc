"""DescribeProducers (61), version 0: the idempotent producers that a partition remembers."""

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
        for index in topic.partition_indexes:
            answer: dict[str, Any] = {"partition_index": index, "error_code": ErrorCode.none}
            try:
                call.check(Operation.READ, Resource.TOPIC, topic.name)
                partition = await warm_partition(call.broker, topic.name, index)
                answer["active_producers"] = [
                    {
                        "producer_id": each.producer_id,
                        "producer_epoch": each.producer_epoch,
                        "last_sequence": each.last_sequence,
                        "last_timestamp": each.last_timestamp,
                        "coordinator_epoch": each.coordinator_epoch,
                        "current_txn_start_offset": each.transaction_start,
                    }
                    for each in call.broker.log.local(partition).producers()
                ]
            except HeadraceError as error:
                answer["error_code"] = error_code(error)
                answer["error_message"] = str(error)
            answers.append(answer)
        topics.append({"name": topic.name, "partitions": answers})
    return {"topics": topics}
