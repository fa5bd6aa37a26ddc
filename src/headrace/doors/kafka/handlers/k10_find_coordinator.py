"""FindCoordinator (10), versions 0 to 6: which broker keeps a group or a transactional id. It is the one that leads.

Up to version 3 one key is asked for, from version 4 several. Key types: 0 a group, 1 a transactional id, 2 (version 6)
a share partition, which gets the INVALID_REQUEST of a Kafka broker without share groups, as does any other type. Kafka
makes the internal topic here; Headrace makes it when a group first writes to it.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import error_code
from headrace.doors.kafka.placement import endpoint
from headrace.errors import NotAuthorized

_GROUP = 0
_TRANSACTION = 1
_SEVERAL_FROM = 4


async def handle(call: Call, request: Any) -> dict[str, Any]:
    key_type = getattr(request, "key_type", _GROUP)
    if call.version < _SEVERAL_FROM:
        return _coordinator(call, key_type, request.key)
    return {"coordinators": [{"key": key, **_coordinator(call, key_type, key)} for key in request.coordinator_keys]}


def _coordinator(call: Call, key_type: int, key: str) -> dict[str, Any]:
    if key_type not in (_GROUP, _TRANSACTION):
        return _refuse(ErrorCode.invalid_request, f"There is no coordinator for keys of type {key_type}.")
    try:
        call.check(Operation.DESCRIBE, Resource.GROUP if key_type == _GROUP else Resource.TRANSACTIONAL_ID, key)
    except NotAuthorized as error:
        return _refuse(error_code(error), str(error))
    group = call.broker.membership
    leader = None
    if group.leader is not None:
        leader = endpoint(group, group.leader, call.way)
    if leader is None:
        return _refuse(ErrorCode.coordinator_not_available, "No node leads just now. Ask again.")
    return {
        "error_code": ErrorCode.none,
        # Kafka's own up to version 3, and some clients print it.
        "error_message": "NONE" if call.version < _SEVERAL_FROM else "",
        "node_id": leader.node_id,
        "host": leader.host,
        "port": leader.port,
    }


def _refuse(code: ErrorCode, sentence: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": sentence, "node_id": -1, "host": "", "port": -1}
