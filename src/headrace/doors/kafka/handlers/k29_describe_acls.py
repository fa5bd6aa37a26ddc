"""DescribeAcls (29), versions 1 to 3: the rules that a filter means. Those of roles are not among them, nor rules about
what Kafka does not have.

With `authorization` off there are no ACLs, which is SECURITY_DISABLED, as from a Kafka without an authorizer. Mirrors
and consoles ask as a matter of course, and take that answer for what it is.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.acls import filters_of, listed
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import error_code
from headrace.errors import HeadraceError

DISABLED = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "there are no ACLs here: `authorization` is off",
}


async def handle(call: Call, request: Any) -> dict[str, Any]:
    security = call.broker.security
    if not security.is_enforced:
        return {**DISABLED, "resources": ()}
    try:
        rules = [rule for wanted in filters_of(request) for rule in security.grants.find_rules(call.session, wanted)]
    except HeadraceError as error:
        return {"error_code": error_code(error), "error_message": str(error), "resources": ()}
    return {"error_code": ErrorCode.none, "error_message": None, "resources": listed(rules)}
