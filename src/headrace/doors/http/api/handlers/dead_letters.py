"""Dead letters over HTTP: where there are any, by error and origin, one by one, and sent back as they are or edited.
`redrive.py` sends back all that fit a selection."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from headrace.broker import dead_letters
from headrace.broker.broker import Broker
from headrace.broker.browse import Browsed, Conditions, Range, View, mask_of
from headrace.broker.dead_letters import DeadLetter, Selection
from headrace.broker.redrive import FAILED, QUEUE, REDRIVEN, SKIPPED, WOULD, Edit, Order, Progress, Result
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.steps import in_steps
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.message_fields import MESSAGE_BODY, MESSAGE_FIELDS, bytes_of, headers_of, put_bytes
from headrace.doors.http.api.operations import Operation, Query, after_query, limit_query, text_query
from headrace.doors.http.api.responses import Answer, Names, Page
from headrace.doors.http.api.rights import LISTED, on_topic
from headrace.doors.http.api.schemas import Named, Schema, array, flag, integer, nullable, object_of, text
from headrace.doors.http.api.times import TIME_HELP, time_ms
from headrace.doors.http.server.messages import Request
from headrace.errors import InvalidQueue, InvalidTopic, PartitionOffline, UnknownTopic
from headrace.log.interface import Topic

PATH = "/v1/dead-letters/{topic}"
LIMIT_DEFAULT = 50
LIMIT_MAX = 500
VALUE_MAX = 4_096
TEXT_MAX = 1_000
# Letters that are counted for one answer, and kinds of them.
COUNTED_MAX = 5_000
KINDS_MAX = 500
SELECTED_MAX = 200
INT64_MAX = (1 << 63) - 1


ORIGIN = object_of({"topic": text(), "partition": integer(), "offset": integer(), "queue": text()})
LETTER = Named(
    "DeadLetter",
    object_of(
        {
            "partition": integer(),
            "offset": integer("In the dead-letter topic."),
            "timestamp": integer(),
            "origin": ORIGIN,
            "attempts": integer(),
            "error": text(),
            "dead_at_ms": integer(),
            "redriven": integer("How often it was sent back before it died again."),
            "sent_back": flag("It was sent back, and waits here for nothing."),
        },
        MESSAGE_FIELDS,
    ),
)
SELECTION = (
    text_query("origin", "The topic that they come from."),
    text_query("queue", "The queue that they died on."),
    text_query("error", "A part of the error."),
    text_query("error_pattern", "A pattern of the whole error, with `*` and `?`."),
    text_query("since", f"Dead since: {TIME_HELP}."),
    text_query("until", f"Dead before: {TIME_HELP}."),
)


@Operation(
    "GET",
    "/v1/dead-letters",
    "Lists the dead-letter topics that there are, with the queues whose messages die there.",
    rights=LISTED,
    answer=object_of(
        {
            "topics": array(
                object_of(
                    {
                        "topic": text(),
                        "messages": integer("Kept."),
                        "waiting": integer("Of these, those that were not sent back."),
                        "queues": array(object_of({"topic": text(), "queue": text()})),
                    }
                )
            )
        }
    ),
    command="dead list",
)
async def list_dead_letter_topics(broker: Broker, request: Request, names: Names) -> Answer:
    queues: dict[str, list[dict[str, str]]] = {}
    async for queue in in_steps(broker.queues.all()):
        if broker.topics.get(queue.dead_letter_topic) is not None:
            queues.setdefault(queue.dead_letter_topic, []).append({"topic": queue.topic.name, "queue": queue.name})
    shown = []
    for name in sorted(broker.security.visible(request.session, Resource.TOPIC, queues)):
        topic = broker.topics.get(name)
        if topic is None:
            continue
        kept = 0
        for partition in topic.partitions:
            try:
                await partition.load()
            except PartitionOffline:
                continue
            kept += partition.last_stable - partition.start
        sent = broker.queues.get(name, QUEUE)
        if sent is not None:
            await broker.queues.open(sent)
        waiting = kept if sent is None else sent.unsettled
        shown.append({"topic": name, "messages": kept, "waiting": waiting, "queues": queues[name]})
    return {"topics": shown}


@Operation(
    "GET",
    PATH,
    "Counts the newest dead letters by error and origin.",
    rights=on_topic(Right.READ),
    query=SELECTION,
    answer=object_of(
        {
            "kinds": array(
                object_of(
                    {
                        "error": text(),
                        "topic": text("The origin."),
                        "queue": text(),
                        "count": integer(),
                        "first_ms": integer(),
                        "last_ms": integer(),
                    }
                ),
                "The most frequent first.",
                KINDS_MAX,
            ),
            "counted": integer(),
            "all_counted": flag("There are no older ones."),
        }
    ),
    errors=(UnknownTopic, PartitionOffline),
    command="dead count TOPIC",
)
async def count_dead_letters(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    selection = _selection(fields)
    fields.end()
    topic = broker.topics.existing(names["topic"])
    found, letters = await _letters(broker, topic, selection, COUNTED_MAX, {})
    counts: Counter[tuple[str, str, str]] = Counter()
    times: dict[tuple[str, str, str], tuple[int, int]] = {}
    for letter in letters:
        kind = (letter.error[:TEXT_MAX], letter.topic, letter.queue)
        if kind not in counts and len(counts) >= KINDS_MAX:
            kind = ("(others)", "", "")
        counts[kind] += 1
        first, last = times.get(kind, (letter.dead_at, letter.dead_at))
        times[kind] = min(first, letter.dead_at), max(last, letter.dead_at)
    return {
        "kinds": [
            dict(zip(("error", "topic", "queue"), kind, strict=True))
            | {"count": count, "first_ms": times[kind][0], "last_ms": times[kind][1]}
            for kind, count in counts.most_common(KINDS_MAX)
        ],
        "counted": len(letters),
        "all_counted": found.done,
    }


@Operation(
    "GET",
    PATH + "/messages",
    "Shows selected dead letters, the newest first.",
    rights=on_topic(Right.READ),
    query=(
        *SELECTION,
        limit_query(LIMIT_DEFAULT, LIMIT_MAX),
        after_query(),
        Query("value_max", integer("Bytes of each value that are shown.", 0, 1 << 20)),
    ),
    reads_messages=True,
    answer=object_of({"messages": array(LETTER), "next": nullable(text("Where to go on.")), "looked": integer()}),
    errors=(UnknownTopic, PartitionOffline),
    command="dead show TOPIC",
)
async def show_dead_letters(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    selection = _selection(fields)
    limit = fields.number("limit", LIMIT_DEFAULT, 1, LIMIT_MAX)
    value_max = fields.number("value_max", VALUE_MAX, 0, 1 << 20)
    after = _place(fields.text("after"))
    fields.end()
    topic = broker.topics.existing(names["topic"])
    sent = broker.queues.get(topic.name, QUEUE)
    if sent is not None:
        await broker.queues.open(sent)
    found, letters = await _letters(broker, topic, selection, limit, after)
    page = Page()
    for view, letter in zip(found.views, letters, strict=True):
        sent_back = sent is not None and view.partition in sent.lanes and sent.settled(view.partition, view.offset)
        page.add(_letter(view, letter, sent_back, value_max))
        await page.pause()
    place = ",".join(f"{index}:{offset}" for index, offset in found.place.items())
    return page.response("messages", {"next": None if found.done else place, "looked": found.looked})


def _letter(view: View, letter: DeadLetter, sent_back: bool, value_max: int) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "partition": view.partition,
        "offset": view.offset,
        "timestamp": view.timestamp,
        "origin": {
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.origin_offset,
            "queue": letter.queue,
        },
        "attempts": letter.attempts,
        "error": letter.error[:TEXT_MAX],
        "dead_at_ms": letter.dead_at,
        "redriven": letter.redriven,
        "sent_back": sent_back,
    }
    put_bytes(shown, "key", letter.key, value_max)
    put_bytes(shown, "value", letter.value, value_max)
    if letter.headers:
        shown["headers"] = [{"name": name} for name, _ in letter.headers]
        for header, (_, content) in zip(shown["headers"], letter.headers, strict=True):
            put_bytes(header, "value", content, value_max)
    return shown


async def _letters(
    broker: Broker, topic: Topic, selection: Selection, limit: int, after: Mapping[int, int]
) -> tuple[Browsed, list[DeadLetter]]:
    """The newest letters that are selected, from a place on."""
    ranges = {}
    for partition in topic.partitions:
        await partition.load()
        end = min(after.get(partition.index, partition.last_stable), partition.last_stable)
        ranges[partition.index] = Range(partition.start, max(end, partition.start))
    mask = mask_of(topic.config.get("mask", ""))
    conditions = Conditions(where=lambda view: selection.selects(_read(view)))
    found = await broker.browser.page(topic, ranges, limit, conditions, mask, newest=True)
    return found, [_read(view) for view in found.views]


def _read(view: View) -> DeadLetter:
    return dead_letters.read((view.offset, view.timestamp, view.key, view.value, list(view.headers)))


def _selection(fields: Fields) -> Selection:
    since, until = fields.take("since"), fields.take("until")
    return Selection(
        topic=fields.text("origin"),
        queue=fields.text("queue"),
        error=fields.text("error"),
        error_pattern=fields.text("error_pattern"),
        since_ms=-INT64_MAX if since is None else time_ms("since", since),
        until_ms=INT64_MAX if until is None else time_ms("until", until),
    )


def _place(given: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for each in given.split(",") if given else ():
        index, _, offset = each.partition(":")
        if not (index.isdecimal() and offset.isdecimal() and len(each) < 40):
            raise bad_request(f"after must be an earlier answer's `next`, unchanged (got {given[:80]!r})")
        found[int(index)] = int(offset)
    return found


# --- sending back -----------------------------------------------------------------------------------------------------

EDITED: Schema = object_of(
    {"partition": integer(least=0), "offset": integer(least=0)}, {"edit": object_of({}, MESSAGE_BODY)}
)


OUTCOME = object_of(
    {"outcome": text(choices=(REDRIVEN, WOULD, SKIPPED, FAILED)), "partition": integer(), "offset": integer()},
    {"reason": text("Why not."), "sent_to": integer("Its new offset.")},
)


@Operation(
    "POST",
    PATH + "/redrive",
    "Sends single dead letters back to where they came from, as they are or edited; what became of each.",
    rights=on_topic(Right.READ, Right.WRITE),
    doc="It takes WRITE on the topics that they come from, too. Each is sent back once, however often it is asked.",
    body=object_of(
        {"messages": array(EDITED, "", SELECTED_MAX)},
        {"all_queues": flag("Every queue of the origin sees them again."), "dry_run": flag()},
    ),
    answer=object_of({"results": array(OUTCOME), "left": integer("Messages that there was no time for: ask again.")}),
    errors=(UnknownTopic, InvalidTopic, InvalidQueue),
    command="redrive DEAD_LETTER_TOPIC",
)
async def redrive_selected(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    given, all_queues, dry_run = fields.take("messages", []), fields.flag("all_queues"), fields.flag("dry_run")
    fields.end()
    if not isinstance(given, list) or not 0 < len(given) <= SELECTED_MAX:
        raise bad_request(f"messages is a list of 1 to {SELECTED_MAX}, each with its partition and offset")
    edits = dict(_edit(each) for each in given)
    broker.topics.existing(names["topic"])
    results: list[dict[str, Any]] = []
    clock = asyncio.get_running_loop().time
    until = clock() + broker.config.search_ms / 1000
    for done, (partition, offset) in enumerate(edits):
        if done and clock() > until:
            break
        place = Progress({partition: offset}, {partition: offset + 1})
        edit = edits[partition, offset]
        order = Order(
            names["topic"],
            limit=1,
            dry_run=dry_run,
            all_queues=all_queues,
            place=place,
            edits={(partition, offset): edit},
        )
        step = await broker.redrive.step(order, request.session)
        if step.results:
            results += [_outcome(each) for each in step.results]
        else:
            why = "it was sent back before" if step.before else step.waiting or "there is no message"
            results.append({"outcome": "skipped", "partition": partition, "offset": offset, "reason": why})
    return {"results": results, "left": len(edits) - len(results)}


def _outcome(result: Result) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "outcome": result.outcome,
        "partition": result.partition,
        "offset": result.letter.offset,
    }
    if result.reason:
        shown["reason"] = result.reason
    if result.sent_to >= 0:
        shown["sent_to"] = result.sent_to
    return shown


def _edit(given: Any) -> tuple[tuple[int, int], Edit]:
    if not isinstance(given, dict):
        raise bad_request(f"each of messages must be an object with partition and offset (got {given!r})")
    fields = Fields(given)
    place = fields.number("partition", 0, 0, (1 << 31) - 1), fields.number("offset", 0)
    changes = Fields(fields.object("edit"))
    fields.end()
    has_headers = changes.take("headers") is not None
    edit = Edit(bytes_of(changes, "key"), bytes_of(changes, "value"), headers_of(changes) if has_headers else None)
    changes.end()
    return place, edit
