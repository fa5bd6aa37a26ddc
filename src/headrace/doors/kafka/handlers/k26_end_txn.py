"""EndTxn (26), versions 0 to 5: a transaction commits or aborts.

The answer comes when the decision is durable in every partition that the transaction touched, and in the group offsets
that it committed. From version 5 the producer gets a new epoch with it, and a new id where epochs have run out, so that
nothing that is still on its way can end up in the next transaction (KIP-890).
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import coordinator_code
from headrace.errors import HeadraceError

_FENCED_FROM = 2
_BUMPS_FROM = 5


async def handle(call: Call, request: Any) -> dict[str, Any]:
    try:
        producer, epoch = await call.broker.transactions.end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            2 if call.version >= _BUMPS_FROM else 1,
        )
    except (HeadraceError, OSError) as error:
        code = coordinator_code(error, call.version, _FENCED_FROM)
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": ErrorCode.none, "producer_id": producer, "producer_epoch": epoch}
