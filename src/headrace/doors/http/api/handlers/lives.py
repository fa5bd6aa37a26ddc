"""Messages of all topics over HTTP: found by what they have, and the life of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.browse import mask_of
from headrace.broker.internal import is_internal
from headrace.broker.lives.records import Place as LifePlace
from headrace.broker.lives.records import TracedRecord, place_of
from headrace.broker.lives.source import BrokerSource
from headrace.broker.lives.trace import Wanted, trace
from headrace.broker.lives.tracer import Lives, Step
from headrace.broker.search.query import EVER, NEVER, Query
from headrace.broker.search.search import Match, Place
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.security.rights import Open
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.handlers.search import LIMIT_DEFAULT, LIMIT_MAX, TERM_QUERY, terms_of, time_of
from headrace.doors.http.api.message_fields import MESSAGE_FIELDS, put_bytes
from headrace.doors.http.api.operations import Operation, after_query, limit_query, text_query
from headrace.doors.http.api.operations import Query as Parameter
from headrace.doors.http.api.responses import PAGE_BYTES, Answer, Names
from headrace.doors.http.api.responses import Page as Written
from headrace.doors.http.api.schemas import Named, array, decimal, flag, integer, nullable, object_of, text
from headrace.doors.http.api.times import TIME_HELP
from headrace.doors.http.server.messages import Request
from headrace.errors import InvalidSearch, TooManySearches, UnknownTopic
from headrace.format.records import Record
from headrace.log.interface import Topic

VALUE_MAX = 4_096
READABLE = Open("looks into the topics that the client may read, and leaves out the rest")
AROUND_DEFAULT_MS, AROUND_MAX_MS = 3_600_000, 30 * 86_400_000
TOPICS_MAX = 100
# Of a life: what happened more often than that is cut, the oldest stay.
STEPS_MAX = 2_000

MESSAGE = Named(
    "MessageOfTopic",
    object_of(
        {
            "id": text("TOPIC/PARTITION/OFFSET."),
            "topic": text(),
            "partition": integer(),
            "offset": integer(),
            "timestamp": integer(),
        },
        {**MESSAGE_FIELDS, "trace": text("The id of its trace.")},
    ),
)
VALUE_QUERY = Parameter("value_max", integer("Bytes of each key and value that are shown.", 0, 1 << 20, VALUE_MAX))


@Operation(
    "GET",
    "/v1/search",
    "Finds messages in all topics by what they have.",
    rights=READABLE,
    query=(
        *TERM_QUERY,
        text_query("trace", "The id of a trace: 32 hex digits of `traceparent`."),
        text_query("topics", "Only in topics with such names: `*` and `?` stand for others."),
        text_query("since", TIME_HELP),
        text_query("until", TIME_HELP),
        limit_query(LIMIT_DEFAULT, LIMIT_MAX),
        after_query(),
        VALUE_QUERY,
    ),
    reads_messages=True,
    answer=object_of(
        {
            "messages": array(MESSAGE),
            "next": nullable(text("Where to go on; null once all was searched.")),
            "topics": integer("Topics that this answer looked into."),
            "scanned_bytes": integer("What was read for want of an index."),
        }
    ),
    errors=(InvalidSearch, TooManySearches),
    command="search --all",
)
async def search_everywhere(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    wanted, trace_id = terms_of(fields), fields.text("trace")
    since, until = time_of(fields, "since", EVER), time_of(fields, "until", NEVER)
    pattern = fields.text("topics")
    limit = fields.number("limit", LIMIT_DEFAULT, 1, LIMIT_MAX)
    after = _place(fields.text("after"))
    value_max = fields.number("value_max", VALUE_MAX, 0, 1 << 20)
    fields.end()
    if not wanted and not trace_id:
        raise bad_request("nothing is searched for: give key, unique_key, tag, header or trace")
    query = Query(tuple(wanted), since, until, trace_id.encode())
    topics = [
        broker.log.topics[name]
        for name in sorted(broker.log.topics)
        if not is_internal(name) and (not pattern or fnmatchcase(name, pattern)) and _may_read(broker, request, name)
    ]
    found = await broker.search.everywhere(topics, query, limit, PAGE_BYTES, after)
    page, behind = Written(), found.next
    for topic, match in found.found:
        shown = _message(topic, match, value_max)
        if not page.add(shown):
            behind = topic.name, Place(match.partition, match.record[0])
            break
        await page.pause()
    rest = {
        "next": None if behind is None else f"{behind[0]}/{behind[1].partition}/{behind[1].offset}",
        "topics": found.topics,
        "scanned_bytes": found.scanned_bytes,
    }
    return page.response("messages", rest)


def _may_read(broker: Broker, request: Request, topic: str) -> bool:
    return Right.READ in broker.security.operations(request.session, Resource.TOPIC, topic)


def _place(given: str) -> tuple[str, Place] | None:
    """Where an earlier page ended."""
    if not given:
        return None
    place = place_of(given)
    if place is None:
        raise bad_request(f"after must be an earlier answer's `next`, unchanged (got {given[:80]!r})")
    return place.topic, Place(place.partition, place.offset)


def _message(topic: Topic, match: Match, value_max: int) -> dict[str, Any]:
    offset, timestamp, *_ = match.record
    shown: dict[str, Any] = {
        "id": f"{topic.name}/{match.partition}/{offset}",
        "topic": topic.name,
        "partition": match.partition,
        "offset": offset,
        "timestamp": timestamp,
    }
    mask = mask_of(topic.config.get("mask", ""))
    record = match.record if mask is None else mask.record(match.partition, match.record)
    _put(shown, record, value_max)
    return shown


def _put(shown: dict[str, Any], record: Record, value_max: int) -> None:
    _, _, key, value, headers = record
    put_bytes(shown, "key", key, value_max)
    put_bytes(shown, "value", value, value_max)
    if headers:
        shown["headers"] = [{"name": name} for name, _ in headers]
        for header, (_, content) in zip(shown["headers"], headers, strict=True):
            put_bytes(header, "value", content, value_max)


# --- the life of a message --------------------------------------------------------------------------------------------


STEP = object_of(
    {
        "t": integer("When, in milliseconds."),
        "after_ms": integer("After the first."),
        "message": text("To which message: TOPIC/PARTITION/OFFSET."),
        "what": text("published, delivered, finished, requeued, timed-out, released, dead, put aside, sent back, ..."),
    },
    {
        "who": text("The queue or the group."),
        "consumer": text(),
        "attempt": integer(),
        "delay_ms": integer("After which it is delivered again."),
        "error": text(),
        "at": text("Where it was put: a dead letter, or a retry."),
    },
)
READER = object_of(
    {
        "message": text(),
        "kind": text(choices=("queue", "group")),
        "name": text(),
        "state": text("In words."),
        "share": nullable(decimal("Of a queue: the share of messages whose events it keeps.")),
        "kept": nullable(flag("Whether this message is of those.")),
        "note": text(),
    }
)


@Operation(
    "GET",
    "/v1/life",
    "Tells the life of a message and of all messages of its trace: published, delivered to whom, settled or given "
    "back, dead, sent back.",
    rights=READABLE,
    query=(
        text_query("id", "TOPIC/PARTITION/OFFSET, RocketMQ's unique id, or the id of a trace.", required=True),
        text_query("topics", f"Look for messages of the trace in these: names with commas, at most {TOPICS_MAX}."),
        text_query("since", TIME_HELP),
        text_query("until", TIME_HELP),
        Parameter(
            "around_ms",
            integer("So long before and after the message they are looked for.", 0, AROUND_MAX_MS, AROUND_DEFAULT_MS),
        ),
        limit_query(LIMIT_DEFAULT, LIMIT_MAX),
        VALUE_QUERY,
    ),
    reads_messages=True,
    answer=object_of(
        {
            "id": text(),
            "trace": nullable(text("The id of the trace.")),
            "messages": array(MESSAGE),
            "steps": array(STEP, "In the order of their times."),
            "readers": array(READER, "How far queues and groups are with each message."),
            "notes": array(text(), "What is not known, and why."),
            "searched": nullable(
                object_of({"topics": array(text(), "Empty: all."), "since_ms": integer(), "until_ms": integer()})
            ),
        }
    ),
    errors=(InvalidSearch, TooManySearches, UnknownTopic),
    command="trace ID",
    doc="What deliveries are known of follows from the setting `deliveries` of a queue. Each step of the search takes "
    "`search_ms` at most; what was not reached then is said in `notes`.",
)
async def show_life(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    id = fields.text("id")
    topics = [each for each in fields.text("topics").split(",") if each]
    since, until = time_of(fields, "since", EVER), time_of(fields, "until", NEVER)
    around = fields.number("around_ms", AROUND_DEFAULT_MS, 0, AROUND_MAX_MS)
    limit = fields.number("limit", LIMIT_DEFAULT, 1, LIMIT_MAX)
    value_max = fields.number("value_max", VALUE_MAX, 0, 1 << 20)
    fields.end()
    if len(topics) > TOPICS_MAX:
        raise bad_request(f"topics has {len(topics)} names: {TOPICS_MAX} are the most")
    place = place_of(id)
    if place is not None:
        broker.security.check(request.session, Right.READ, Resource.TOPIC, place.topic)
    wanted = Wanted(id, topics, None if since == EVER else since, None if until == NEVER else until, around, limit)
    source = BrokerSource(broker, request.session, broker.config.search_ms / 1000)
    async with broker.search.turn(limit, PAGE_BYTES):
        lives = await trace(source, wanted, broker.runtime.clock.now_ms())
    return await _answer(broker, id, lives, source.notes, value_max)


async def _answer(broker: Broker, id: str, lives: Lives, notes: list[str], value_max: int) -> Answer:
    page = Written()
    left_out = 0
    for place, record in sorted(lives.messages.items()):
        left_out += not page.add(_traced(broker, place, record, value_max))
        await page.pause()
    notes = [*lives.notes, *notes]
    if left_out:
        notes.append(f"{left_out} messages have no room in the answer: give a smaller value_max")
    if len(lives.steps) > STEPS_MAX:
        notes.append(f"{len(lives.steps) - STEPS_MAX} later steps are left out")
    rest: Mapping[str, Any] = {
        "id": id,
        "trace": lives.trace or None,
        "steps": [_step(each, lives.began) for each in lives.steps[:STEPS_MAX]],
        "readers": [{**asdict(each), "message": str(each.message)} for each in lives.readers[:STEPS_MAX]],
        "notes": notes,
        "searched": None if lives.searched is None else asdict(lives.searched),
    }
    return page.response("messages", rest)


def _traced(broker: Broker, place: LifePlace, record: TracedRecord, value_max: int) -> dict[str, Any]:
    headers: list[tuple[str, bytes | None]] = list(record.headers.items())
    match = Match(place.partition, (place.offset, record.timestamp, record.key, record.value, headers))
    shown = _message(broker.topics.existing(place.topic), match, value_max)
    return {**shown, "trace": record.trace} if record.trace else shown


def _step(step: Step, began: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"t": step.t, "after_ms": step.t - began, "message": str(step.message), "what": step.what}
    for name in ("who", "consumer", "attempt", "error"):
        if value := getattr(step, name):
            shown[name] = value
    if step.delay_ms is not None:
        shown["delay_ms"] = step.delay_ms
    if step.at is not None:
        shown["at"] = str(step.at)
    return shown
