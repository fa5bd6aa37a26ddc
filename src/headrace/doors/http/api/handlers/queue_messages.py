"""Single messages of a queue over HTTP: those in one state, and what an operator does with them."""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.browse import mask_of
from headrace.broker.dead_letters import parked_from
from headrace.broker.queues.intervention import Act, intervene
from headrace.broker.queues.listing import STATES, Listed, list_messages
from headrace.broker.queues.parking import PARKING
from headrace.broker.security import Operation as Right
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.handlers.queues import QUEUE_PATH, UNKNOWN, open_queue, position_after
from headrace.doors.http.api.message_fields import MESSAGE_FIELDS, put_bytes
from headrace.doors.http.api.operations import Operation, Query, after_query, limit_query
from headrace.doors.http.api.responses import Answer, Names, Page
from headrace.doors.http.api.rights import on_queue, on_topic
from headrace.doors.http.api.schemas import Named, array, flag, integer, nullable, object_of, text
from headrace.doors.http.server.messages import Request
from headrace.errors import StorageFailed
from headrace.format.headers import PARKED_FROM

PATH = QUEUE_PATH + "/messages"
LIMIT_DEFAULT = 50
LIMIT_MAX = 500
VALUE_MAX = 4_096
SELECTED_MAX = 200
DELAY_MAX_MS = 30 * 86_400_000
ERROR_CHARACTERS = 1_024
# The most of all values that one listing reads.
READ_BYTES = 8_388_608
DONE, REFUSED = "done", "refused"

MESSAGE = Named(
    "MessageOfQueue",
    object_of(
        {
            "partition": integer(),
            "offset": integer(),
            "timestamp": integer(),
            "state": text(choices=tuple(STATES)),
            "attempts": integer("Deliveries so far."),
        },
        {
            **MESSAGE_FIELDS,
            "consumer": text("Who has it; `lease` where it belongs to no connection."),
            "deadline_ms": integer("Until when; then it is ready again."),
            "due_ms": integer("When it is ready again."),
            "error": text("Why it came back last, as its consumer gave it."),
            "stuck": flag("It is dead, and cannot be moved to the dead-letter topic: `move_error` of the queue."),
            "parked": integer("Its offset in the queue's parking, by which it is settled."),
        },
    ),
)
PLACES = array(
    object_of(
        {},
        {
            "partition": integer(least=0),
            "offset": integer(least=0),
            "parked": integer("In place of both, of a message that has it.", 0),
        },
    ),
    "",
    SELECTED_MAX,
)
RESULTS = object_of(
    {
        "results": array(
            object_of(
                {"partition": integer(), "offset": integer(), "outcome": text(choices=(DONE, REFUSED))},
                {"reason": text("Why not."), "parked": integer()},
            )
        )
    }
)


@Operation(
    "GET",
    PATH,
    "Shows the messages of a queue in one state. Nothing changes.",
    rights=(*on_topic(Right.READ), *on_queue(Right.READ)),
    query=(
        Query("state", {"type": "string", "enum": list(STATES), "default": "ready"}),
        limit_query(LIMIT_DEFAULT, LIMIT_MAX),
        after_query(),
        Query("value_max", integer("Bytes of each key and value that are shown.", 0, 1 << 20, VALUE_MAX)),
    ),
    reads_messages=True,
    answer=object_of({"messages": array(MESSAGE), "next": nullable(text("Where to go on."))}),
    errors=UNKNOWN,
    command="queue messages TOPIC QUEUE",
    doc="`dead` are those on their way to the dead-letter topic: what has arrived there is a message of that topic.",
)
async def list_queue_messages(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    state = fields.text("state", "ready")
    limit = fields.number("limit", LIMIT_DEFAULT, 1, LIMIT_MAX)
    begin = position_after("after", fields.text("after"))
    value_max = fields.number("value_max", VALUE_MAX, 0, 1 << 20)
    fields.end()
    if state not in STATES:
        raise bad_request(f"state is {state!r}: it can be {', '.join(STATES)}")
    queue = await open_queue(broker, names)
    messages, behind = await list_messages(queue, state, limit, begin, READ_BYTES)
    page = Page()
    mask = mask_of(queue.topic.config.get("mask", ""))
    for each in messages:
        message = each.message
        if mask is not None:
            record = (message.offset, 0, message.key, message.value, message.headers)
            _, _, key, value, headers = mask.record(message.lane, record)
            each = each._replace(message=message._replace(key=key, value=value, headers=headers))
        if not page.add(_describe(each, state, value_max)):
            behind = (message.lane, message.offset)
            break
        await page.pause()
    return page.response("messages", {"next": None if behind is None else f"{behind[0]}:{behind[1]}"})


def _describe(listed: Listed, state: str, value_max: int) -> dict[str, Any]:
    message = listed.message
    shown: dict[str, Any] = {"partition": message.lane, "offset": message.offset}
    if message.lane == PARKING:
        moved = {name: content or b"" for name, content in message.headers}.get(PARKED_FROM, b"")
        origin = parked_from(moved.decode("ascii", "replace")) or (message.lane, message.offset)
        shown = {"partition": origin[0], "offset": origin[1], "parked": message.offset}
    shown |= {"timestamp": message.timestamp, "state": state, "attempts": message.attempts}
    for name in ("consumer", "deadline_ms", "due_ms", "error"):
        if value := getattr(listed, name):
            shown[name] = value
    if listed.is_stuck:
        shown["stuck"] = True
    put_bytes(shown, "key", message.key, value_max)
    put_bytes(shown, "value", message.value, value_max)
    headers = [(name, content) for name, content in message.headers if name != PARKED_FROM]
    if headers:
        shown["headers"] = [{"name": name} for name, _ in headers]
        for header, (_, content) in zip(shown["headers"], headers, strict=True):
            put_bytes(header, "value", content, value_max)
    return shown


@Operation(
    "POST",
    PATH + "/settle",
    "Settles single messages of a queue, also those in flight. The topic keeps them.",
    rights=on_queue(Right.ALTER),
    body=object_of({"messages": PLACES}),
    answer=RESULTS,
    errors=(*UNKNOWN, StorageFailed),
    command="queue settle TOPIC QUEUE MESSAGE...",
)
async def settle_messages(broker: Broker, request: Request, names: Names) -> Answer:
    return await _intervene(broker, request, names, Act.SETTLE)


@Operation(
    "POST",
    PATH + "/requeue",
    "Lets single messages of a queue be delivered again, also those in flight or without attempts left: at once, or "
    "after a delay.",
    rights=on_queue(Right.ALTER),
    body=object_of({"messages": PLACES}, {"delay_ms": integer("", 0, DELAY_MAX_MS)}),
    answer=RESULTS,
    errors=(*UNKNOWN, StorageFailed),
    command="queue requeue TOPIC QUEUE MESSAGE...",
)
async def requeue_messages(broker: Broker, request: Request, names: Names) -> Answer:
    return await _intervene(broker, request, names, Act.REQUEUE)


@Operation(
    "POST",
    PATH + "/reject",
    "Sends single messages of a queue to its dead-letter topic, also those in flight or without attempts left.",
    rights=on_queue(Right.ALTER),
    body=object_of({"messages": PLACES}, {"error": text("What the dead letters give as the reason.")}),
    answer=RESULTS,
    errors=(*UNKNOWN, StorageFailed),
    command="queue reject TOPIC QUEUE MESSAGE...",
)
async def reject_messages(broker: Broker, request: Request, names: Names) -> Answer:
    return await _intervene(broker, request, names, Act.REJECT)


async def _intervene(broker: Broker, request: Request, names: Names, act: Act) -> Answer:
    fields = Fields.of_body(request.body)
    given = fields.take("messages", [])
    delay_ms = fields.number("delay_ms", 0, 0, DELAY_MAX_MS) if act is Act.REQUEUE else 0
    error = fields.text("error") if act is Act.REJECT else ""
    fields.end()
    if not isinstance(given, list) or not 0 < len(given) <= SELECTED_MAX:
        raise bad_request(f"messages is a list of 1 to {SELECTED_MAX}, each with its partition and offset")
    if len(error) > ERROR_CHARACTERS:
        raise bad_request(f"error has {len(error)} characters: it can have {ERROR_CHARACTERS}")
    places = list(dict.fromkeys(_place(each) for each in given))
    queue = await open_queue(broker, names)
    outcomes = await intervene(broker.queues, queue, places, act, delay_ms, error, request.session)
    results = []
    for (lane, offset), outcome in zip(places, outcomes, strict=True):
        shown: dict[str, Any] = {"partition": lane, "offset": offset}
        if lane == PARKING:
            shown["parked"] = offset
        shown["outcome"] = DONE if outcome.is_done else REFUSED
        if outcome.reason:
            shown["reason"] = outcome.reason
        results.append(shown)
    return {"results": results}


def _place(given: Any) -> tuple[int, int]:
    """The lane and offset of a message."""
    if not isinstance(given, dict):
        raise bad_request(f"messages has {given!r} where an object with partition and offset is wanted")
    fields = Fields(given)
    parked, partition, offset = (fields.number(name, -1, -1) for name in ("parked", "partition", "offset"))
    fields.end()
    if parked >= 0:
        return PARKING, parked
    if partition < 0 or offset < 0:
        raise bad_request(f"messages has {given!r}, where the partition or the offset is missing")
    return partition, offset
