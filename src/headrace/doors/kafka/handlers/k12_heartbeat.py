"""Heartbeat (12), versions 0 to 4: a member is alive, and learns by REBALANCE_IN_PROGRESS that it has to rejoin.

While the group's state is being loaded after a start the answer is good, so that no member loses its place.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.groups import Problem
from headrace.doors.kafka.call import Call


async def handle(call: Call, request: Any) -> dict[str, Any]:
    problem = await call.broker.groups.heartbeat(
        request.group_id, request.member_id, getattr(request, "group_instance_id", None), request.generation_id
    )
    if problem is Problem.NONE:
        # It may have joined by another connection.
        instance_id = getattr(request, "group_instance_id", None)
        call.connection.watched().joined(request.group_id, request.member_id, instance_id)
    return {"error_code": problem}
