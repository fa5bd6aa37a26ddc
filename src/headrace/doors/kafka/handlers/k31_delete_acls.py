"""DeleteAcls (31), versions 1 to 3: the rules that filters mean are removed, all together; each filter's are named.

What they allowed has ended when the reply comes, or within a second where it runs. With `authorization` off it is
SECURITY_DISABLED for each.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security.filters import RuleFilter
from headrace.doors.kafka.acls import filters_of, matched
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import controller_code
from headrace.doors.kafka.handlers.k29_describe_acls import DISABLED
from headrace.errors import HeadraceError


async def handle(call: Call, request: Any) -> dict[str, Any]:
    security = call.broker.security
    if not security.is_enforced:
        return {"filter_results": [{**DISABLED, "matching_acls": ()}] * len(request.filters)}
    meant = [_filters(each) for each in request.filters]
    flat = [each for some in meant if isinstance(some, list) for each in some]
    try:
        found = iter(await security.grants.remove_rules(call.session, flat))
    except (HeadraceError, OSError) as error:
        return {"filter_results": [_refuse(error)] * len(meant)}
    results = []
    for some in meant:
        if isinstance(some, list):
            rules = [rule for _ in some for rule in next(found)]
            named = [matched(rule) for rule in rules]
            results.append({"error_code": ErrorCode.none, "error_message": None, "matching_acls": named})
        else:
            results.append(_refuse(some))
    return {"filter_results": results}


def _filters(asked: Any) -> list[RuleFilter] | HeadraceError:
    try:
        return filters_of(asked)
    except HeadraceError as error:
        return error


def _refuse(error: HeadraceError | OSError) -> dict[str, Any]:
    return {"error_code": controller_code(error), "error_message": str(error), "matching_acls": ()}
