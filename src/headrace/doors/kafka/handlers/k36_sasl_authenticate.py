"""SaslAuthenticate (36), versions 0 to 2: one message of the mechanism that SaslHandshake named.

A failure is SASL_AUTHENTICATION_FAILED, and the connection is closed. From version 1 on the last answer says for how
long the session lasts: the client authenticates again before that.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call


async def handle(call: Call, request: Any) -> dict[str, Any]:
    sasl = call.connection.sasl
    if sasl is None:
        sentence = "clients do not authenticate by SASL at this listener"
        return {"error_code": ErrorCode.illegal_sasl_state, "error_message": sentence, "auth_bytes": b""}
    return await sasl.authenticate(request.auth_bytes)
