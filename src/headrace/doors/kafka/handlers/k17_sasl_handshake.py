"""SaslHandshake (17), versions 0 to 1: the client names the mechanism by which it will authenticate.

Behind version 0 the messages of the mechanism come bare, behind version 1 in SaslAuthenticate. On a listener without
SASL, and within a second of the last one, it is ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.mechanisms import NODE
from headrace.doors.kafka.sasl import Sasl


async def handle(call: Call, request: Any) -> dict[str, Any]:
    sasl = call.connection.sasl
    if sasl is None and request.mechanism == NODE:
        # Other nodes speak for their clients at whichever listener.
        sasl = call.connection.sasl = Sasl(call.connection)
    if sasl is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
    return sasl.handshake(request.mechanism, call.version == 0)
