"""InitProducerId, 0 to 5: a producer id that nobody has had, at epoch 0, for an idempotent producer.

Left out until there is a transaction coordinator: a transactional id is refused with TRANSACTIONAL_ID_NOT_FOUND, which
clients report at once instead of trying for ever.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import error_code
from headrace.errors import HeadraceError

VERSIONS = (0, 5)


async def handle(call: Call, request: Any) -> dict[str, Any]:
    refused = {"producer_id": -1, "producer_epoch": -1}
    if request.transactional_id == "":
        return refused | {"error_code": ErrorCode.invalid_request}
    if request.transactional_id is not None:
        return refused | {"error_code": ErrorCode.transactional_id_not_found}
    if (getattr(request, "producer_id", -1) < 0) != (getattr(request, "producer_epoch", -1) < 0):
        return refused | {"error_code": ErrorCode.invalid_request}
    try:
        producer = await call.broker.producer_ids.next()
    except HeadraceError as error:
        return refused | {"error_code": error_code(error)}
    return {"error_code": ErrorCode.none, "producer_id": producer, "producer_epoch": 0}
