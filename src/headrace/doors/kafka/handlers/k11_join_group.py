"""JoinGroup (11), versions 0 to 9: become part of a group's next generation.

The reply comes when the generation is complete; the leader's names every member. From version 4 a dynamic member
without an id is given one with MEMBER_ID_REQUIRED and must come back with it. A static member (version 5) that returns
replaces its former self and, where the group is stable and would choose the same protocol, causes no rebalance; if it
leads, the reply asks it from version 9 to skip the assignment. The reason (version 8) goes to the log. A group whose
members speak the consumer protocol is INCONSISTENT_GROUP_PROTOCOL.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from headrace.broker.groups import JoinRequest, Problem
from headrace.doors.kafka.call import Call

_KNOWN_ID_FROM = 4
_NULL_PROTOCOL_FROM = 7
_SKIP_FROM = 9
_MILLISECOND = timedelta(milliseconds=1)


async def handle(call: Call, request: Any) -> dict[str, Any]:
    session_timeout = request.session_timeout // _MILLISECOND
    rebalance_timeout = getattr(request, "rebalance_timeout", request.session_timeout) // _MILLISECOND
    watched, instance_id = call.connection.watched(), getattr(request, "group_instance_id", None)
    if request.member_id:
        watched.joined(request.group_id, request.member_id, instance_id)
    joined = await call.broker.groups.join(
        request.group_id,
        JoinRequest(
            member_id=request.member_id,
            instance_id=instance_id,
            client_id=call.client_id or "",
            client_host="/" + call.client_host,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            session_timeout_ms=session_timeout,
            rebalance_timeout_ms=rebalance_timeout if rebalance_timeout >= 0 else session_timeout,
            needs_known_id=call.version >= _KNOWN_ID_FROM,
            may_skip_assignment=call.version >= _SKIP_FROM,
            reason=getattr(request, "reason", None) or "not provided",
        ),
    )
    if joined.problem is Problem.NONE:
        watched.joined(request.group_id, joined.member_id, instance_id)
    name = joined.protocol_name
    return {
        "error_code": joined.problem,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": name if call.version >= _NULL_PROTOCOL_FROM else name or "",
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.instance_id, "metadata": each.metadata}
            for each in joined.members
        ],
    }
