"""Who a client is to the broker: what a login tries its credentials with."""

from __future__ import annotations

from headrace.broker.broker import Broker
from headrace.broker.security.rights import Open
from headrace.doors.http.api.operations import Operation
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.schemas import flag, object_of, text
from headrace.doors.http.server.messages import Request


@Operation(
    "GET",
    "/v1/whoami",
    "Tells a client who it is to the broker.",
    rights=Open("tells a client about itself"),
    answer=object_of(
        {
            "user": text("Empty where it is not authenticated."),
            "has_users": flag("There are users, as whom a client can be authenticated."),
            "authorization": flag("What a client may do depends on who it is."),
        }
    ),
)
async def whoami(broker: Broker, request: Request, names: Names) -> Answer:
    security = broker.security
    return {
        "user": request.session.user,
        "has_users": bool(security.users.by_name),
        "authorization": security.is_enforced,
    }
