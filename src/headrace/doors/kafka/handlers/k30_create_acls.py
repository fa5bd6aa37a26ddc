"""CreateAcls (30), versions 1 to 3: there are no ACLs here, which is SECURITY_DISABLED for each, as from a Kafka
without an authorizer."""

from __future__ import annotations

from typing import Any

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.handlers.k29_describe_acls import DISABLED


async def handle(call: Call, request: Any) -> dict[str, Any]:
    return {"results": [DISABLED] * len(request.creations)}
