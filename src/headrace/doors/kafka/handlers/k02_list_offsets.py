"""ListOffsets (2), versions 1 to 11: the offset at the start, the end, a time, or of the largest timestamp.

The end is the high watermark, or the last stable offset for committed readers; a look-up by time finds nothing at or
above it. The local log is the whole log here: "earliest local" is the start, and "latest tiered" and "earliest pending
upload" have no answer (offset -1, no error), as in a Kafka without remote storage.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import error_code
from headrace.doors.kafka.partitions import warm_partition
from headrace.errors import HeadraceError
from headrace.log.interface import EARLIEST, LATEST, MAX_TIMESTAMP, Partition

EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
# The first version that may ask for each of the special times.
SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
COMMITTED = 1


async def handle(call: Call, request: Any) -> dict[str, Any]:
    committed = getattr(request, "isolation_level", 0) == COMMITTED
    named = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    topics = []
    for topic in request.topics:
        answers = []
        is_allowed = call.allows(Operation.DESCRIBE, Resource.TOPIC, topic.name)
        for each in topic.partitions:
            if not is_allowed:
                code = ErrorCode.topic_authorization_failed
                answers.append({"partition_index": each.partition_index, "error_code": code})
            elif named[topic.name, each.partition_index] > 1:
                answers.append({"partition_index": each.partition_index, "error_code": ErrorCode.invalid_request})
            else:
                answers.append(await _find(call, topic.name, each, committed))
        topics.append({"name": topic.name, "partitions": answers})
    return {"topics": topics}


async def _find(call: Call, name: str, asked: Any, committed: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"partition_index": asked.partition_index, "error_code": ErrorCode.none}
    time = asked.timestamp
    if time < 0 and call.version < SINCE.get(time, 1 << 15):
        return answer | {"error_code": ErrorCode.unsupported_version}
    try:
        epoch = getattr(asked, "current_leader_epoch", -1)
        partition = await warm_partition(call.broker, name, asked.partition_index, epoch)
        end = partition.last_stable if committed else partition.high_watermark
        if time == LATEST:
            return answer | {"offset": end, "leader_epoch": partition.epoch}
        if time in (EARLIEST, EARLIEST_LOCAL):
            return answer | {"offset": partition.start, "leader_epoch": _epoch_of_start(partition)}
        if time in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return answer
        found = await partition.offset_at(time)
    except (HeadraceError, OSError) as error:
        # A segment may be dropped while it is searched, off the loop: the client asks again.
        return answer | {"error_code": error_code(error)}
    if not 0 <= found.offset < end:
        return answer
    return answer | {"offset": found.offset, "timestamp": found.timestamp, "leader_epoch": found.leader_epoch}


def _epoch_of_start(partition: Partition) -> int:
    """The epoch in which the first readable record was written: walk back through the epochs that end after it."""
    epoch = partition.epoch
    while epoch > 0:
        before, end = partition.epoch_end(epoch - 1)
        if before < 0 or end <= partition.start:
            break
        epoch = before
    return epoch
