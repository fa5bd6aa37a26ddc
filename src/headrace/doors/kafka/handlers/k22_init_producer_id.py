"""InitProducerId (22), versions 0 to 5: a new producer id, at epoch 0, for an idempotent producer; for a
transactional id its producer id with the next epoch, which fences the producer that had it before.

What the one before left open is aborted first, in the same append: Kafka answers CONCURRENT_TRANSACTIONS meanwhile, and
clients ask again; here the answer just comes when it is done. From version 3 a producer may name the id and epoch that
it has, to go on after an error.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security import Operation, Resource
from headrace.broker.transactions import Holder
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import coordinator_code
from headrace.doors.kafka.rights import may_make_producers
from headrace.errors import HeadraceError

_FENCED_FROM = 4
_MILLISECOND = timedelta(milliseconds=1)


async def handle(call: Call, request: Any) -> dict[str, Any]:
    refused = {"producer_id": -1, "producer_epoch": -1}
    known = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    if request.transactional_id == "" or (known[0] < 0) != (known[1] < 0):
        return refused | {"error_code": ErrorCode.invalid_request}
    try:
        if request.transactional_id is None:
            may_make_producers(call.broker.security, call.session)
            producer, epoch = await call.broker.producer_ids.next(), 0
        else:
            call.check(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id)
            timeout_ms = request.transaction_timeout // _MILLISECOND
            holder = call.connection.holder = call.connection.holder or Holder(call.client_host)
            producer, epoch = await call.broker.transactions.init(
                request.transactional_id, timeout_ms, *known, holder=holder
            )
    except (HeadraceError, OSError) as error:
        return refused | {"error_code": coordinator_code(error, call.version, _FENCED_FROM)}
    return {"error_code": ErrorCode.none, "producer_id": producer, "producer_epoch": epoch}
