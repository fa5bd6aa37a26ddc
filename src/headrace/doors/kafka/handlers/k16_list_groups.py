"""ListGroups (16), versions 0 to 5: all groups, filtered by state (version 4) and type (version 5).

Filters do not look at case. A group's type is the protocol of its members: `classic` or `consumer`.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import CLUSTER_NAME
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.rights import visible


async def handle(call: Call, request: Any) -> dict[str, Any]:
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    problem, groups = await call.broker.groups.list_groups()
    if not call.broker.security.would_allow(call.session, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        seen = set(await visible(call, Resource.GROUP, [group.group_id for group in groups]))
        groups = [group for group in groups if group.group_id in seen]
    return {
        "error_code": problem,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state.value,
                "group_type": group.kind,
            }
            for group in groups
            if (not states or group.state.value.lower() in states) and (not types or group.kind in types)
        ],
    }
