"""DescribeGroups (15), versions 0 to 6: state, protocol and members of groups.

Members' metadata is shown while the group is stable. A group that does not exist, or is one of the consumer protocol
(ConsumerGroupDescribe shows those), is Dead, without an error up to version 5, with GROUP_ID_NOT_FOUND from version 6.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.groups import Problem, State
from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.rights import NOT_ASKED, Operations

_NOT_FOUND_FROM = 6


async def handle(call: Call, request: Any) -> dict[str, Any]:
    asked = Operations(call, Resource.GROUP, getattr(request, "include_authorized_operations", False))
    return {"groups": [await _group(call, group_id, asked) for group_id in dict.fromkeys(request.groups)]}


async def _group(call: Call, group_id: str, asked: Operations) -> dict[str, Any]:
    if not call.allows(Operation.DESCRIBE, Resource.GROUP, group_id):
        return {
            "error_code": ErrorCode.group_authorization_failed,
            "group_id": group_id,
            "authorized_operations": NOT_ASKED,
        }
    operations = asked.on(group_id)
    problem, group = await call.broker.groups.describe(group_id)
    if group is None:
        missing = problem is Problem.NONE
        if missing and call.version >= _NOT_FOUND_FROM:
            problem = Problem.GROUP_ID_NOT_FOUND
        return {
            "error_code": problem,
            "error_message": f"Group {group_id} not found." if problem is Problem.GROUP_ID_NOT_FOUND else None,
            "group_id": group_id,
            "group_state": State.DEAD.value if missing else "",
            "authorized_operations": operations if missing else NOT_ASKED,
        }
    return {
        "error_code": problem,
        "group_id": group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "member_metadata": each.subscription if group.state is State.STABLE else b"",
                "member_assignment": each.assignment,
            }
            for each in group.members
        ],
        "authorized_operations": operations,
    }
