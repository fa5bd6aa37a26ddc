"""WriteTxnMarkers (27), versions 1 to 2: end what a producer has open on these partitions.

Kafka's coordinators send this to the other brokers; here the coordinator and the partitions are in one place, and the
request comes only from an administrator who gets rid of a hanging transaction (`kafka-transactions.sh abort`).
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.groups.shard import TOPIC as OFFSETS
from headrace.broker.internal import is_internal
from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import CLUSTER_NAME
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import error_code
from headrace.doors.kafka.refusals import refuse
from headrace.errors import HeadraceError, NotAuthorized


async def handle(call: Call, request: Any) -> dict[str, Any]:
    cluster = Resource.CLUSTER, CLUSTER_NAME
    try:
        call.broker.security.check_any(call.session, (Operation.ALTER, *cluster), (Operation.CLUSTER_ACTION, *cluster))
    except NotAuthorized as error:
        return refuse(call.api_key, call.version, request, error_code(error), str(error))
    answers = []
    for marker in request.markers:
        topics = []
        for topic in marker.topics:
            partitions = [
                {"partition_index": index, "error_code": await _write(call, marker, topic.name, index)}
                for index in topic.partition_indexes
            ]
            topics.append({"name": topic.name, "partitions": partitions})
        answers.append({"producer_id": marker.producer_id, "topics": topics})
    return {"markers": answers}


async def _write(call: Call, marker: Any, name: str, index: int) -> ErrorCode:
    topic = call.broker.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    if is_internal(name) and name != OFFSETS:
        # No transaction of a client has anything there.
        return ErrorCode.invalid_topic_exception
    try:
        await call.broker.transactions.write_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.transaction_result,
            marker.coordinator_epoch,
            (name, index),
        )
    except (HeadraceError, OSError) as error:
        return error_code(error)
    return ErrorCode.none
