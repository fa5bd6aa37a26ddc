"""ListTransactions (66), versions 0 to 2: the transactional ids, by state, producer id, age (from version 1) and name
(a regular expression, from version 2)."""

from __future__ import annotations

import re
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security import Resource
from headrace.broker.transactions import Status
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import coordinator_code
from headrace.doors.kafka.rights import visible
from headrace.errors import HeadraceError

_NEVER = 1 << 15


async def handle(call: Call, request: Any) -> dict[str, Any]:
    known = {status.title: status for status in Status}
    unknown = [name for name in request.state_filters if name not in known]
    wanted = {known[name] for name in request.state_filters if name in known}
    ids = set(request.producer_id_filters)
    oldest = getattr(request, "duration_filter", -1)
    try:
        pattern = re.compile(getattr(request, "transactional_id_pattern", None) or "")
    except re.error:
        return {"error_code": ErrorCode.invalid_regular_expression, "unknown_state_filters": unknown}
    try:
        found = await call.broker.transactions.list()
    except (HeadraceError, OSError) as error:
        return {"error_code": coordinator_code(error, call.version, _NEVER), "unknown_state_filters": unknown}
    seen = set(await visible(call, Resource.TRANSACTIONAL_ID, [name for name, _ in found]))
    now = call.broker.runtime.clock.now_ms()
    states = [
        {
            "transactional_id": transactional_id,
            "producer_id": state.producer_id,
            "transaction_state": state.status.title,
        }
        for transactional_id, state in found
        if transactional_id in seen
        and (not request.state_filters or state.status in wanted)
        and (not ids or state.producer_id in ids)
        and (oldest < 0 or (state.status is Status.ONGOING and now - state.started_ms > oldest))
        and (not pattern.pattern or pattern.fullmatch(transactional_id))
    ]
    return {"error_code": ErrorCode.none, "unknown_state_filters": unknown, "transaction_states": states}
