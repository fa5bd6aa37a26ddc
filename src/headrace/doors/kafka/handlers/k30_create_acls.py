"""CreateAcls (30), versions 1 to 3: rules are added, all that make sense together; each of the others has its error.

They are durable, and hold for what runs already, when the reply comes. With `authorization` off it is SECURITY_DISABLED
for each.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security.grants import check_rule
from headrace.broker.security.rules import Rule
from headrace.doors.kafka.acls import rule_of
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import controller_code
from headrace.doors.kafka.handlers.k29_describe_acls import DISABLED
from headrace.errors import HeadraceError


async def handle(call: Call, request: Any) -> dict[str, Any]:
    security = call.broker.security
    if not security.is_enforced:
        return {"results": [DISABLED] * len(request.creations)}
    outcomes = [_rule(each) for each in request.creations]
    failed: HeadraceError | OSError | None = None
    try:
        await security.grants.add_rules(call.session, [each for each in outcomes if isinstance(each, Rule)])
    except (HeadraceError, OSError) as error:
        failed = error
    return {"results": [_result(failed if isinstance(each, Rule) else each) for each in outcomes]}


def _rule(asked: Any) -> Rule | HeadraceError:
    try:
        rule = rule_of(asked)
        check_rule(rule)
    except HeadraceError as error:
        return error
    return rule


def _result(error: HeadraceError | OSError | None) -> dict[str, Any]:
    code = ErrorCode.none if error is None else controller_code(error)
    return {"error_code": code, "error_message": None if error is None else str(error)}
