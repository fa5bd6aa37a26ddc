"""FindCoordinator (10), versions 0 to 6: which broker keeps a group or a transactional id. It is the one that leads.

Up to version 3 one key is asked for, from version 4 several. Key types: 0 a group, 1 a transactional id, 2 (version 6)
a share partition, which gets the INVALID_REQUEST of a Kafka broker without share groups, as does any other type. Kafka
makes the internal topic here; Headrace makes it when a group first writes to it.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.placement import endpoint

_GROUP = 0
_TRANSACTION = 1
_SEVERAL_FROM = 4


async def handle(call: Call, request: Any) -> dict[str, Any]:
    key_type = getattr(request, "key_type", _GROUP)
    if call.version < _SEVERAL_FROM:
        return _coordinator(call, key_type)
    return {"coordinators": [{"key": key, **_coordinator(call, key_type)} for key in request.coordinator_keys]}


def _coordinator(call: Call, key_type: int) -> dict[str, Any]:
    if key_type not in (_GROUP, _TRANSACTION):
        return {
            "error_code": ErrorCode.invalid_request,
            "error_message": f"There is no coordinator for keys of type {key_type}.",
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    group = call.broker.membership
    leader = None
    if group.leader is not None:
        leader = endpoint(group, group.leader, call.way)
    if leader is None:
        return {
            "error_code": ErrorCode.coordinator_not_available,
            "error_message": "No node leads just now. Ask again.",
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    return {
        "error_code": ErrorCode.none,
        # Kafka's own up to version 3, and some clients print it.
        "error_message": "NONE" if call.version < _SEVERAL_FROM else "",
        "node_id": leader.node_id,
        "host": leader.host,
        "port": leader.port,
    }
