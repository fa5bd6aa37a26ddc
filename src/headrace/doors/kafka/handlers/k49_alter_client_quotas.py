"""AlterClientQuotas (49), versions 0 to 1: sets and removes quotas. Each entity is changed or refused alone.

Beyond Kafka: a rate of 0 is refused, since it would let nothing through for ever, and so is an address by a host's
name. A name and an operation that stand twice are refused, where Kafka has the last one count.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.quotas.entities import make_entity
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.changes import repeated
from headrace.doors.kafka.errors import KafkaError, controller_code
from headrace.errors import HeadraceError


async def handle(call: Call, request: Any) -> dict[str, Any]:
    entries = []
    for entry in request.entries:
        code, sentence = ErrorCode.none, None
        try:
            await _alter(call, entry, request.validate_only)
        except HeadraceError as error:
            code, sentence = controller_code(error), str(error)
        entity = [{"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entry.entity]
        entries.append({"error_code": code, "error_message": sentence, "entity": entity})
    return {"entries": entries}


async def _alter(call: Call, entry: Any, validate_only: bool) -> None:
    entity = make_entity((each.entity_type, each.entity_name) for each in entry.entity)
    twice = repeated(op.key for op in entry.ops)
    if twice:
        raise KafkaError(ErrorCode.invalid_request, f"{', '.join(sorted(twice))} occurs more than once in the request")
    put = {op.key: op.value for op in entry.ops if not op.remove}
    drop = [op.key for op in entry.ops if op.remove]
    session = call.connection.session
    await call.broker.quota_book.alter(session, entity, put, drop, validate_only=validate_only)
