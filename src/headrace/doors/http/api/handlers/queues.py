"""Queues over HTTP: list, show, make, change, pause, empty, delete, and look at what is next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from headrace.broker.broker import Broker
from headrace.broker.dead_letters import PARKED_FROM, parked_from
from headrace.broker.deliveries import TOPIC as DELIVERIES
from headrace.broker.internal import is_internal
from headrace.broker.queues import Message, Queue, QueueSettings, check_settings
from headrace.broker.queues.parking import PARKING
from headrace.doors.http.api.answers import PAGE_BYTES, Fields, Page, Refused, bad, found, put_bytes
from headrace.doors.http.server.messages import Request, Response
from headrace.errors import InvalidTopic, PartitionOffline, UnknownQueue, UnknownTopic
from headrace.log.interface import EARLIEST, LATEST, Topic

PEEK_DEFAULT = 10
PEEK_MAX = 1_000

Names = Mapping[str, str]


async def listed(broker: Broker, request: Request, names: Names) -> Response:
    """GET /v1/queues"""
    Fields(request.parameters()).end()
    return found({"queues": await summaries(broker, broker.queues.all())})


async def of_topic(broker: Broker, request: Request, names: Names) -> Response:
    """GET /v1/topics/{topic}/queues"""
    Fields(request.parameters()).end()
    topic = topic_of(broker, names)
    return found({"queues": await summaries(broker, broker.queues.of(topic.name).values())})


async def shown(broker: Broker, request: Request, names: Names) -> Response:
    """GET /v1/topics/{topic}/queues/{queue}"""
    Fields(request.parameters()).end()
    return found(await whole(await opened(broker, names)))


async def created(broker: Broker, request: Request, names: Names) -> Response:
    """PUT /v1/topics/{topic}/queues/{queue}"""
    fields = Fields.of_body(request.body)
    begin = fields.take("from")
    settings = fields.object("settings")
    fields.end()
    start = _position(begin)
    # Judged before anything is made, by what a new queue has.
    check_settings(QueueSettings(timeout_ms=broker.config.queue_timeout_ms).changed(settings))
    topic = topic_of(broker, names)
    name = names["queue"]
    if is_internal(topic.name) and topic.name != DELIVERIES:
        raise InvalidTopic(f"the topic {topic.name!r} is the broker's own, and has no queues")
    if broker.queues.get(topic.name, name) is not None:
        raise Refused(
            409, "QueueExists", f"there is a queue {name!r} of the topic {topic.name!r} already; PATCH changes it"
        )
    if isinstance(start, AtTime):
        queue = await broker.queues.ensure(topic, name, start_ms=start.ms)
    else:
        queue = await broker.queues.ensure(topic, name, start)
    if settings:
        await broker.queues.configure(queue, settings)
    return found(await whole(queue), 201)


async def changed(broker: Broker, request: Request, names: Names) -> Response:
    """PATCH /v1/topics/{topic}/queues/{queue}"""
    fields = Fields.of_body(request.body)
    settings = fields.object("settings")
    fields.end()
    queue = await opened(broker, names)
    await broker.queues.configure(queue, settings)
    return found(await whole(queue))


async def deleted(broker: Broker, request: Request, names: Names) -> Response:
    """DELETE /v1/topics/{topic}/queues/{queue}"""
    await broker.queues.delete(names["topic"], names["queue"])
    return found({"topic": names["topic"], "queue": names["queue"], "deleted": True})


async def paused(broker: Broker, request: Request, names: Names) -> Response:
    """POST /v1/topics/{topic}/queues/{queue}/pause"""
    queue = await opened(broker, names)
    await broker.queues.pause(queue, True)
    return found(await whole(queue))


async def unpaused(broker: Broker, request: Request, names: Names) -> Response:
    """POST /v1/topics/{topic}/queues/{queue}/unpause"""
    queue = await opened(broker, names)
    await broker.queues.pause(queue, False)
    return found(await whole(queue))


async def emptied(broker: Broker, request: Request, names: Names) -> Response:
    """POST /v1/topics/{topic}/queues/{queue}/empty"""
    queue = await opened(broker, names)
    await broker.queues.empty(queue)
    return found(await whole(queue))


async def peeked(broker: Broker, request: Request, names: Names) -> Response:
    """GET /v1/topics/{topic}/queues/{queue}/peek?limit=&from="""
    fields = Fields(request.parameters())
    limit = fields.number("limit", PEEK_DEFAULT, 1, PEEK_MAX)
    begin = _place(fields.text("from"))
    fields.end()
    queue = await opened(broker, names)
    messages, behind = await queue.peek(limit, begin, PAGE_BYTES)
    page = Page()
    for each in messages:
        if not page.add(_message(each)):
            if page.items:
                behind = (each.lane, each.offset)
                break
            page.add(_cut(each))
        await page.pause()
    shown = len(page.items)
    return page.found(
        "messages",
        {
            "truncated": behind is not None and shown < limit,
            "next": None if behind is None else f"{behind[0]}:{behind[1]}",
        },
    )


def _place(given: str) -> tuple[int, int] | None:
    """Where an earlier peek ended."""
    if not given:
        return None
    lane, _, offset = given.partition(":")
    try:
        return int(lane), int(offset)
    except ValueError:
        raise bad(f"from is {given!r}: send `next` as it came") from None


def topic_of(broker: Broker, names: Names) -> Topic:
    topic = broker.topics.get(names["topic"])
    if topic is None:
        raise UnknownTopic(f"there is no topic {names['topic']!r}")
    return topic


async def opened(broker: Broker, names: Names) -> Queue:
    """The queue, with figures that can be believed: after a start nothing is known of a topic that nobody has used."""
    topic = topic_of(broker, names)
    queue = broker.queues.get(topic.name, names["queue"])
    if queue is None:
        raise UnknownQueue(f"the topic {topic.name!r} has no queue {names['queue']!r}")
    await _open(broker, queue)
    return queue


async def _open(broker: Broker, queue: Queue) -> None:
    try:
        await broker.queues.open(queue)
    except PartitionOffline:
        # What can be said of the other partitions is better than nothing.
        pass


async def summaries(broker: Broker, queues: Iterable[Queue]) -> list[dict[str, Any]]:
    """What is said of several queues, by topic and name."""
    said = []
    for queue in sorted(queues, key=lambda queue: (queue.topic.name, queue.name)):
        try:
            await _open(broker, queue)
        except UnknownQueue:
            continue  # deleted since
        said.append(await summary(queue))
    return said


async def summary(queue: Queue) -> dict[str, Any]:
    """What a list says of a queue."""
    return {
        "topic": queue.topic.name,
        "queue": queue.name,
        "paused": queue.paused,
        **asdict(queue.figures()),
        "age_ms": await queue.age_ms(),
    }


async def whole(queue: Queue) -> dict[str, Any]:
    """All that there is to say of a queue."""
    return {
        **await summary(queue),
        "dead_letter_topic": queue.dead_letter_topic,
        "settings": queue.settings.as_json(),
        "partitions": [
            {"partition": lane.index, "settled_below": lane.ledger.floor, "end": lane.partition.high_watermark}
            for lane in queue.lanes.values()
            if lane.index != PARKING
        ],
        "parked": _parked(queue),
        "subscriptions": [
            {
                "id": each.id,
                "label": each.label,
                "credit": each.credit,
                "in_flight": each.in_flight,
                "delivered": each.delivered,
                "finished": each.finished,
                "requeued": each.requeued,
                "timed_out": each.timed_out,
            }
            for each in queue.consumers.values()
        ],
    }


def _parked(queue: Queue) -> int:
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
    said: dict[str, Any] = {
        "partition": partition,
        "offset": offset,
        "timestamp": message.timestamp,
        "attempts": message.attempts,
    }
    put_bytes(said, "key", message.key)
    put_bytes(said, "value", message.value)
    if headers:
        said["headers"] = [_header(name, content) for name, content in headers]
    return said


def _cut(message: Message) -> dict[str, Any]:
    """A message that is too large to be shown."""
    return {
        **_message(message._replace(key=None, value=None, headers=[])),
        "key_bytes": None if message.key is None else len(message.key),
        "value_bytes": None if message.value is None else len(message.value),
        "cut": True,
    }


def _header(name: str, content: bytes | None) -> dict[str, Any]:
    said: dict[str, Any] = {"name": name}
    put_bytes(said, "value", content)
    return said


class AtTime(NamedTuple):
    """The first message at or after a moment."""

    ms: int


def _position(given: Any) -> int | AtTime | None:
    """Where a new queue begins: `earliest`, `latest`, an offset, or {"time_ms": ...}; None: as the broker sees fit."""
    if given is None:
        return None
    if given in ("earliest", "latest"):
        return EARLIEST if given == "earliest" else LATEST
    if isinstance(given, dict):
        fields = Fields(given)
        moment = AtTime(fields.number("time_ms", -1))
        fields.end()
        return moment
    if type(given) is int and 0 <= given < 1 << 63:
        return given
    raise bad(f'from is {given!r}: it can be "earliest", "latest", an offset, or {{"time_ms": MILLISECONDS}}')
