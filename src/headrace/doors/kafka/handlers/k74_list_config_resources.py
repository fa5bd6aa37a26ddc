"""ListConfigResources (74), versions 0 to 1: what has settings, by type; without types, all of it.

Version 0 asks for client metrics alone, of which there are none. Groups are listed that have settings of their own.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.dynamic_config import Scope
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.configs import Resource


async def handle(call: Call, request: Any) -> dict[str, Any]:
    wanted = getattr(request, "resource_types", ()) or (Resource if call.version else (Resource.CLIENT_METRICS,))
    names: dict[int, list[str]] = {
        Resource.GROUP: call.broker.dynamic.names(Scope.GROUP),
        Resource.CLIENT_METRICS: [],
        Resource.BROKER_LOGGER: [str(call.broker.node_id)],
        Resource.BROKER: [str(call.broker.node_id)],
        Resource.TOPIC: sorted(call.broker.topics.all),
    }
    if any(each not in names for each in wanted):
        return {"error_code": ErrorCode.unsupported_version, "config_resources": ()}
    resources = [
        {"resource_type": each, "resource_name": name} for each in dict.fromkeys(wanted) for name in names[each]
    ]
    return {"error_code": ErrorCode.none, "config_resources": resources}
