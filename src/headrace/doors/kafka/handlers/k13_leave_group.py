"""LeaveGroup (13), versions 0 to 5: members go.

Up to version 2 a member speaks for itself; from version 3 several can be named, static ones by instance id alone, which
is how an administrator removes them. Each gets an answer of its own. Reasons (version 5) go to the log.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.groups import Leaver
from headrace.doors.kafka.call import Call

_SEVERAL_FROM = 3


async def handle(call: Call, request: Any) -> dict[str, Any]:
    groups = call.broker.groups
    if call.version < _SEVERAL_FROM:
        call.connection.watched().left(request.group_id, request.member_id)
        problem, problems = await groups.leave(request.group_id, [Leaver(request.member_id)])
        return {"error_code": problem or problems[0]}
    leavers = [
        Leaver(each.member_id, each.group_instance_id, getattr(each, "reason", None) or "not provided")
        for each in request.members
    ]
    for each in leavers:
        call.connection.watched().left(request.group_id, each.member_id)
    problem, problems = await groups.leave(request.group_id, leavers)
    return {
        "error_code": problem,
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.instance_id, "error_code": its}
            # None are answered where the whole request is refused.
            for each, its in zip(leavers, problems, strict=False)
        ],
    }
