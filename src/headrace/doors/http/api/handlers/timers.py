"""Messages that wait for their time, over HTTP: list and cancel."""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.security.rights import Inside
from headrace.broker.timer import Pending
from headrace.broker.timer.pending import parse_id
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.message_fields import put_bytes
from headrace.doors.http.api.operations import Operation, Refusal, after_query, limit_query, text_query
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.rights import LISTED
from headrace.doors.http.api.schemas import Named, array, bytes_fields, flag, integer, nullable, object_of, text
from headrace.doors.http.server.messages import HttpError, Request
from headrace.errors import UnknownTopic

LIST_DEFAULT = 100
LIST_MAX = 1_000


TIMER = Named(
    "Timer",
    object_of(
        {
            "id": text(),
            "topic": text("Where the message goes."),
            "partition": integer(),
            "due_ms": integer(),
            "scheduled_ms": integer("When the message was given its time."),
            "value_bytes": integer(),
        },
        bytes_fields("key"),
    ),
)


@Operation(
    "GET",
    "/v1/timers",
    "Lists delayed messages by the time at which they are due.",
    rights=LISTED,
    query=(text_query("topic", "Only those of this topic."), limit_query(LIST_DEFAULT, LIST_MAX), after_query()),
    answer=object_of(
        {
            "timers": array(TIMER),
            "next": nullable(text("Where to go on.")),
            "pending": integer("Delayed messages of all topics."),
        }
    ),
    errors=(UnknownTopic,),
    command="timer list [TOPIC]",
)
async def list_timers(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    topic = fields.text("topic")
    limit = fields.number("limit", LIST_DEFAULT, 1, LIST_MAX)
    after = fields.text("after")
    fields.end()
    if topic:
        broker.security.check(request.session, Right.DESCRIBE, Resource.TIMER, topic)
        broker.topics.existing(topic)
    if after and parse_id(after) is None:
        raise bad_request(f"after must be an earlier answer's `next`, unchanged (got {after!r})")
    pending = await broker.timer.list(topic or None, limit, after)
    visible = set(broker.security.visible(request.session, Resource.TIMER, {each.topic for each in pending}))
    return {
        "timers": [_describe(each) for each in pending if each.topic in visible],
        "next": pending[-1].id if len(pending) == limit else None,
        "pending": broker.timer.pending,
    }


@Operation(
    "DELETE",
    "/v1/timers/{id}",
    "Cancels a delayed message.",
    rights=Inside("DELETE timer TOPIC, of the topic to which the message goes"),
    answer=object_of({"id": text(), "cancelled": flag()}),
    errors=(Refusal(404, "UnknownTimer"),),
    command="timer cancel ID",
)
async def cancel_timer(broker: Broker, request: Request, names: Names) -> Answer:
    if not await _may_cancel(broker, request, names["id"]) or not await broker.timer.cancel(names["id"]):
        raise HttpError(
            404, "UnknownTimer", f"no message waits under the id {names['id']!r}: it was delivered, or cancelled"
        )
    return {"id": names["id"], "cancelled": True}


async def _may_cancel(broker: Broker, request: Request, id: str) -> bool:
    """Whether the client may cancel a message; False, too, where it may not know of it. Raises NotAuthorized."""
    security, session = broker.security, request.session
    if not security.is_enforced:
        return True
    found = await broker.timer.find(id)
    if found is None:
        return False
    if not security.visible(session, Resource.TIMER, [found.topic]):
        return security.allows(session, Right.DELETE, Resource.TIMER, found.topic)
    security.check(session, Right.DELETE, Resource.TIMER, found.topic)
    return True


def _describe(pending: Pending) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": pending.id,
        "topic": pending.topic,
        "partition": pending.partition,
        "due_ms": pending.due_ms,
        "scheduled_ms": pending.scheduled_ms,
        "value_bytes": pending.value_bytes,
    }
    put_bytes(shown, "key", pending.key)
    return shown
