"""DeleteRecords (21), versions 0 to 2: move the start of partitions up, -1 to the high watermark.

An offset below the start changes nothing and returns the start. Refused for the broker's own topics and, as in
Kafka, where the topic is only compacted. The new starts are durable when the reply comes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.internal import check_change
from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.changes import within
from headrace.doors.kafka.errors import KafkaError, error_code
from headrace.errors import OffsetOutOfRange, UnknownTopic

_HIGH_WATERMARK = -1
# Kafka acts on a request without any time as well; only waiting for followers would take some.
_AT_LEAST = timedelta(seconds=1)


async def handle(call: Call, request: Any) -> dict[str, Any]:
    wanted = {
        (topic.name, partition.partition_index): partition.offset
        for topic in request.topics
        for partition in topic.partitions
    }

    def trimming(name: str, index: int, offset: int) -> Any:
        return lambda: _trim(call, name, index, offset)

    outcomes = await within(
        max(request.timeout, _AT_LEAST), [trimming(*where, offset) for where, offset in wanted.items()]
    )
    results: dict[str, list[dict[str, Any]]] = {topic.name: [] for topic in request.topics}
    for (name, index), outcome in zip(wanted, outcomes, strict=True):
        failed = isinstance(outcome, BaseException)
        results[name].append(
            {
                "partition_index": index,
                "low_watermark": -1 if failed else outcome,
                "error_code": error_code(outcome) if isinstance(outcome, BaseException) else ErrorCode.none,
            }
        )
    return {"topics": [{"name": name, "partitions": partitions} for name, partitions in results.items()]}


async def _trim(call: Call, name: str, index: int, offset: int) -> int:
    call.check(Operation.DELETE, Resource.TOPIC, name)
    topic = call.broker.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise UnknownTopic(f"there is no partition {name}-{index}")
    check_change(name, "trimmed")
    if topic.settings.compact and not topic.settings.delete:
        raise KafkaError(ErrorCode.policy_violation, f"'{name}' is only compacted: its records go when newer ones come")
    partition = topic.partitions[index]
    await partition.load()
    if offset < _HIGH_WATERMARK or offset > partition.high_watermark:
        raise OffsetOutOfRange(offset, partition.start, partition.high_watermark)
    start = await partition.trim(offset)
    call.broker.audit.record_topic(call.session, "trim", name, f"partition {index} to {start}")
    return start
