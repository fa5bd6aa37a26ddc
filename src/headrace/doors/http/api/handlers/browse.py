"""Messages of a topic for people: pages of them, what comes, one whole, and its value as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from headrace.broker.broker import Broker
from headrace.broker.browse import JSON_MAX, Conditions, Mask, Range, View, mask_of, parse
from headrace.broker.search.search import Place
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.message_fields import MESSAGE_FIELDS, bytes_of, put_bytes
from headrace.doors.http.api.operations import Operation, Query, limit_query, text_query
from headrace.doors.http.api.responses import Answer, Names, Page
from headrace.doors.http.api.rights import on_topic
from headrace.doors.http.api.schemas import Named, anything, array, flag, integer, nullable, object_of, text
from headrace.doors.http.api.times import TIME_HELP, time_ms
from headrace.doors.http.server.messages import HttpError, Request, Response
from headrace.errors import InvalidSearch, PartitionOffline, UnknownTopic
from headrace.log.interface import Partition, Topic

LIMIT_DEFAULT = 50
LIMIT_MAX = 500
VALUE_DEFAULT = 4_096
VALUE_MAX = 1_048_576
# Partitions of a page: a reader holds a part of each.
PARTITIONS_MAX = 100
WAIT_DEFAULT_MS = 10_000
WAIT_MAX_MS = 30_000
# Messages that a tail may be behind: of more, it leaves the oldest out.
TAIL_RECORDS = 5_000
FORMS = ("auto", "text", "json", "base64", "hex")
FORWARDS, BACKWARDS = "f", "b"


MESSAGE = Named(
    "Message",
    object_of(
        {
            "id": text("TOPIC/PARTITION/OFFSET."),
            "topic": text(),
            "partition": integer(),
            "offset": integer(),
            "timestamp": integer(),
            "size": integer("Bytes of key and value."),
        },
        {
            **MESSAGE_FIELDS,
            "value_json": anything("The value, where it is JSON and that is asked for."),
            "value_hex": text(),
            "whole": text("Where the whole value is, if it is cut."),
            "masked": flag("Fields are hidden."),
        },
    ),
)
FILTERS = (
    text_query("key", "Equal."),
    text_query("key_base64", "`key` where it is not UTF-8."),
    text_query("key_contains", ""),
    text_query("value_contains", ""),
    text_query("header", "NAME, or NAME=VALUE."),
    text_query("where", 'An expression, as in `value.customer.id = 42 and header.kind != "refund"`.'),
)
SHOWN = (
    Query("value_max", integer("Bytes of each value that are shown.", 0, VALUE_MAX, VALUE_DEFAULT)),
    Query("form", text("Of values.", FORMS)),
    Query("unmask", {"type": "boolean", "description": "Show what the topic masks: takes ALTER_CONFIGS on it."}),
)
PARTITIONS = text_query("partition", f"One or several, with commas; all of a topic with {PARTITIONS_MAX} at most.")
ONE_PATH = "/v1/topics/{topic}/partitions/{partition}/messages/{offset}"
ERRORS = (UnknownTopic, InvalidSearch, PartitionOffline)


@Operation(
    "GET",
    "/v1/topics/{topic}/messages",
    "Shows messages of a topic in the order of their times, filtered.",
    rights=on_topic(Right.READ),
    query=(
        PARTITIONS,
        text_query("from", f"`earliest`, `latest`, an offset, `end-N` (the last N of each partition), or {TIME_HELP}."),
        text_query("until", f"Not younger: {TIME_HELP}."),
        Query("newest", {"type": "boolean", "description": "The newest first.", "default": False}),
        text_query("after", "Where an earlier answer ended: its `next`, unchanged."),
        limit_query(LIMIT_DEFAULT, LIMIT_MAX),
        *FILTERS,
        *SHOWN,
    ),
    reads_messages=True,
    answer=object_of(
        {
            "messages": array(MESSAGE),
            "next": nullable(text("Where to go on; null once all was looked at.")),
            "tail": text("A tail's `cursor` that goes on behind what was shown; with `newest`, behind all."),
            "looked": integer("Messages that were looked at for this answer."),
        }
    ),
    errors=ERRORS,
    command="topic messages TOPIC",
)
async def browse_messages(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    chosen, begin, until = fields.text("partition"), fields.text("from"), fields.take("until")
    newest, after = fields.switch("newest"), fields.text("after")
    limit = fields.number("limit", LIMIT_DEFAULT, 1, LIMIT_MAX)
    until_ms = None if until is None else time_ms("until", until)
    conditions = _conditions(fields, until_ms)
    view = Shown(fields)
    fields.end()
    topic = broker.topics.existing(names["topic"])
    mask = view.mask(broker, request, topic)
    partitions = await _partitions(topic, chosen)
    ranges = {each.index: await _range(each, begin, until_ms) for each in partitions}
    sign = BACKWARDS if newest else FORWARDS
    for index, offset in _cursor(after, sign, topic).items():
        if index in ranges:
            first, end = ranges[index]
            ranges[index] = Range(first, min(offset, end)) if newest else Range(max(offset, first), end)
    ends = {each.index: each.last_stable for each in partitions}
    found = await broker.browser.page(topic, ranges, limit, conditions, mask, newest=newest)
    page = Page()
    for each in found.views:
        if not page.add(view.message(topic, each)):
            page.add(view.bare(topic, each))
        await page.pause()
    return page.response(
        "messages",
        {
            "next": None if found.done else _write_cursor(sign, found.place),
            "tail": _write_cursor(FORWARDS, ends if newest else found.place),
            "looked": found.looked,
        },
    )


@Operation(
    "GET",
    "/v1/topics/{topic}/tail",
    "Waits for messages that come, filtered. A client that is too slow is told how many it has missed.",
    rights=on_topic(Right.READ),
    query=(
        PARTITIONS,
        text_query("cursor", "An earlier answer's `next`; what comes from now on without it."),
        Query("wait_ms", integer("How long to wait for the first.", 0, WAIT_MAX_MS, WAIT_DEFAULT_MS)),
        limit_query(LIMIT_DEFAULT, LIMIT_MAX),
        *FILTERS,
        *SHOWN,
    ),
    reads_messages=True,
    answer=object_of(
        {
            "messages": array(MESSAGE),
            "next": text("The `cursor` to go on with."),
            "skipped": integer("Messages that were left out, because too many had come."),
            "looked": integer(),
        }
    ),
    errors=ERRORS,
    command="topic tail TOPIC",
)
async def tail_messages(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    chosen, cursor = fields.text("partition"), fields.text("cursor")
    wait_ms = fields.number("wait_ms", WAIT_DEFAULT_MS, 0, WAIT_MAX_MS)
    limit = fields.number("limit", LIMIT_DEFAULT, 1, LIMIT_MAX)
    conditions = _conditions(fields, None)
    view = Shown(fields)
    fields.end()
    topic = broker.topics.existing(names["topic"])
    mask = view.mask(broker, request, topic)
    partitions = await _partitions(topic, chosen)
    known = _cursor(cursor, FORWARDS, topic)
    place = {each.index: known.get(each.index, each.last_stable) for each in partitions}
    await broker.browser.wait(partitions, place, wait_ms / 1_000)
    share = max(TAIL_RECORDS // max(len(partitions), 1), 1)
    ranges, skipped = {}, 0
    for each in partitions:
        first = max(place[each.index], each.start)
        kept = max(first, each.last_stable - share)
        skipped += kept - first
        ranges[each.index] = Range(kept, each.last_stable)
    found = await broker.browser.page(topic, ranges, limit, conditions, mask)
    page = Page()
    for shown in found.views:
        if not page.add(view.message(topic, shown)):
            page.add(view.bare(topic, shown))
        await page.pause()
    rest = {"next": _write_cursor(FORWARDS, found.place), "skipped": skipped, "looked": found.looked}
    return page.response("messages", rest)


@Operation(
    "GET",
    ONE_PATH,
    "Shows one message, whole.",
    rights=on_topic(Right.READ),
    query=SHOWN[1:],
    reads_messages=True,
    answer=MESSAGE,
    errors=(UnknownTopic, PartitionOffline),
    command="topic message TOPIC PARTITION OFFSET",
)
async def show_message(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    view = Shown(fields, whole=True)
    fields.end()
    topic = broker.topics.existing(names["topic"])
    mask = view.mask(broker, request, topic)
    found = await _at(broker, topic, names)
    if mask is not None:
        mask.apply(found)
    return view.message(topic, found)


@Operation(
    "GET",
    ONE_PATH + "/value",
    "Gives the value of a message as it is. Where the topic masks fields it takes ALTER_CONFIGS, too.",
    rights=on_topic(Right.READ),
    reads_messages=True,
    answer=text("The bytes."),
    answer_type="application/octet-stream",
    errors=(UnknownTopic, PartitionOffline),
    command="topic message TOPIC PARTITION OFFSET",
)
async def download_value(broker: Broker, request: Request, names: Names) -> Answer:
    topic = broker.topics.existing(names["topic"])
    if topic.config.get("mask"):
        broker.security.check(request.session, Right.ALTER_CONFIGS, Resource.TOPIC, topic.name)
    found = await _at(broker, topic, names)
    name = f"{topic.name}-{found.partition}-{found.offset}"
    disposition = ("Content-Disposition", f'attachment; filename="{name}"')
    return Response(found.value or b"", "application/octet-stream", headers=(disposition,))


async def _at(broker: Broker, topic: Topic, names: Names) -> View:
    numbers = [names["partition"], names["offset"]]
    if all(each.isdecimal() and len(each) < 19 for each in numbers):
        partition, offset = map(int, numbers)
        record = await broker.search.at(topic, Place(partition, offset))
        if record is not None:
            return View(partition, record)
    raise HttpError(404, "UnknownMessage", f"'{topic.name}' has no message at {numbers[0]}/{numbers[1]}")


# --- what a request asks for ------------------------------------------------------------------------------------------


class Shown:
    """How messages are shown."""

    def __init__(self, fields: Fields, *, whole: bool = False) -> None:
        self._value_max = (1 << 62) if whole else fields.number("value_max", VALUE_DEFAULT, 0, VALUE_MAX)
        self._form = fields.text("form", "auto")
        self._unmask = fields.switch("unmask")
        if self._form not in FORMS:
            raise bad_request(f"form must be one of {', '.join(FORMS)} (got {self._form!r})")

    def mask(self, broker: Broker, request: Request, topic: Topic) -> Mask | None:
        """What is hidden from this reader. Raises NotAuthorized."""
        mask = mask_of(topic.config.get("mask", ""))
        if mask is not None and self._unmask:
            broker.security.check(request.session, Right.ALTER_CONFIGS, Resource.TOPIC, topic.name)
            return None
        return mask

    def message(self, topic: Topic, view: View) -> dict[str, Any]:
        """A message in an answer."""
        shown = _head(topic, view)
        put_bytes(shown, "key", view.key, self._value_max)
        self._put_value(shown, view.value)
        if view.headers:
            shown["headers"] = [{"name": name} for name, _ in view.headers]
            for header, (_, content) in zip(shown["headers"], view.headers, strict=True):
                put_bytes(header, "value", content, self._value_max)
        if "value_bytes" in shown:
            shown["whole"] = _whole(topic, view)
        return shown

    def bare(self, topic: Topic, view: View) -> dict[str, Any]:
        """One that is too large to be shown."""
        shown = _head(topic, view)
        for name, content in (("key", view.key), ("value", view.value)):
            shown[name] = None
            shown[name + "_bytes"] = None if content is None else len(content)
        return {**shown, "whole": _whole(topic, view)}

    def _put_value(self, shown: dict[str, Any], value: bytes | None) -> None:
        if value is None or self._form in ("auto", "text"):
            put_bytes(shown, "value", value, self._value_max)
            return
        cut = value[: self._value_max]
        if self._form == "json" and len(value) <= min(JSON_MAX, self._value_max):
            try:
                shown["value_json"] = json.loads(value)
            except (ValueError, RecursionError):
                put_bytes(shown, "value", value, self._value_max)
            return
        if self._form == "json":
            put_bytes(shown, "value", value, self._value_max)
            return
        if len(cut) < len(value):
            shown["value_bytes"] = len(value)
        if self._form == "hex":
            shown["value_hex"] = cut.hex()
        else:
            shown["value_base64"] = _base64(cut)


def _base64(content: bytes) -> str:
    from base64 import b64encode

    return b64encode(content).decode()


def _head(topic: Topic, view: View) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": f"{topic.name}/{view.partition}/{view.offset}",
        "topic": topic.name,
        "partition": view.partition,
        "offset": view.offset,
        "timestamp": view.timestamp,
        "size": view.size,
    }
    if view.hidden:
        shown["masked"] = True
    return shown


def _whole(topic: Topic, view: View) -> str:
    return f"/v1/topics/{quote(topic.name, safe='')}/partitions/{view.partition}/messages/{view.offset}"


def _conditions(fields: Fields, until_ms: int | None) -> Conditions:
    key = bytes_of(fields, "key")
    header = fields.text("header")
    name, equals, value = header.partition("=")
    where = fields.text("where")
    return Conditions(
        key=key,
        key_contains=fields.text("key_contains").encode("utf-8", "surrogatepass"),
        value_contains=fields.text("value_contains").encode("utf-8", "surrogatepass"),
        header=(name, value.encode("utf-8", "surrogatepass") if equals else None) if header else None,
        until_ms=until_ms,
        where=parse(where) if where else None,
    )


async def _partitions(topic: Topic, chosen: str) -> list[Partition]:
    """Those that are wanted, warm; what is offline only where it is named. Raises PartitionOffline."""
    numbers = chosen.split(",") if chosen else []
    for each in numbers:
        if not each.isdecimal() or len(each) > 9 or int(each) >= len(topic.partitions):
            raise bad_request(f"partition names {each!r}: '{topic.name}' has 0 to {len(topic.partitions) - 1}")
    wanted = [topic.partitions[int(each)] for each in dict.fromkeys(numbers)] if numbers else list(topic.partitions)
    if len(wanted) > PARTITIONS_MAX:
        raise bad_request(
            f"'{topic.name}' has {len(topic.partitions)} partitions, and {PARTITIONS_MAX} are looked at together: "
            "name some (partition)"
        )
    found = []
    for partition in wanted:
        try:
            await partition.load()
        except PartitionOffline:
            if numbers:
                raise
            continue
        found.append(partition)
    return found


async def _range(partition: Partition, begin: str, until_ms: int | None) -> Range:
    start, end = partition.start, partition.last_stable
    if until_ms is not None:
        behind = (await partition.offset_at(until_ms + 1)).offset
        # Times may be out of order: what is behind that is not younger in any case for the condition to say.
        end = min(behind, end) if behind >= 0 else end
    if begin in ("", "earliest"):
        first = start
    elif begin == "latest":
        first = partition.last_stable
    elif begin.startswith("end-") and begin[4:].isdecimal() and len(begin) < 22:
        first = partition.last_stable - int(begin[4:])
    elif begin.isdecimal() and len(begin) < 13:
        first = int(begin)
    else:
        found = (await partition.offset_at(time_ms("from", begin.removeprefix("ms:")))).offset
        first = partition.last_stable if found < 0 else found
    return Range(max(first, start), end)


def _cursor(given: str, sign: str, topic: Topic) -> Mapping[int, int]:
    """Where an earlier answer ended."""
    if not given:
        return {}
    found: dict[int, int] = {}
    kind, _, places = given.partition(".")
    for each in places.split(",") if places else ():
        index, _, offset = each.partition(":")
        if kind != sign or not (index.isdecimal() and offset.isdecimal() and len(each) < 40):
            raise bad_request(f"the place {given[:80]!r} does not belong to this list. Send `next` unchanged.")
        found[int(index)] = int(offset)
    if kind != sign or len(found) > PARTITIONS_MAX:
        raise bad_request(f"the place {given[:80]!r} does not belong to this list. Send `next` unchanged.")
    return found


def _write_cursor(sign: str, place: Mapping[int, int]) -> str:
    return f"{sign}." + ",".join(f"{index}:{offset}" for index, offset in place.items())
