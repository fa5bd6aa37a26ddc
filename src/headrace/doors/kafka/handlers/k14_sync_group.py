"""SyncGroup (14), versions 0 to 5: the leader brings the assignment, every member gets its own.

The replies come when the assignment is durable. From version 5 protocol type and name are checked and returned.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.groups import SyncRequest
from headrace.doors.kafka.call import Call


async def handle(call: Call, request: Any) -> dict[str, Any]:
    synced = await call.broker.groups.sync(
        request.group_id,
        SyncRequest(
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=getattr(request, "group_instance_id", None),
            protocol_type=getattr(request, "protocol_type", None),
            protocol_name=getattr(request, "protocol_name", None),
            assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
        ),
    )
    return {
        "error_code": synced.problem,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol_name,
        "assignment": synced.assignment,
    }
