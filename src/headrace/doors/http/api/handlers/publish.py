"""Publishing over HTTP: one message or many, answered once they are durable.

Two roads lead to the same place. `POST /v1/topics/{topic}/messages` takes JSON. `POST /topics/{topic}`
is the short one: the body is the value, whatever it is, and what else belongs to a message stands in the query or in
request headers; with three content types the body holds messages rather than being one (lines of JSON, and
CloudEvents, alone or many).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from headrace.broker.broker import Broker
from headrace.broker.deduplication.ids import HEADER, ID_BYTES_MAX
from headrace.broker.publish import Headers, Message, Place
from headrace.broker.security import Operation as Right
from headrace.broker.security import Session
from headrace.doors.http.api import cloudevents
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.message_fields import (
    MESSAGE_BODY,
    MESSAGES_MAX,
    bytes_of,
    check_count,
    headers_of,
    value_of,
)
from headrace.doors.http.api.operations import Operation, Refusal, text_query
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.rights import on_topic
from headrace.doors.http.api.schemas import (
    Shape,
    anything,
    array,
    decimal,
    either,
    flag,
    integer,
    nullable,
    object_of,
    text,
)
from headrace.doors.http.api.times import DELAY_HELP, TIME_HELP, due_of
from headrace.doors.http.server.messages import HttpError, Request
from headrace.errors import (
    BatchTooLarge,
    InvalidDelay,
    InvalidRecords,
    InvalidTopic,
    TopicFull,
    UnknownPartition,
    UnknownTopic,
)

DEDUPLICATION_ID = HEADER.decode()
PARTITION_MAX = (1 << 31) - 1
LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
# What curl calls a body whose type is not given to it.
UNTYPED = "application/x-www-form-urlencoded"
CONTENT_TYPE = "content-type"
# A request's headers that are the message's own, too: a trace goes on in the message.
PASSED_ON = ("traceparent", "tracestate")
PARAMETERS: Mapping[str, str] = {
    "key": "The key.",
    "partition": "The partition; by default as the key says.",
    "delay": DELAY_HELP,
    "deliver_at": TIME_HELP,
    "dedup_id": f"A deduplication id, of 1 to {ID_BYTES_MAX} bytes.",
}
OPTIONS = tuple(PARAMETERS)
OPTION_PREFIX = "headrace-"
HEADER_PREFIX = "headrace-header-"
HEADER_PARAMETER = "header."


REFUSALS = (UnknownTopic, InvalidTopic, InvalidRecords, BatchTooLarge, TopicFull, Refusal(413, "TooManyMessages"))
STORED: Mapping[str, Shape] = {
    "partition": integer(),
    "offset": nullable(integer("Null while the message is delayed.")),
    "duplicate": flag("Its deduplication id was there before: nothing was stored, and the place is the first one's."),
}
DELAYED: Mapping[str, Shape] = {"deliver_at": integer(), "timer": text("The id that cancels it.")}
PUBLISHED = either(
    object_of({"topic": text(), **STORED}, DELAYED, "One message."),
    object_of({"topic": text(), "messages": array(object_of(STORED, DELAYED))}, doc="Several."),
)
MESSAGE: Mapping[str, Shape] = {
    **MESSAGE_BODY,
    "value_json": anything("The value, as any JSON."),
    "partition": integer("-1: as the key says.", -1, PARTITION_MAX),
    "delay": nullable(either(text(DELAY_HELP), decimal(DELAY_HELP))),
    "deliver_at": nullable(either(text(TIME_HELP), integer(TIME_HELP))),
    "dedup_id": nullable(text(f"1 to {ID_BYTES_MAX} bytes.")),
}
PUBLISHED_DOC = "Answers once all of them are durable; stores all or none. docs/http.md has the details."


@Operation(
    "POST",
    "/v1/topics/{topic}/messages",
    "Publishes messages.",
    rights=on_topic(Right.WRITE),
    doc=PUBLISHED_DOC,
    body=object_of({}, {**MESSAGE, "messages": array(object_of({}, MESSAGE), "Several.", MESSAGES_MAX)}),
    answer=PUBLISHED,
    errors=REFUSALS,
    command="produce TOPIC",
    is_large=True,
)
async def publish_json(broker: Broker, request: Request, names: Names) -> Answer:
    now = broker.runtime.clock.now_ms()
    fields = Fields.of_body(request.body)
    given = fields.take("messages")
    id = request.headers.get(DEDUPLICATION_ID)
    if given is None:
        message = _message(fields, now, None if id is None else id.encode("latin-1"))
        return {"topic": names["topic"], **(await store(broker, request.session, names["topic"], [message]))[0]}
    fields.end()
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        raise bad_request('messages is a list of objects, one at least, as in [{"value": "one"}, {"value": "two"}]')
    check_count(len(given))
    if id is not None:
        raise bad_request("a deduplication id in a header is for one message; give each of several its own dedup_id")
    messages = [_message(Fields(each), now) for each in given]
    return {"topic": names["topic"], "messages": await store(broker, request.session, names["topic"], messages)}


@Operation(
    "POST",
    "/topics/{topic}",
    "Publishes the body.",
    rights=on_topic(Right.WRITE),
    doc=f"{PUBLISHED_DOC} With the types of CloudEvents and of lines of JSON the body holds messages. "
    f"What is a parameter may be a request header, too: `{OPTION_PREFIX}` and its name.",
    query=(
        *(text_query(name, doc) for name, doc in PARAMETERS.items()),
        text_query(f"{HEADER_PARAMETER}NAME", "A header of the message, of that name."),
        text_query("dedup", "`event`: a CloudEvent's source and id are its deduplication id."),
    ),
    body=text("The value, or messages."),
    body_type="*/*",
    answer=PUBLISHED,
    errors=(*REFUSALS, Refusal(415, "UnknownFormat")),
    command="produce TOPIC",
    is_large=True,
)
async def publish_body(broker: Broker, request: Request, names: Names) -> Answer:
    topic = names["topic"]
    now = broker.runtime.clock.now_ms()
    options = Options(request)
    session, kind = request.session, request.media_type
    if kind in LINES:
        options.refuse_all("a request of lines: each line has its own")
        return {"topic": topic, "messages": await store(broker, session, topic, _lines(request.body, now))}
    if kind == cloudevents.BATCH:
        options.refuse("dedup_id", "a batch of events: dedup=event takes each event's own source and id")
        events = cloudevents.several(request.body)
        messages = [options.event(each, now) for each in events]
        return {"topic": topic, "messages": await store(broker, session, topic, messages)}
    if kind.startswith(cloudevents.KIND) and kind != cloudevents.STRUCTURED:
        raise HttpError(
            415, "UnknownFormat", f"{kind} is a form of CloudEvents that is not known here; JSON is: +json, -batch+json"
        )
    if kind == cloudevents.STRUCTURED:
        message = options.event(cloudevents.one(request.body), now)
    elif cloudevents.VERSION in request.headers:
        message = options.event(cloudevents.of_request(request), now)
    else:
        options.refuse("dedup", "what is not a CloudEvent: give a dedup_id")
        message = options.message(_typed(request), request.body, None, now)
    return {"topic": topic, **(await store(broker, session, topic, [message]))[0]}


async def store(broker: Broker, session: Session, name: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Store all messages or none, in one append, and return once they are durable: what to answer for each. Raises a
    HeadraceError or HttpError."""
    try:
        return [_describe(place) for place in await broker.publisher.publish(session, name, messages)]
    except (InvalidDelay, UnknownPartition) as error:
        raise bad_request(str(error)) from None


def _describe(place: Place) -> dict[str, Any]:
    # What waits in the timer has no offset yet.
    offset = place.offset if place.offset >= 0 else None
    described = {"partition": place.partition, "offset": offset, "duplicate": place.is_duplicate}
    return described | ({"deliver_at": place.due_ms, "timer": place.timer} if place.timer else {})


def _message(fields: Fields, now_ms: int, id: bytes | None = None) -> Message:
    """A message of the JSON shape."""
    key = bytes_of(fields, "key")
    value = value_of(fields)
    headers = headers_of(fields)
    partition = fields.number("partition", -1, -1, PARTITION_MAX)
    given_id = fields.take("dedup_id")
    due_ms = due_of(fields.take("delay"), fields.take("deliver_at"), now_ms)
    fields.end()
    if key is None and value is None:
        raise bad_request("a message needs a value (value, value_json or value_base64), or a key at least")
    if given_id is not None:
        if not isinstance(given_id, str):
            raise bad_request(f"dedup_id must be a text (got {given_id!r})")
        id = given_id.encode("utf-8", "surrogatepass")
    return Message(key, value, with_id(headers, id), partition, due_ms)


def with_id(headers: Headers, id: bytes | None) -> Headers:
    """The headers of a message that was given a deduplication id."""
    if id is None:
        return headers
    if not 1 <= len(id) <= ID_BYTES_MAX:
        raise bad_request(f"dedup_id is a text of 1 to {ID_BYTES_MAX} bytes")
    if any(name == DEDUPLICATION_ID for name, _ in headers):
        raise bad_request(f"dedup_id and the header {DEDUPLICATION_ID} are both given. Give one of them.")
    return [*headers, (DEDUPLICATION_ID, id)]


def _lines(body: bytes, now_ms: int) -> list[Message]:
    messages: list[Message] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip():
            continue
        check_count(len(messages) + 1)
        try:
            given = json.loads(line)
            if not isinstance(given, dict):
                raise bad_request("it is not an object")
            messages.append(_message(Fields(given), now_ms))
        except (ValueError, RecursionError) as error:
            raise bad_request(f"line {number} is not JSON: {error}") from None
        except HttpError as error:
            raise bad_request(f"line {number}: {error}") from None
    if not messages:
        raise bad_request('there is no line; one is a message, as in {"key": "42", "value": "one tea"}')
    return messages


def _typed(request: Request) -> Headers:
    """The body's type, where the client gave one on purpose."""
    kind = request.headers.get(CONTENT_TYPE, "")
    return [(CONTENT_TYPE, kind.encode("latin-1"))] if kind and kind.lower() != UNTYPED else []


class Options:
    """What a request gives for its message besides the value: in its query, or in its headers."""

    def __init__(self, request: Request) -> None:
        self._given: dict[str, str] = {}
        self._headers: Headers = []
        # Byte for byte: a key need not be UTF-8.
        for name, value in parse_qsl(request.query, keep_blank_values=True, encoding="latin-1"):
            if name.startswith(HEADER_PARAMETER):
                self._add_header(_text("a header's name", name.removeprefix(HEADER_PARAMETER)), value)
            elif name not in (*OPTIONS, "dedup"):
                known = ", ".join((*OPTIONS, "dedup", f"{HEADER_PARAMETER}NAME"))
                raise bad_request(f"there is no parameter {name!r}. Known parameters: {known}")
            else:
                self._put(name, value)
        for name, value in request.headers.items():
            option = name.removeprefix(OPTION_PREFIX).replace("-", "_")
            if name.startswith(HEADER_PREFIX):
                self._add_header(name.removeprefix(HEADER_PREFIX), value)
            elif name in PASSED_ON and all(each != name for each, _ in self._headers):
                self._add_header(name, value)
            elif name.startswith(OPTION_PREFIX):
                if option not in OPTIONS:
                    known = ", ".join(OPTION_PREFIX + each.replace("_", "-") for each in OPTIONS)
                    raise bad_request(f"there is no header {name}. Known headers: {known}, {HEADER_PREFIX}NAME")
                self._put(option, value)

    def _put(self, name: str, value: str) -> None:
        if name in self._given:
            raise bad_request(f"{name} is given twice: once is enough, in the query or in a header")
        self._given[name] = value

    def _add_header(self, name: str, value: str) -> None:
        if not name:
            raise bad_request("a header needs a name")
        self._headers.append((name, value.encode("latin-1")))

    def refuse(self, name: str, why: str) -> None:
        if name in self._given:
            raise bad_request(f"{name} does not apply to {why}")

    def refuse_all(self, why: str) -> None:
        """Refuse whatever is given, but for what every request may carry."""
        for name in [*self._given, *(name for name, _ in self._headers if name not in PASSED_ON)]:
            raise bad_request(f"{name} does not apply to {why}")

    def message(
        self, headers: Headers, value: bytes, key: bytes | None, now_ms: int, id: bytes | None = None
    ) -> Message:
        """The message of a request. Its own key and headers give way to those of the options."""
        given = self._given
        text = {name: _text(name, given[name]) for name in ("delay", "deliver_at") if name in given}
        partition = Fields(given).number("partition", 0, 0, PARTITION_MAX) if "partition" in given else -1
        due_ms = due_of(text.get("delay"), text.get("deliver_at"), now_ms)
        if "key" in given:
            key = given["key"].encode("latin-1")
        if "dedup_id" in given:
            id = given["dedup_id"].encode("latin-1")
        own = {name for name, _ in self._headers}
        kept = [(name, content) for name, content in headers if name not in own]
        return Message(key, value, with_id(kept + self._headers, id), partition, due_ms)

    def event(self, event: cloudevents.Event, now_ms: int) -> Message:
        """The message of a CloudEvent."""
        id = None
        if "dedup" in self._given:
            if self._given["dedup"] != "event":
                raise bad_request(f"dedup must be `event`: the event's source and id (got {self._given['dedup']!r})")
            self.refuse("dedup_id", "dedup=event, which takes the event's own source and id")
            id = event.identity
        return self.message(event.headers, event.data, event.key, now_ms, id)


def _text(name: str, value: str) -> str:
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise bad_request(f"{name} is {value!r}, which is not UTF-8") from None
