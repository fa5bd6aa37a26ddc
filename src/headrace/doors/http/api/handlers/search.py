"""Messages that are searched for, over HTTP."""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.browse import mask_of
from headrace.broker.search import query as terms
from headrace.broker.search.ids import place_of
from headrace.broker.search.query import EVER, NEVER, Query, Term
from headrace.broker.search.search import Match, Page, Place, has_index
from headrace.broker.security import Operation as Right
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.message_fields import MESSAGE_FIELDS, bytes_of, put_message
from headrace.doors.http.api.operations import Operation, after_query, limit_query, text_query
from headrace.doors.http.api.responses import PAGE_BYTES, Answer, Names
from headrace.doors.http.api.responses import Page as Written
from headrace.doors.http.api.rights import on_topic
from headrace.doors.http.api.schemas import Named, array, flag, integer, nullable, object_of, text
from headrace.doors.http.api.times import TIME_HELP, time_ms
from headrace.doors.http.server.messages import Request
from headrace.errors import InvalidSearch, TooManySearches, UnknownTopic
from headrace.format.records import Record
from headrace.log.interface import Topic

LIMIT_DEFAULT = 100
LIMIT_MAX = 1_000
# What may be read for want of an index before the answer mentions it.
SCANNED_BYTES = 1 << 26


FOUND = Named(
    "FoundMessage",
    object_of(
        {"id": text(), "partition": integer(), "offset": integer(), "timestamp": integer()},
        {**MESSAGE_FIELDS, "cut": flag("The message is too large to be shown.")},
    ),
)

TERM_QUERY = (
    *(
        each
        for name, doc in (
            ("key", "The key, or a word of RocketMQ's KEYS."),
            ("unique_key", "RocketMQ's unique key."),
            ("tag", "RocketMQ's tag."),
        )
        for each in (text_query(name, doc), text_query(name + "_base64", f"`{name}` where it is not UTF-8."))
    ),
    text_query("header", "NAME=VALUE."),
)
"""The parameters that `terms_of` reads."""


@Operation(
    "GET",
    "/v1/topics/{topic}/search",
    "Finds messages by what they have.",
    rights=on_topic(Right.READ),
    query=(
        *TERM_QUERY,
        text_query("id", "TOPIC/PARTITION/OFFSET, or RocketMQ's offset id; nothing else beside it."),
        text_query("since", TIME_HELP),
        text_query("until", TIME_HELP),
        limit_query(LIMIT_DEFAULT, LIMIT_MAX),
        after_query(),
    ),
    reads_messages=True,
    answer=object_of(
        {
            "messages": array(FOUND),
            "next": nullable(text("Where to go on; null once all was searched.")),
            "searched": integer("Offsets that were searched."),
            "of": integer("Offsets that there are."),
            "scanned_bytes": integer("What was read for want of an index."),
        },
        {"hint": text()},
    ),
    errors=(UnknownTopic, InvalidSearch, TooManySearches),
    command="search TOPIC",
)
async def search(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    wanted, id = terms_of(fields), fields.text("id")
    since, until = time_of(fields, "since", EVER), time_of(fields, "until", NEVER)
    limit = fields.number("limit", LIMIT_DEFAULT, 1, LIMIT_MAX)
    after = _place(fields.text("after"))
    fields.end()
    topic = broker.topics.existing(names["topic"])
    if id:
        if wanted:
            raise bad_request("id names one message: nothing else is searched for beside it")
        await broker.rocketmq.load()
        place = place_of(id, topic, broker.rocketmq)
        if place is not None:
            record = await broker.search.at(topic, place)
            return await _answer(topic, Page([Match(place.partition, record)] if record is not None else []), None)
        # As RocketMQ's tools do: what is no offset id is a unique key.
        wanted = [terms.unique_key(id.encode("utf-8", "surrogatepass"))]
    if not wanted:
        raise bad_request("nothing is searched for: give key, unique_key, tag, header or id")
    query = Query(tuple(wanted), since, until)
    page = await broker.search.page(topic, query, limit, PAGE_BYTES, after)
    return await _answer(topic, page, None if has_index(topic, query) else query)


def terms_of(fields: Fields) -> list[Term]:
    """What messages must have."""
    found: list[Term] = []
    for name, term in (("key", terms.key), ("unique_key", terms.unique_key), ("tag", terms.tag)):
        content = bytes_of(fields, name)
        if content is not None:
            found.append(term(content))
    header = fields.text("header")
    if header:
        name, equals, value = header.partition("=")
        if not name or not equals:
            raise bad_request(f"header is {header!r}: it is NAME=VALUE")
        found.append(terms.header(name, value.encode("utf-8", "surrogatepass")))
    return found


def time_of(fields: Fields, name: str, default: int) -> int:
    """One end of the range of time."""
    given = fields.take(name)
    return default if given is None else time_ms(name, given)


def _place(given: str) -> Place | None:
    """Where an earlier page ended."""
    partition, _, offset = given.partition(":")
    if partition.isdecimal() and offset.isdecimal() and len(given) < 40:
        return Place(int(partition), int(offset))
    if given:
        raise bad_request(f"after must be an earlier answer's `next`, unchanged (got {given!r})")
    return None


async def _answer(topic: Topic, page: Page, unindexed: Query | None) -> Answer:
    written = Written()
    place = page.next
    mask = mask_of(topic.config.get("mask", ""))
    for match in page.found:
        if mask is not None:
            match = Match(match.partition, mask.record(match.partition, match.record))
        if not written.add(_message(topic, match)):
            if written.items:
                place = Place(match.partition, match.record[0])
                break
            written.add(_cut(topic, match))
        await written.pause()
    rest: dict[str, Any] = {
        "next": None if place is None else f"{place.partition}:{place.offset}",
        "searched": page.passed,
        "of": page.total,
        "scanned_bytes": page.scanned_bytes,
    }
    if unindexed is not None and (page.next is not None or page.scanned_bytes > SCANNED_BYTES):
        field = unindexed.question.wanted[0][0]
        rest["hint"] = f"the topic {topic.name} has no index of {field}, so all is read. Set its setting index."
    return written.response("messages", rest)


def _message(topic: Topic, match: Match) -> dict[str, Any]:
    offset, timestamp, key, value, headers = match.record
    shown: dict[str, Any] = {
        "id": f"{topic.name}/{match.partition}/{offset}",
        "partition": match.partition,
        "offset": offset,
        "timestamp": timestamp,
    }
    put_message(shown, key, value, headers)
    return shown


def _cut(topic: Topic, match: Match) -> dict[str, Any]:
    """A message that is too large to be shown."""
    offset, timestamp, key, value, _ = match.record
    bare: Record = (offset, timestamp, None, None, [])
    return {
        **_message(topic, Match(match.partition, bare)),
        "key_bytes": None if key is None else len(key),
        "value_bytes": None if value is None else len(value),
        "cut": True,
    }
