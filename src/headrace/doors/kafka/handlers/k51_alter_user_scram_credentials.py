"""AlterUserScramCredentials (51), version 0: passwords that clients have salted themselves are set, and credentials
removed, each user's together. A user that is not there is made.

What a removed credential let in stays until its session ends.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security.accounts import Deletion, Upsert
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import KafkaError, controller_code
from headrace.doors.kafka.handlers.k50_describe_user_scram_credentials import NUMBERS
from headrace.errors import HeadraceError

_MECHANISMS = {number: mechanism for mechanism, number in NUMBERS.items()}


async def handle(call: Call, request: Any) -> dict[str, Any]:
    names = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
    failed: dict[str, HeadraceError | OSError] = {
        each.name: KafkaError(
            ErrorCode.unsupported_sasl_mechanism,
            f"there is no SCRAM mechanism {each.mechanism}: 1 and 2 are SHA-256 and 512",
        )
        for each in (*request.deletions, *request.upsertions)
        if each.mechanism not in _MECHANISMS
    }
    deletions = [
        Deletion(each.name, _MECHANISMS[each.mechanism]) for each in request.deletions if each.name not in failed
    ]
    upserts = [
        Upsert(each.name, _MECHANISMS[each.mechanism], each.iterations, each.salt, each.salted_password)
        for each in request.upsertions
        if each.name not in failed
    ]
    try:
        failed |= await call.broker.security.accounts.alter_credentials(call.session, [*deletions, *upserts])
    except (HeadraceError, OSError) as error:
        failed = dict.fromkeys(names, error)
    return {"results": [_result(name, failed.get(name)) for name in names]}


def _result(name: str, error: HeadraceError | OSError | None) -> dict[str, Any]:
    code = ErrorCode.none if error is None else controller_code(error)
    return {"user": name, "error_code": code, "error_message": None if error is None else str(error)}
