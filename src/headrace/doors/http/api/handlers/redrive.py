"""Redrive over HTTP, a step a request.

A request does about a second's work, and reports what became of each letter and where to go on (`next`). The client
sends the same request again with that, until there is none. So nothing of a run lives in the broker, and a client that
goes away leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.dead_letters import Selection
from headrace.broker.redrive import FAILED, REDRIVEN, SKIPPED, STEP_RESULTS, WOULD, Order, Progress, Result
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.security.rights import Inside
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.message_fields import bytes_of, put_bytes
from headrace.doors.http.api.operations import Operation
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.schemas import (
    Named,
    array,
    bytes_fields,
    decimal,
    flag,
    given_bytes,
    integer,
    mapping,
    nullable,
    object_of,
    text,
)
from headrace.doors.http.server.messages import Request
from headrace.errors import InvalidQueue, InvalidTopic, UnknownTopic

INT64_MAX = (1 << 63) - 1
# How much is shown of a key or an error: a step has a thousand.
TEXT_MAX = 1_024


ORIGIN = Named(
    "Origin",
    object_of({"topic": text(), "partition": integer(), "offset": integer(), "queue": text()}, doc="Where it died."),
)
OFFSETS = mapping(integer(), "By partition.")
PROGRESS = Named("RedriveProgress", object_of({"positions": OFFSETS, "ends": OFFSETS}))
RESULT = Named(
    "RedriveResult",
    object_of(
        {
            "outcome": text(choices=(REDRIVEN, WOULD, SKIPPED, FAILED)),
            "partition": integer(),
            "offset": integer(),
            "origin": ORIGIN,
            "attempts": integer(),
            "error": text(),
            "dead_at_ms": integer(),
            "redriven": integer("Times that it was sent back before."),
        },
        {"reason": text("Why not."), "sent_to": integer("Its new offset."), **bytes_fields("key")},
    ),
)


@Operation(
    "POST",
    "/v1/redrive",
    "Sends selected dead letters back to where they came from: one step.",
    rights=Inside("READ and WRITE topic TOPIC, of the dead-letter topic, and WRITE topic of each origin"),
    doc="A step works for about a second and at most 1,000 messages. Repeat the request with `next` until it is null.",
    body=object_of(
        {"topic": text("The dead-letter topic.")},
        {
            "queue": text("Only those that died on this queue."),
            "origin": text("Only those that came from this topic."),
            "since_ms": integer("Only those that died at or after this time."),
            "until_ms": integer("Only those that died at or before this time."),
            **given_bytes("key"),
            "error": text("Only those whose error has this in it."),
            "error_pattern": text("Only those whose whole error fits this pattern, with `*` and `?`."),
            "limit": integer("The most messages of this step.", 1),
            "rate": decimal("Messages a second; 0: no limit."),
            "dry_run": flag("Show what would be sent, and send nothing."),
            "all_queues": flag("All queues of the topic get them, not only the one on which each died."),
            "next": nullable(PROGRESS),
        },
    ),
    answer=object_of(
        {
            "results": array(RESULT),
            "unselected": integer(),
            "redriven_before": integer("Selected letters that were sent back before."),
            "unreadable": integer(),
            "left": integer("Offsets that are left."),
            "waiting": text("Why the step ended early: the origin has no room."),
            "next": nullable(PROGRESS),
        }
    ),
    errors=(UnknownTopic, InvalidTopic, InvalidQueue),
    command="redrive DEAD_LETTER_TOPIC",
)
async def redrive(broker: Broker, request: Request, names: Names) -> Answer:
    order = _order(Fields.of_body(request.body))
    for right in (Right.READ, *(() if order.dry_run else (Right.WRITE,))):
        broker.security.check(request.session, right, Resource.TOPIC, order.topic)
    done = await broker.redrive.step(order, request.session)
    place = done.next
    return {
        "results": [_result(each) for each in done.results],
        "unselected": done.unselected,
        "redriven_before": done.before,
        "unreadable": done.unreadable,
        "left": done.left,
        "waiting": done.waiting,
        "next": None
        if place is None
        else {
            name: {str(index): at for index, at in offsets.items()}
            for name, offsets in (("positions", place.positions), ("ends", place.ends))
        },
    }


def _order(fields: Fields) -> Order:
    order = Order(
        topic=fields.text("topic"),
        selection=Selection(
            topic=fields.text("origin"),
            queue=fields.text("queue"),
            since_ms=fields.number("since_ms", -INT64_MAX, -INT64_MAX),
            until_ms=fields.number("until_ms", INT64_MAX, -INT64_MAX),
            key=bytes_of(fields, "key"),
            error=fields.text("error"),
            error_pattern=fields.text("error_pattern"),
        ),
        limit=fields.number("limit", STEP_RESULTS, 1),
        rate=_rate(fields.take("rate", 0)),
        dry_run=fields.flag("dry_run"),
        all_queues=fields.flag("all_queues"),
        place=_place(fields.take("next")),
    )
    fields.end()
    if not order.topic:
        raise bad_request("topic is missing: name the dead-letter topic")
    return order


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise bad_request(f"rate must be a number of messages a second, or 0 for no limit (got {value!r})")
    if 0 < value < 0.1:
        raise bad_request(f"rate is {value}: the slowest is 0.1, one message in ten seconds")
    return float(value)


def _place(value: Any) -> Progress | None:
    if value is None:
        return None
    fields = Fields(value if isinstance(value, dict) else {"next": value})
    place = Progress(_offsets(fields.object("positions")), _offsets(fields.object("ends")))
    fields.end()
    if set(place.positions) != set(place.ends):
        raise bad_request("next names other partitions in its positions than in its ends. Send it unchanged.")
    return place


def _offsets(given: Mapping[str, Any]) -> dict[int, int]:
    offsets = Fields(given)
    try:
        return {int(index): offsets.number(index, 0) for index in given}
    except ValueError:
        raise bad_request("next has a partition that is not a number. Send it unchanged.") from None


def _result(result: Result) -> dict[str, Any]:
    letter = result.letter
    partition, offset = letter.parked_from or (result.partition, letter.offset)
    shown: dict[str, Any] = {"outcome": result.outcome, "partition": partition, "offset": offset}
    if result.reason:
        shown["reason"] = result.reason
    shown["origin"] = {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.origin_offset,
        "queue": letter.queue,
    }
    if result.sent_to >= 0:
        shown["sent_to"] = result.sent_to
    put_bytes(shown, "key", letter.key, TEXT_MAX)
    shown |= {
        "attempts": letter.attempts,
        "error": letter.error[:TEXT_MAX],
        "dead_at_ms": letter.dead_at,
        "redriven": letter.redriven,
    }
    return shown
