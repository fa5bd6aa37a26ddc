"""DescribeUserScramCredentials (50), version 0: which users have credentials by which mechanism, with what iterations.

No users means all that have some. A user that is asked for and has none is RESOURCE_NOT_FOUND.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security.credentials import Credential, Mechanism
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import error_code
from headrace.errors import HeadraceError

NUMBERS = {Mechanism.SHA_256: 1, Mechanism.SHA_512: 2}


async def handle(call: Call, request: Any) -> dict[str, Any]:
    names = [each.name for each in request.users] if request.users else None
    found = call.broker.security.accounts.describe_credentials(call.session, names)
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "results": [_result(name, some) for name, some in found.items()],
    }


def _result(name: str, found: list[Credential] | HeadraceError) -> dict[str, Any]:
    if isinstance(found, HeadraceError):
        code, sentence = error_code(found), str(found)
        return {"user": name, "error_code": code, "error_message": sentence, "credential_infos": ()}
    infos = [{"mechanism": NUMBERS[each.mechanism], "iterations": each.iterations} for each in found]
    return {"user": name, "error_code": ErrorCode.none, "error_message": None, "credential_infos": infos}
