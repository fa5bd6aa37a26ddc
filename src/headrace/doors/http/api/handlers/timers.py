"""Messages that wait for their time, over HTTP: list and cancel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.timer import Pending
from headrace.broker.timer.looking import parse_id
from headrace.doors.http.api.answers import Fields, Refused, bad, found, put_bytes
from headrace.doors.http.server.messages import Request, Response
from headrace.errors import UnknownTopic

LIST_DEFAULT = 100
LIST_MAX = 1_000


async def listed(broker: Broker, request: Request, names: Mapping[str, str]) -> Response:
    """GET /v1/timers?topic=&limit=&after="""
    fields = Fields(request.parameters())
    topic = fields.text("topic")
    limit = fields.number("limit", LIST_DEFAULT, 1, LIST_MAX)
    after = fields.text("after")
    fields.end()
    if topic and broker.topics.get(topic) is None:
        raise UnknownTopic(f"there is no topic {topic!r}")
    if after and parse_id(after) is None:
        raise bad(f"after is {after!r}, which is no id: send `next` as it came")
    pending = await broker.timer.list(topic or None, limit, after)
    return found(
        {
            "timers": [_shown(each) for each in pending],
            "next": pending[-1].id if len(pending) == limit else None,
            "pending": broker.timer.pending,
        }
    )


async def cancelled(broker: Broker, request: Request, names: Mapping[str, str]) -> Response:
    """DELETE /v1/timers/{id}"""
    if not await broker.timer.cancel(names["id"]):
        raise Refused(
            404, "UnknownTimer", f"no message waits under the id {names['id']!r}: it was delivered, or cancelled"
        )
    return found({"id": names["id"], "cancelled": True})


def _shown(pending: Pending) -> dict[str, Any]:
    said: dict[str, Any] = {
        "id": pending.id,
        "topic": pending.topic,
        "partition": pending.partition,
        "due_ms": pending.due_ms,
        "scheduled_ms": pending.scheduled_ms,
        "value_bytes": pending.value_bytes,
    }
    put_bytes(said, "key", pending.key)
    return said
