"""AddPartitionsToTxn (24), versions 0 to 5: a transaction is about to write to these partitions.

Up to version 3 a client names one transaction. From version 4 brokers name several, and may ask only whether the
partitions are part of them (`verify_only`): those that are not get TRANSACTION_ABORTABLE, in version 4
INVALID_TXN_STATE. If a partition does not exist, none is added, and the others get OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.internal import is_protected
from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import CLUSTER_NAME
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import coordinator_code, error_code
from headrace.doors.kafka.refusals import refuse
from headrace.errors import HeadraceError, NotAuthorized

_FENCED_FROM = 2
_SEVERAL_FROM = 4
_ABORTABLE_FROM = 5

Codes = dict[tuple[str, int], ErrorCode]


async def handle(call: Call, request: Any) -> dict[str, Any]:
    try:
        if call.version < _SEVERAL_FROM:
            call.check(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.v3_and_below_transactional_id)
        else:
            call.check(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
    except NotAuthorized as error:
        return refuse(call.api_key, call.version, request, error_code(error), str(error))
    if call.version < _SEVERAL_FROM:
        topics = request.v3_and_below_topics
        codes = await _add(
            call,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            topics,
        )
        return {"results_by_topic_v3_and_below": _results(topics, codes)}
    results = []
    for each in request.transactions:
        step = _verify if each.verify_only else _add
        codes = await step(call, each.transactional_id, each.producer_id, each.producer_epoch, each.topics)
        results.append({"transactional_id": each.transactional_id, "topic_results": _results(each.topics, codes)})
    return {"error_code": ErrorCode.none, "results_by_transaction": results}


async def _add(call: Call, transactional_id: str, producer_id: int, epoch: int, topics: Any) -> Codes:
    places = _places(topics)
    wrong: Codes = {}
    # What brokers ask for has been asked for by their clients.
    denied = {
        topic.name
        for topic in topics
        if call.version < _SEVERAL_FROM and not call.allows(Operation.WRITE, Resource.TOPIC, topic.name)
    }
    for name, index in places:
        topic = call.broker.topics.get(name)
        if name in denied:
            wrong[name, index] = ErrorCode.topic_authorization_failed
        elif topic is None or not 0 <= index < len(topic.partitions):
            wrong[name, index] = ErrorCode.unknown_topic_or_partition
        elif is_protected(name):
            wrong[name, index] = ErrorCode.invalid_topic_exception
    if wrong:
        return {place: wrong.get(place, ErrorCode.operation_not_attempted) for place in places}
    try:
        await call.broker.transactions.add(transactional_id, producer_id, epoch, places)
    except (HeadraceError, OSError) as error:
        return dict.fromkeys(places, coordinator_code(error, call.version, _FENCED_FROM))
    return dict.fromkeys(places, ErrorCode.none)


async def _verify(call: Call, transactional_id: str, producer_id: int, epoch: int, topics: Any) -> Codes:
    places = _places(topics)
    try:
        touched = await call.broker.transactions.verify(transactional_id, producer_id, epoch)
    except (HeadraceError, OSError) as error:
        return dict.fromkeys(places, coordinator_code(error, call.version, _FENCED_FROM))
    abortable = call.version >= _ABORTABLE_FROM
    missing = ErrorCode.transaction_abortable if abortable else ErrorCode.invalid_txn_state
    return {place: ErrorCode.none if place in touched else missing for place in places}


def _places(topics: Any) -> list[tuple[str, int]]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _results(topics: Any, codes: Codes) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": codes[topic.name, index]}
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]
