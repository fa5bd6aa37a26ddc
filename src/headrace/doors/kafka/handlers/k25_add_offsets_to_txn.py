"""AddOffsetsToTxn (25), versions 0 to 4: a transaction is about to commit offsets of a group."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import coordinator_code
from headrace.errors import HeadraceError

_FENCED_FROM = 2


async def handle(call: Call, request: Any) -> dict[str, Any]:
    if not request.group_id:
        return {"error_code": ErrorCode.invalid_group_id}
    try:
        await call.broker.transactions.add_group(
            request.transactional_id, request.producer_id, request.producer_epoch, request.group_id
        )
    except (HeadraceError, OSError) as error:
        return {"error_code": coordinator_code(error, call.version, _FENCED_FROM)}
    return {"error_code": ErrorCode.none}
