"""DescribeAcls (29), versions 1 to 3: there are no ACLs here, which is SECURITY_DISABLED, as from a Kafka without an
authorizer. Mirrors and consoles ask as a matter of course, and take that answer for what it is."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call

DISABLED = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "there are no ACLs here: access is by TLS client certificates",
}


async def handle(call: Call, request: Any) -> dict[str, Any]:
    return {**DISABLED, "resources": ()}
