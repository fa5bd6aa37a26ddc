"""Who did what, over HTTP: the entries of `__audit`, the newest first."""

from __future__ import annotations

from headrace.broker.audit_reader import Wanted
from headrace.broker.broker import Broker
from headrace.broker.internal import AUDIT
from headrace.broker.security import Operation as Right
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.operations import Operation, Query, limit_query, text_query
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.rights import on_topic
from headrace.doors.http.api.schemas import Named, array, integer, nullable, object_of, text
from headrace.doors.http.server.messages import Request

INT64_MAX = (1 << 63) - 1

ENTRY = Named(
    "AuditEntry",
    object_of(
        {
            "offset": integer("Of the record in `__audit`."),
            "t": integer("Milliseconds since 1970."),
            "user": text("`ANONYMOUS`: a client that is not authenticated."),
            "host": text(),
            "door": text("`broker`: the broker did it by itself; `offline`: a command without a broker."),
            "client": text("As the client calls itself."),
            "action": text("`login`, `topic.create`, ..., or the right that was missing."),
            "resource": text(),
            "name": text(),
            "result": text(choices=("ok", "refused", "would be refused", "failed")),
        },
        {"detail": text(), "count": integer("How often, where more than once in a moment.")},
    ),
)


@Operation(
    "GET",
    "/v1/audit",
    "Lists who did what, the newest first.",
    rights=on_topic(Right.READ, by=AUDIT),
    query=(
        text_query("user", "Only what this user did."),
        text_query("action", "Only this; with `*` at its end, all that begins so."),
        text_query("name", "Only what was done to this."),
        Query("result", text(choices=("ok", "refused", "would be refused", "failed"))),
        Query("since_ms", integer("Only at or after this time.")),
        Query("until_ms", integer("Only at or before this time.")),
        limit_query(),
        text_query("after", "Where an earlier answer ended: its `next`, unchanged."),
    ),
    answer=object_of({"entries": array(ENTRY), "next": nullable(text("Where to go on."))}),
    command="audit",
    doc="A page looks at 10,000 entries at most, and so may have fewer than asked for, or none, while `next` goes on.",
)
async def list_audit(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    wanted = Wanted(
        user=fields.text("user"),
        action=fields.text("action"),
        name=fields.text("name"),
        result=fields.text("result"),
        since_ms=fields.number("since_ms", 0),
        until_ms=fields.number("until_ms", INT64_MAX),
    )
    limit, after = fields.number("limit", 100, 1, 1_000), fields.number("after", -1, -1)
    fields.end()
    await broker.audit.flush()
    page = await broker.audit_reader.page(wanted, limit, after if after >= 0 else None)
    return {"entries": page.entries, "next": None if page.next is None else str(page.next)}
