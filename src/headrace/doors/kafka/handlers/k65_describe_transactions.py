"""DescribeTransactions (65), version 0: the state of transactional ids, and what their transactions have touched."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security import Operation, Resource
from headrace.broker.transactions import Status
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import coordinator_code
from headrace.doors.kafka.rights import visible
from headrace.errors import HeadraceError

_NEVER = 1 << 15


async def handle(call: Call, request: Any) -> dict[str, Any]:
    return {"transaction_states": [await _describe(call, each) for each in request.transactional_ids]}


async def _describe(call: Call, transactional_id: str) -> dict[str, Any]:
    try:
        call.check(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id)
        state = await call.broker.transactions.describe(transactional_id)
    except (HeadraceError, OSError) as error:
        return {"transactional_id": transactional_id, "error_code": coordinator_code(error, call.version, _NEVER)}
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(state.places):
        by_topic.setdefault(topic, []).append(index)
    seen = await visible(call, Resource.TOPIC, by_topic)
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": state.status.title,
        "transaction_timeout": timedelta(milliseconds=state.timeout_ms),
        "transaction_start_time": -1 if state.status is Status.EMPTY else state.started_ms,
        "producer_id": state.producer_id,
        "producer_epoch": state.epoch,
        "topics": [{"topic": topic, "partitions": by_topic[topic]} for topic in seen],
    }
