"""Topics over HTTP: list, show, make, grow, delete, and forget what is old. Their settings are in `topic_settings.py`,
their messages in `browse.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.broker import topic_config
from headrace.broker.broker import Broker
from headrace.broker.figures import KINDS
from headrace.broker.figures.columns import TOPICS
from headrace.broker.internal import check_change, is_internal
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.security.rights import Inside
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.listing import Visible, listing_answer, listing_of, listing_query, page_of
from headrace.doors.http.api.operations import Operation, Query
from headrace.doors.http.api.responses import Answer, Names, Page
from headrace.doors.http.api.rights import LISTED, on_topic
from headrace.doors.http.api.schemas import (
    Named,
    Shape,
    anything,
    array,
    decimal,
    flag,
    integer,
    mapping,
    nullable,
    object_of,
    text,
)
from headrace.doors.http.api.times import time_ms
from headrace.doors.http.server.messages import Request
from headrace.errors import (
    InvalidPartitions,
    InvalidTopic,
    InvalidTopicConfig,
    OffsetOutOfRange,
    PartitionOffline,
    TooManyPartitions,
    TopicExists,
    UnknownTopic,
)
from headrace.log.interface import Partition, Topic

TOPIC_PATH = "/v1/topics/{topic}"
SORTS = ("topic", "partitions", "offline", "messages", "bytes", "messages_in_rate", "bytes_in_rate")
# Partitions of one answer.
TRIMS_MAX = 10_000


SUMMARY: Mapping[str, Shape] = {
    "topic": text(),
    "id": text(),
    "internal": flag("The broker's own."),
    "partitions": integer(),
    "offline": integer("Partitions that cannot be read."),
    "messages": nullable(integer("Kept; null where the topic was not used since the start.")),
    "bytes": nullable(integer()),
    "messages_in": nullable(integer("All that ever came.")),
    "bytes_in": integer("Since the start."),
    "bytes_out": integer(),
    "messages_in_rate": decimal("A second, between the last two looks."),
    "bytes_in_rate": decimal(),
    "queues": integer(),
    "durability": text(),
    "cleanup_policy": text(),
    "retention_ms": integer("-1: for ever."),
}
TOPIC_SUMMARY = Named("TopicSummary", object_of(SUMMARY))
PARTITION = object_of(
    {
        "partition": integer(),
        "start": integer("The first offset that is kept."),
        "end": integer("The high watermark: readers stop before it."),
        "last_stable": integer("Where readers stop that leave open transactions out."),
        "bytes": integer(),
        "offline": nullable(text("Why it cannot be read.")),
        "epoch": integer("The leader epoch."),
        "leader": nullable(integer("The node that leads.")),
        "replicas": array(integer()),
        "isr": array(integer(), "The nodes that are in sync."),
    }
)
TOPIC = Named(
    "Topic",
    object_of(
        {
            "partition_list": array(PARTITION),
            **SUMMARY,
            "groups": array(text(), "Those that have a position in it, as far as they are known."),
            "queue_names": array(text()),
            "settings": mapping(text(), "Its own; the others are the broker's."),
            "truncated": flag("It has more partitions than an answer can have."),
        }
    ),
)
SETTINGS = mapping(text(), "By name; docs/configuration-topics.md has them.")


@Operation(
    "GET",
    "/v1/topics",
    "Lists topics: searched, sorted, and in pages.",
    rights=LISTED,
    query=(
        *listing_query(SORTS),
        Query("internal", {"type": "boolean", "description": "The broker's own topics, too.", "default": False}),
    ),
    answer=listing_answer("topics", TOPIC_SUMMARY),
    command="topic list",
)
async def list_topics(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    listing = listing_of(fields, SORTS)
    internal = fields.switch("internal")
    fields.end()
    await broker.figures.renew()
    topics = broker.topics.all
    found = await page_of(
        topics,
        listing,
        lambda name: name,
        lambda name: _value(broker, name, listing.sort),
        Visible(broker.security, request.session, Resource.TOPIC),
        None if internal else lambda name: not is_internal(name),
    )
    shown = (summarize(broker, topic) for name in found.items if (topic := topics.get(name)) is not None)
    return (await Page().fill(shown)).response("topics", {"total": found.total, "offset": listing.offset})


def _value(broker: Broker, name: str, sort: str) -> object:
    """What a topic is sorted by."""
    if sort == "topic":
        return name
    if sort.endswith("_rate"):
        return broker.figures.rates.get(name, (0.0, 0.0))[sort == "bytes_in_rate"]
    row = broker.figures.changes.get((TOPICS, name))
    return None if row is None else row[KINDS[TOPICS].values.index(sort)]


def summarize(broker: Broker, topic: Topic) -> dict[str, Any]:
    """A topic in a list, with the figures of the last look."""
    name = topic.name
    row = broker.figures.changes.get((TOPICS, name))
    known = dict(zip(KINDS[TOPICS].values, row, strict=True)) if row is not None else {}
    messages, size = broker.figures.rates.get(name, (0.0, 0.0))
    settings = topic.settings
    policies = ("compact", settings.compact), ("delete", settings.delete)
    return {
        "topic": name,
        "id": str(topic.id),
        "internal": is_internal(name),
        "partitions": len(topic.partitions),
        "offline": known.get("offline", 0),
        "messages": known.get("messages"),
        "bytes": known.get("bytes"),
        "messages_in": known.get("messages_in"),
        "bytes_in": known.get("bytes_in", 0),
        "bytes_out": known.get("bytes_out", 0),
        "messages_in_rate": round(messages, 3),
        "bytes_in_rate": round(size, 3),
        "queues": len(broker.queues.of(name)),
        "durability": settings.durability.value,
        "cleanup_policy": ",".join(policy for policy, is_on in policies if is_on),
        "retention_ms": settings.retention_ms,
    }


@Operation(
    "GET",
    TOPIC_PATH,
    "Shows a topic with its partitions.",
    rights=on_topic(Right.DESCRIBE),
    answer=TOPIC,
    errors=(UnknownTopic,),
    command="topic describe TOPIC",
)
async def show_topic(broker: Broker, request: Request, names: Names) -> Answer:
    return await describe(broker, request, broker.topics.existing(names["topic"]))


async def describe(broker: Broker, request: Request, topic: Topic, status: int = 200) -> Answer:
    """A topic with its partitions, whose figures are those of now."""
    page = Page()
    messages = size = messages_in = 0
    truncated = False
    for partition in topic.partitions:
        try:
            await partition.load()
        except PartitionOffline:
            pass
        row = _partition(broker, partition)
        truncated = not page.add(row)
        if truncated:
            break
        messages += row["end"] - row["start"]
        messages_in += row["end"]
        size += row["bytes"]
        await page.pause()
    security, session, name = broker.security, request.session, topic.name
    rest = {
        **summarize(broker, topic),
        **({} if truncated else {"messages": messages, "bytes": size, "messages_in": messages_in}),
        "groups": security.visible(session, Resource.GROUP, broker.figures.groups_of(name)),
        "queue_names": sorted(broker.queues.of(name)),
        "settings": dict(topic.config),
        "truncated": truncated,
    }
    return page.response("partition_list", rest, status)


def _partition(broker: Broker, partition: Partition) -> dict[str, Any]:
    group = broker.membership
    is_known = partition.loaded and partition.offline is None
    return {
        "partition": partition.index,
        "start": partition.start,
        "end": partition.high_watermark,
        "last_stable": partition.last_stable if is_known else partition.high_watermark,
        "bytes": broker.log.local(partition).size() if is_known else 0,
        "offline": partition.offline,
        "epoch": partition.epoch,
        "leader": group.leader,
        "replicas": list(group.replicas),
        "isr": list(group.isr),
    }


# --- making and growing -----------------------------------------------------------------------------------------------

NEW_TOPIC: Mapping[str, Shape] = {"partitions": integer("-1: as many as the broker is configured with.", -1)}


@Operation(
    "PUT",
    TOPIC_PATH,
    "Creates a topic.",
    rights=Inside("CREATE topic TOPIC, or CREATE cluster"),
    body=object_of({}, {**NEW_TOPIC, "settings": SETTINGS}),
    answer=TOPIC,
    status=201,
    errors=(TopicExists, InvalidTopic, InvalidPartitions, TooManyPartitions, InvalidTopicConfig),
    command="topic create TOPIC",
)
async def create_topic(broker: Broker, request: Request, names: Names) -> Answer:
    partitions, settings = _new_topic(request)
    name = names["topic"]
    broker.security.check_create(request.session, name)
    broker.quotas.take_mutate(request.session, broker.config.num_partitions if partitions == -1 else partitions)
    topic = await broker.topics.create(name, partitions, settings, session=request.session)
    return await describe(broker, request, topic, 201)


@Operation(
    "POST",
    TOPIC_PATH + "/check",
    "Judges a topic that is to be created. Nothing changes.",
    rights=Inside("CREATE topic TOPIC, or CREATE cluster"),
    body=object_of({}, {**NEW_TOPIC, "settings": SETTINGS}),
    answer=object_of(
        {
            "valid": flag(),
            "problems": array(
                object_of({"field": text("`name`, `partitions`, `settings` or `settings.NAME`."), "message": text()})
            ),
        }
    ),
)
async def check_topic(broker: Broker, request: Request, names: Names) -> Answer:
    partitions, settings = _new_topic(request)
    name = names["topic"]
    broker.security.check_create(request.session, name)
    problems = [
        {"field": f"settings.{key}", "message": message}
        for key, value in settings.items()
        if (message := _problem_of(key, value)) is not None
    ]
    try:
        broker.topics.check_new(name, partitions, {} if problems else settings)
    except (InvalidTopic, TopicExists) as error:
        problems.insert(0, {"field": "name", "message": str(error)})
    except InvalidPartitions as error:
        problems.insert(0, {"field": "partitions", "message": str(error)})
    except InvalidTopicConfig as error:
        problems.append({"field": "settings", "message": str(error)})
    return {"valid": not problems, "problems": problems}


def _problem_of(name: str, value: str) -> str | None:
    try:
        topic_config.clean(name, value)
    except InvalidTopicConfig as error:
        return str(error)
    return None


def _new_topic(request: Request) -> tuple[int, dict[str, str]]:
    fields = Fields.of_body(request.body)
    partitions = fields.number("partitions", -1, -1, (1 << 31) - 1)
    settings = texts_of(fields.object("settings"))
    fields.end()
    return partitions, settings


def texts_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as the broker has them: numbers and flags of JSON are texts there."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, bool):
            found[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            found[name] = str(value)
        else:
            raise bad_request(f"the setting {name} must be a text (got {value!r})")
    return found


@Operation(
    "DELETE",
    TOPIC_PATH,
    "Deletes a topic and all its messages.",
    rights=on_topic(Right.DELETE),
    answer=object_of({"topic": text(), "deleted": flag()}),
    errors=(UnknownTopic, InvalidTopic),
    command="topic delete TOPIC",
)
async def delete_topic(broker: Broker, request: Request, names: Names) -> Answer:
    broker.quotas.take_mutate(request.session, len(broker.topics.existing(names["topic"]).partitions))
    await broker.topics.delete(names["topic"], session=request.session)
    return {"topic": names["topic"], "deleted": True}


@Operation(
    "POST",
    TOPIC_PATH + "/partitions",
    "Gives a topic more partitions. Keys may go to other ones than before.",
    rights=on_topic(Right.ALTER),
    body=object_of({"count": integer("How many it shall have in all.", 1)}, {"dry_run": flag("Only judge it.")}),
    answer=object_of({"topic": text(), "partitions_before": integer(), "partitions": integer(), "dry_run": flag()}),
    errors=(UnknownTopic, InvalidTopic, InvalidPartitions, TooManyPartitions),
    command="topic config TOPIC",
)
async def grow_topic(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    count = fields.number("count", 0, 0, (1 << 31) - 1)
    dry_run = fields.flag("dry_run")
    fields.end()
    name = names["topic"]
    before = len(broker.topics.check_growth(name, count).partitions)
    if not dry_run:
        broker.quotas.take_mutate(request.session, count - before)
        await broker.topics.grow(name, count, request.session)
    return {"topic": name, "partitions_before": before, "partitions": count, "dry_run": dry_run}


# --- forgetting -------------------------------------------------------------------------------------------------------

TRIMMED = object_of(
    {
        "partition": integer(),
        "start_before": integer(),
        "start": integer("The first offset that is kept now, or would be."),
        "end": integer(),
        "deleted": integer("Offsets that are not kept any more."),
    }
)


@Operation(
    "POST",
    TOPIC_PATH + "/delete-records",
    "Deletes the oldest records of a topic: those before offsets, or before a time, or all.",
    rights=on_topic(Right.DELETE),
    body=object_of(
        {},
        {
            "before": mapping(integer("The first offset to keep; -1: none.", -1), "By partition."),
            "before_ms": anything("Records of before this time: milliseconds since 1970, or a time with its zone."),
            "all": flag(),
            "dry_run": flag("Only show what would go."),
        },
    ),
    answer=object_of({"partitions": array(TRIMMED), "dry_run": flag()}),
    errors=(UnknownTopic, InvalidTopic, OffsetOutOfRange, PartitionOffline),
    command="topic trim TOPIC",
)
async def delete_records(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    before, before_ms, every = fields.object("before"), fields.take("before_ms"), fields.flag("all")
    dry_run = fields.flag("dry_run")
    fields.end()
    if (bool(before), before_ms is not None, every).count(True) != 1:
        raise bad_request("give one of: before (offsets by partition), before_ms (a time), all (true)")
    topic = broker.topics.existing(names["topic"])
    check_change(topic.name, "trimmed")
    if topic.settings.compact and not topic.settings.delete:
        raise InvalidTopic(f"'{topic.name}' is only compacted: its records go when newer ones of their keys come")
    offsets = Fields(before)
    if before:
        wanted = {_index(topic, each): offsets.number(each, 0, -1) for each in before}
    else:
        wanted = dict.fromkeys(range(min(len(topic.partitions), TRIMS_MAX)), -1)
    until = None if before_ms is None else time_ms("before_ms", before_ms)
    shown = []
    for index, offset in wanted.items():
        shown.append(await _trim(topic.partitions[index], offset, until, dry_run))
    if not dry_run:
        gone = sum(each["deleted"] for each in shown)
        broker.audit.record_topic(request.session, "trim", topic.name, f"{gone} records deleted")
    return {"partitions": shown, "dry_run": dry_run}


def _index(topic: Topic, given: str) -> int:
    if given.isdecimal() and len(given) < 10 and int(given) < len(topic.partitions):
        return int(given)
    raise bad_request(f"before names the partition {given!r}, and '{topic.name}' has 0 to {len(topic.partitions) - 1}")


async def _trim(partition: Partition, offset: int, until_ms: int | None, dry_run: bool) -> dict[str, Any]:
    await partition.load()
    if until_ms is not None:
        found = (await partition.offset_at(until_ms)).offset
        offset = found if found >= 0 else -1
    before = partition.start
    offset = partition.high_watermark if offset == -1 else offset
    if offset > partition.high_watermark:
        raise OffsetOutOfRange(offset, before, partition.high_watermark)
    start = max(before, offset) if dry_run else await partition.trim(offset)
    return {
        "partition": partition.index,
        "start_before": before,
        "start": start,
        "end": partition.high_watermark,
        "deleted": start - before,
    }
