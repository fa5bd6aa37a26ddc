"""DeleteGroups (42), versions 0 to 2: groups without members are removed with their offsets.

A group that has members is refused with NON_EMPTY_GROUP, one that does not exist with GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.groups import Problem
from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.call import Call


async def handle(call: Call, request: Any) -> dict[str, Any]:
    names = dict.fromkeys(request.groups_names)
    return {"results": [{"group_id": name, "error_code": await _delete(call, name)} for name in names]}


async def _delete(call: Call, name: str) -> int:
    if not call.allows(Operation.DELETE, Resource.GROUP, name):
        return ErrorCode.group_authorization_failed
    problem = await call.broker.groups.delete(name)
    if problem is Problem.NONE:
        call.broker.audit.record(call.session, "group.delete", Resource.GROUP, name)
    return problem
