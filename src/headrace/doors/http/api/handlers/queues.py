"""Queues over HTTP: list, show, make, change, pause, empty, delete, and look at what is next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.browse import mask_of
from headrace.broker.dead_letters import parked_from
from headrace.broker.deliveries import TOPIC as DELIVERIES
from headrace.broker.figures.columns import QUEUES as QUEUES_KIND
from headrace.broker.figures.columns import place
from headrace.broker.internal import is_internal
from headrace.broker.queues import Message, Queue, QueueSettings, check_settings
from headrace.broker.queues.parking import PARKING
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.security.rights import queue_name
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.listing import (
    Listing,
    Visible,
    listing_answer,
    listing_of,
    listing_query,
    page_of,
)
from headrace.doors.http.api.message_fields import MESSAGE_FIELDS, put_message
from headrace.doors.http.api.operations import Operation, Refusal, limit_query, text_query
from headrace.doors.http.api.responses import PAGE_BYTES, Answer, Names, Page, json_response
from headrace.doors.http.api.rights import LISTED, on_queue, on_topic
from headrace.doors.http.api.schemas import (
    Named,
    Shape,
    anything,
    array,
    either,
    flag,
    integer,
    mapping,
    nullable,
    object_of,
    text,
)
from headrace.doors.http.server.messages import HttpError, Request
from headrace.errors import (
    InvalidQueue,
    InvalidQueueSetting,
    InvalidTopic,
    PartitionOffline,
    UnknownQueue,
    UnknownTopic,
)
from headrace.format.headers import PARKED_FROM
from headrace.log.interface import EARLIEST, LATEST

QUEUE_PATH = "/v1/topics/{topic}/queues/{queue}"
SORTS = ("topic", "queue", "depth", "in_flight", "deferred", "dead", "consumers", "age_ms")
# Of one answer.
QUEUES_MAX = 10_000
PEEK_DEFAULT = 10
PEEK_MAX = 1_000
SUBSCRIPTION = ("id", "label", "credit", "in_flight", "delivered", "finished", "requeued", "timed_out")


SETTINGS_DOC = "By name; docs/queues.md has them."
QUEUE_SETTINGS = mapping(anything(), SETTINGS_DOC)
POSITION = either(
    text(choices=("earliest", "latest")),
    integer("An offset, in all partitions.", 0),
    object_of({"time_ms": integer()}),
    {"type": "null"},
)
UNKNOWN = (UnknownTopic, UnknownQueue)
SUMMARY: dict[str, Shape] = {
    "topic": text(),
    "queue": text(),
    "paused": flag(),
    "depth": integer("Messages that are ready."),
    "in_flight": integer("Messages that are delivered and not settled."),
    "deferred": integer("Messages that wait for their next attempt."),
    "blocked": integer("Messages that wait for others of their key."),
    "condemned": integer("Dead messages that are being moved to the dead-letter topic."),
    "stuck": integer("Dead messages that cannot be moved there."),
    "move_error": text("Why not."),
    "consumers": integer(),
    "delivered": integer("This count and the next ones start at 0 with the broker."),
    "finished": integer(),
    "requeued": integer(),
    "timed_out": integer(),
    "dead": integer(),
    "lost": integer("Messages that retention took before they were settled."),
    "poisoned": integer("Messages whose batch cannot be read."),
    "lookahead_hits": integer("Times that the look-ahead past blocked keys was exhausted."),
    "age_ms": nullable(integer("Of the oldest message that is ready.")),
}
QUEUE_SUMMARY = Named("QueueSummary", object_of(SUMMARY))
QUEUES = listing_answer("queues", QUEUE_SUMMARY)
QUEUE = Named(
    "Queue",
    object_of(
        {
            **SUMMARY,
            "dead_letter_topic": text(),
            "settings": mapping(anything(), SETTINGS_DOC),
            "partitions": array(
                object_of(
                    {
                        "partition": integer(),
                        "settled_below": integer("All before this offset is settled."),
                        "end": integer("The high watermark."),
                    }
                )
            ),
            "parked": integer("Unsettled messages that were moved to the queue's parking topic."),
            "subscriptions": array(
                object_of({"id": integer(), "label": text(), **{name: integer() for name in SUBSCRIPTION[2:]}})
            ),
        }
    ),
)
QUEUED_MESSAGE = Named(
    "QueuedMessage",
    object_of(
        {"partition": integer(), "offset": integer(), "timestamp": integer(), "attempts": integer()},
        {**MESSAGE_FIELDS, "cut": flag("The message is too large to be shown.")},
    ),
)


@Operation(
    "GET",
    "/v1/queues",
    "Lists queues of all topics: searched by topic and name, sorted, and in pages.",
    rights=LISTED,
    query=listing_query(SORTS, limit_query(QUEUES_MAX, QUEUES_MAX)),
    answer=listing_answer("queues", QUEUE_SUMMARY),
    command="queue list",
    doc="Sorted by figures of the last look.",
)
async def list_queues(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    listing = listing_of(fields, SORTS, QUEUES_MAX, QUEUES_MAX)
    fields.end()
    return await _list(broker, request, broker.queues.all(), listing)


@Operation(
    "GET",
    "/v1/topics/{topic}/queues",
    "Lists the queues of a topic.",
    rights=on_topic(Right.DESCRIBE),
    answer=QUEUES,
    errors=(UnknownTopic,),
    command="queue list TOPIC",
)
async def list_queues_of_topic(broker: Broker, request: Request, names: Names) -> Answer:
    topic = broker.topics.existing(names["topic"])
    listing = Listing("", SORTS[0], descending=False, offset=0, limit=QUEUES_MAX)
    return await _list(broker, request, broker.queues.of(topic.name).values(), listing)


@Operation(
    "GET",
    QUEUE_PATH,
    "Shows a queue with its settings, partitions and subscriptions.",
    rights=on_queue(Right.DESCRIBE),
    answer=QUEUE,
    errors=UNKNOWN,
    command="queue show TOPIC QUEUE",
)
async def show_queue(broker: Broker, request: Request, names: Names) -> Answer:
    return await describe(await open_queue(broker, names))


@Operation(
    "PUT",
    QUEUE_PATH,
    "Creates a queue.",
    rights=(*on_topic(Right.DESCRIBE), *on_queue(Right.CREATE)),
    body=object_of({}, {"from": POSITION, "settings": QUEUE_SETTINGS}),
    answer=QUEUE,
    status=201,
    errors=(UnknownTopic, InvalidTopic, InvalidQueue, InvalidQueueSetting, Refusal(409, "QueueExists")),
    command="queue create TOPIC QUEUE",
)
async def create_queue(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    begin = fields.take("from")
    settings = fields.object("settings")
    fields.end()
    start, start_ms = _position(begin)
    # Judged before anything is made, by what a new queue has.
    check_settings(QueueSettings(timeout_ms=broker.config.queue_timeout_ms).changed(settings))
    topic = broker.topics.existing(names["topic"])
    name = names["queue"]
    if is_internal(topic.name) and topic.name != DELIVERIES:
        raise InvalidTopic(f"the topic {topic.name!r} is the broker's own, and has no queues")
    if broker.queues.get(topic.name, name) is not None:
        raise HttpError(
            409, "QueueExists", f"there is a queue {name!r} of the topic {topic.name!r} already; PATCH changes it"
        )
    queue = await broker.queues.ensure(topic, name, start, start_ms=start_ms, session=request.session)
    if settings:
        await broker.queues.configure(queue, settings, request.session)
    return json_response(await describe(queue), 201)


@Operation(
    "PATCH",
    QUEUE_PATH,
    "Changes the settings of a queue that are given. They take effect at once.",
    rights=on_queue(Right.ALTER),
    body=object_of({}, {"settings": QUEUE_SETTINGS}),
    answer=QUEUE,
    errors=(*UNKNOWN, InvalidQueueSetting),
    command="queue set TOPIC QUEUE",
)
async def change_queue(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    settings = fields.object("settings")
    fields.end()
    queue = await open_queue(broker, names)
    await broker.queues.configure(queue, settings, request.session)
    return await describe(queue)


@Operation(
    "DELETE",
    QUEUE_PATH,
    "Deletes a queue and its state. Messages stay in the topic.",
    rights=on_queue(Right.DELETE),
    answer=object_of({"topic": text(), "queue": text(), "deleted": flag()}),
    errors=UNKNOWN,
    command="queue delete TOPIC QUEUE",
)
async def delete_queue(broker: Broker, request: Request, names: Names) -> Answer:
    await broker.queues.delete(names["topic"], names["queue"], request.session)
    return {"topic": names["topic"], "queue": names["queue"], "deleted": True}


@Operation(
    "POST",
    QUEUE_PATH + "/pause",
    "Stops deliveries. Messages in flight can be settled.",
    rights=on_queue(Right.ALTER),
    answer=QUEUE,
    errors=UNKNOWN,
    command="queue pause TOPIC QUEUE",
)
async def pause_queue(broker: Broker, request: Request, names: Names) -> Answer:
    return await _pause(broker, request, names, True)


@Operation(
    "POST",
    QUEUE_PATH + "/unpause",
    "Resumes deliveries.",
    rights=on_queue(Right.ALTER),
    answer=QUEUE,
    errors=UNKNOWN,
    command="queue unpause TOPIC QUEUE",
)
async def unpause_queue(broker: Broker, request: Request, names: Names) -> Answer:
    return await _pause(broker, request, names, False)


async def _pause(broker: Broker, request: Request, names: Names, pause: bool) -> Answer:
    queue = await open_queue(broker, names)
    await broker.queues.pause(queue, pause, request.session)
    return await describe(queue)


@Operation(
    "POST",
    QUEUE_PATH + "/empty",
    "Settles all messages of a queue without delivering them. The topic keeps them.",
    rights=on_queue(Right.ALTER),
    answer=QUEUE,
    errors=UNKNOWN,
    command="queue empty TOPIC QUEUE",
)
async def empty_queue(broker: Broker, request: Request, names: Names) -> Answer:
    queue = await open_queue(broker, names)
    await broker.queues.empty(queue, request.session)
    return await describe(queue)


@Operation(
    "GET",
    QUEUE_PATH + "/peek",
    "Shows what would be delivered next. Nothing changes.",
    rights=(*on_topic(Right.READ), *on_queue(Right.READ)),
    query=(
        limit_query(PEEK_DEFAULT, PEEK_MAX),
        text_query("from", "An earlier peek's `next`, unchanged."),
    ),
    reads_messages=True,
    answer=object_of(
        {
            "messages": array(QUEUED_MESSAGE),
            "truncated": flag("There are more within `limit` than an answer can have."),
            "next": nullable(text("Where to go on.")),
        }
    ),
    errors=UNKNOWN,
    command="queue peek TOPIC QUEUE",
)
async def peek_queue(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    limit = fields.number("limit", PEEK_DEFAULT, 1, PEEK_MAX)
    begin = position_after("from", fields.text("from"))
    fields.end()
    queue = await open_queue(broker, names)
    messages, behind = await queue.peek(limit, begin, PAGE_BYTES)
    page = Page()
    mask = mask_of(queue.topic.config.get("mask", ""))
    for each in messages:
        if mask is not None:
            _, _, key, value, headers = mask.record(each.lane, (each.offset, 0, each.key, each.value, each.headers))
            each = each._replace(key=key, value=value, headers=headers)
        if not page.add(_message(each)):
            if page.items:
                behind = (each.lane, each.offset)
                break
            page.add(_cut(each))
        await page.pause()
    return page.response(
        "messages",
        {
            "truncated": behind is not None and len(page.items) < limit,
            "next": None if behind is None else f"{behind[0]}:{behind[1]}",
        },
    )


def position_after(name: str, given: str) -> tuple[int, int] | None:
    """Lane and offset where an earlier answer ended."""
    if not given:
        return None
    lane, _, offset = given.partition(":")
    try:
        return int(lane), int(offset)
    except ValueError:
        raise bad_request(f"{name} must be an earlier answer's `next`, unchanged (got {given!r})") from None


async def open_queue(broker: Broker, names: Names) -> Queue:
    """The queue, with figures that can be believed: after a start nothing is known of a topic that is not in use."""
    topic = broker.topics.existing(names["topic"])
    queue = broker.queues.get(topic.name, names["queue"])
    if queue is None:
        raise UnknownQueue(f"the topic {topic.name!r} has no queue {names['queue']!r}")
    await _open(broker, queue)
    return queue


async def _open(broker: Broker, queue: Queue) -> None:
    try:
        await broker.queues.open(queue)
    except PartitionOffline:
        # The figures of the other partitions are better than none.
        pass


async def _list(broker: Broker, request: Request, queues: Iterable[Queue], listing: Listing) -> Answer:
    """A page of queues, as far as the client may describe them."""
    if listing.sort not in ("topic", "queue"):
        await broker.figures.renew()
    found = await page_of(
        queues,
        listing,
        lambda queue: queue_name(queue.topic.name, queue.name),
        lambda queue: _value(broker, queue, listing.sort),
        Visible(broker.security, request.session, Resource.QUEUE),
    )
    page = Page()
    for queue in found.items:
        try:
            await _open(broker, queue)
        except UnknownQueue:
            continue  # deleted since
        if not page.add(await summary(queue)):
            break
        await page.pause()
    return page.response("queues", {"total": found.total, "offset": listing.offset})


def _value(broker: Broker, queue: Queue, sort: str) -> object:
    """What a queue is sorted by; an age by the time that it began at."""
    if sort in ("topic", "queue"):
        return queue.topic.name if sort == "topic" else queue.name
    row = broker.figures.rows.get(QUEUES_KIND, (queue.topic.name, queue.name))
    if row is None:
        return None
    value = row[place(QUEUES_KIND, "oldest_ms" if sort == "age_ms" else sort)]
    return -value if sort == "age_ms" and isinstance(value, int) else value


async def summary(queue: Queue) -> dict[str, Any]:
    """A queue in a list."""
    return {
        "topic": queue.topic.name,
        "queue": queue.name,
        "paused": queue.paused,
        **queue.figures()._asdict(),
        "age_ms": await queue.age_ms(),
    }


async def describe(queue: Queue) -> dict[str, Any]:
    """A queue with its settings, partitions and subscriptions."""
    return {
        **await summary(queue),
        "dead_letter_topic": queue.dead_letter_topic,
        "settings": queue.settings.as_json(),
        "partitions": [
            {"partition": lane.index, "settled_below": lane.ledger.floor, "end": lane.partition.high_watermark}
            for lane in queue.lanes.values()
            if lane.index != PARKING
        ],
        "parked": _count_parked(queue),
        "subscriptions": [{name: getattr(each, name) for name in SUBSCRIPTION} for each in queue.consumers.values()],
    }


def _count_parked(queue: Queue) -> int:
    """Messages that were moved to the queue's parking, and are unsettled."""
    lane = queue.lanes.get(PARKING)
    return lane.ledger.unsettled() if lane is not None else 0


def _message(message: Message) -> dict[str, Any]:
    partition, offset = message.lane, message.offset
    if partition == PARKING:
        # As if it had never moved.
        moved = {name: content or b"" for name, content in message.headers}.get(PARKED_FROM, b"")
        partition, offset = parked_from(moved.decode("ascii", "replace")) or (partition, offset)
    headers = [(name, content) for name, content in message.headers if name != PARKED_FROM]
    shown: dict[str, Any] = {
        "partition": partition,
        "offset": offset,
        "timestamp": message.timestamp,
        "attempts": message.attempts,
    }
    put_message(shown, message.key, message.value, headers)
    return shown


def _cut(message: Message) -> dict[str, Any]:
    """A message that is too large to be shown."""
    return {
        **_message(message._replace(key=None, value=None, headers=[])),
        "key_bytes": None if message.key is None else len(message.key),
        "value_bytes": None if message.value is None else len(message.value),
        "cut": True,
    }


def _position(given: Any) -> tuple[int | None, int | None]:
    """The offset and the time at which a new queue begins, from `earliest`, `latest`, an offset, or {"time_ms": ...};
    neither: as the broker sees fit."""
    if given is None:
        return None, None
    if given in ("earliest", "latest"):
        return EARLIEST if given == "earliest" else LATEST, None
    if isinstance(given, dict):
        fields = Fields(given)
        start_ms = fields.number("time_ms", -1)
        fields.end()
        return None, start_ms
    if type(given) is int and 0 <= given < 1 << 63:
        return given, None
    raise bad_request(f'from must be "earliest", "latest", an offset, or {{"time_ms": N}} (got {given!r})')
