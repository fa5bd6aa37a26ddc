"""Groups over HTTP: list, show with members and lag, move, delete. Of all protocols: Kafka's two and RocketMQ's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.broker.broker import Broker
from headrace.broker.figures.unread import time_at
from headrace.broker.groups import Commit, Problem
from headrace.broker.groups.consumer.consumer_group import ConsumerGroup
from headrace.broker.groups.consumer.places import each as each_place
from headrace.broker.groups.group_codec import Committed
from headrace.broker.groups.protocol import GroupError
from headrace.broker.groups.rocketmq_group import RocketMqGroup
from headrace.broker.groups.shard import AnyGroup
from headrace.broker.groups.subscription import assigned_partitions
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.listing import Visible, listing_answer, listing_of, listing_query, page_of
from headrace.doors.http.api.operations import Operation, Refusal
from headrace.doors.http.api.responses import Answer, Names, Page
from headrace.doors.http.api.rights import LISTED, on_group
from headrace.doors.http.api.schemas import (
    Named,
    Shape,
    array,
    either,
    flag,
    integer,
    nullable,
    object_of,
    text,
)
from headrace.doors.http.server.messages import HttpError, Request
from headrace.errors import PartitionOffline, UnknownTopic
from headrace.log.interface import Partition, Topic

GROUP_PATH = "/v1/groups/{group}"
SORTS = ("group", "members", "lag", "lag_ms", "state", "kind")
FAMILIES = ("classic", "consumer", "rocketmq")
# Of one reset.
PARTITIONS_MAX = 10_000
UNKNOWN = Refusal(404, "UnknownGroup")
NOT_EMPTY = Refusal(409, "GroupNotEmpty")
NOT_READY = Refusal(503, "GroupsNotReady")


SUMMARY: Mapping[str, Shape] = {
    "group": text(),
    "kind": text("The protocol that its members speak.", FAMILIES),
    "state": text(),
    "members": integer(),
    "topics": array(text(), "Those that it has a position in."),
    "lag": integer("Messages that it has not read, as of the last look."),
    "lag_ms": integer("For how long the oldest of them has waited."),
}
GROUP_SUMMARY = Named("GroupSummary", object_of(SUMMARY))
PLACE = object_of({"topic": text(), "partition": integer()})
MEMBER = object_of(
    {
        "member_id": text(),
        "client_id": text(),
        "host": text(),
        "instance_id": nullable(text()),
        "partitions": array(PLACE, "What it reads; RocketMQ's clients divide partitions among themselves."),
    }
)
POSITION = object_of(
    {
        "topic": text(),
        "partition": integer(),
        "committed": nullable(integer()),
        "start": integer(),
        "end": integer(),
        "lag": nullable(integer()),
        "lag_ms": nullable(integer("For how long the oldest unread message has waited.")),
        "member_id": nullable(text("Who reads it.")),
        "client_id": nullable(text()),
        "metadata": text("What was committed with it."),
    }
)
GROUP = Named(
    "Group",
    object_of({"partition_list": array(POSITION), **SUMMARY, "member_list": array(MEMBER), "truncated": flag()}),
)


@Operation(
    "GET",
    "/v1/groups",
    "Lists groups: searched, sorted, and in pages.",
    rights=LISTED,
    query=listing_query(SORTS),
    answer=listing_answer("groups", GROUP_SUMMARY),
    errors=(NOT_READY,),
    command="group list",
)
async def list_groups(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    listing = listing_of(fields, SORTS)
    fields.end()
    await broker.figures.renew()
    try:
        groups = [group async for group in broker.groups.each()]
    except GroupError as error:
        raise _problem(error.problem, "") from None
    found = await page_of(
        groups,
        listing,
        lambda group: group.group_id,
        lambda group: _value(broker, group, listing.sort),
        Visible(broker.security, request.session, Resource.GROUP),
    )
    page = await Page().fill(summarize(broker, group) for group in found.items)
    return page.response("groups", {"total": found.total, "offset": listing.offset})


def _value(broker: Broker, group: AnyGroup, sort: str) -> object:
    if sort in ("lag", "lag_ms"):
        return broker.figures.lags.get(group.group_id, (0, 0))[sort == "lag_ms"]
    values = {"group": group.group_id, "members": group.member_count, "state": group.state.value, "kind": group.family}
    return values[sort]


def summarize(broker: Broker, group: AnyGroup) -> dict[str, Any]:
    """A group in a list."""
    lag, lag_ms = broker.figures.lags.get(group.group_id, (0, 0))
    return {
        "group": group.group_id,
        "kind": group.family,
        "state": group.state.value,
        "members": group.member_count,
        "topics": sorted(group.offsets.by_topic),
        "lag": lag,
        "lag_ms": lag_ms,
    }


@Operation(
    "GET",
    GROUP_PATH,
    "Shows a group with its members, positions and lag.",
    rights=on_group(Right.DESCRIBE),
    answer=GROUP,
    errors=(UNKNOWN, NOT_READY),
    command="group describe GROUP",
)
async def show_group(broker: Broker, request: Request, names: Names) -> Answer:
    group = await find(broker, names["group"])
    await broker.figures.renew()
    members = [_member(broker, each) for each in _members(broker, group)]
    readers = {(place["topic"], place["partition"]): each for each in members for place in each["partitions"]}
    committed = await _read_committed(broker, group.group_id)
    places = sorted({*readers, *((name, index) for name, found in committed.items() for index in found)})
    page = Page()
    now_ms = broker.runtime.clock.now_ms()
    lag = oldest = 0
    truncated = False
    for name, index in places:
        topic = broker.topics.get(name)
        if topic is None or index >= len(topic.partitions):
            continue
        at = committed.get(name, {}).get(index)
        shown = await _position(broker, topic.partitions[index], at, now_ms)
        reader = readers.get((name, index), {})
        truncated = not page.add({**shown, "member_id": reader.get("member_id"), "client_id": reader.get("client_id")})
        if truncated:
            break
        lag += shown["lag"] or 0
        oldest = max(oldest, shown["lag_ms"] or 0)
        await page.pause()
    rest = {**summarize(broker, group), "lag": lag, "lag_ms": oldest, "member_list": members, "truncated": truncated}
    return page.response("partition_list", rest)


async def _position(broker: Broker, partition: Partition, at: Committed | None, now_ms: int) -> dict[str, Any]:
    try:
        await partition.load()
    except PartitionOffline:
        pass
    lag = waited = None
    if at is not None:
        position = max(at.offset, partition.start)
        lag = max(partition.high_watermark - position, 0)
        waited = 0
        if lag:
            since = await time_at(broker.runtime, partition, position)
            waited = None if since is None else max(now_ms - since, 0)
    return {
        "topic": partition.topic.name,
        "partition": partition.index,
        "committed": None if at is None else at.offset,
        "start": partition.start,
        "end": partition.high_watermark,
        "lag": lag,
        "lag_ms": waited,
        "metadata": "" if at is None else at.metadata,
    }


class Member(NamedTuple):
    """A member of a group of whichever protocol."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: list[tuple[str, int]]


def _members(broker: Broker, group: AnyGroup) -> list[Member]:
    if isinstance(group, ConsumerGroup):
        by_id = broker.log.topics.by_id
        return [
            Member(
                each.member_id,
                each.traits.client_id,
                each.traits.client_host,
                each.traits.instance_id,
                [(by_id[id].name, index) for id, index in each_place(each.assignment) if id in by_id],
            )
            for each in group.describe().members
        ]
    is_assigned = not isinstance(group, RocketMqGroup)
    return [
        Member(
            each.member_id,
            each.client_id,
            each.client_host,
            each.instance_id,
            assigned_partitions(each.assignment) if is_assigned else [],
        )
        for each in group.describe().members
    ]


def _member(broker: Broker, member: Member) -> dict[str, Any]:
    places = [{"topic": topic, "partition": index} for topic, index in sorted(member.partitions)]
    return {**member._asdict(), "partitions": places}


async def find(broker: Broker, name: str) -> AnyGroup:
    """The group. Raises HttpError."""
    try:
        group = await broker.groups.find(name)
    except GroupError as error:
        raise _problem(error.problem, name) from None
    if group is None:
        raise _problem(Problem.GROUP_ID_NOT_FOUND, name)
    return group


async def _read_committed(broker: Broker, name: str) -> Mapping[str, Mapping[int, Committed | None]]:
    problem, found = await broker.groups.committed(name, None)
    if problem is not Problem.NONE:
        raise _problem(problem, name)
    return found


def _problem(problem: Problem, name: str) -> HttpError:
    if problem is Problem.GROUP_ID_NOT_FOUND:
        return HttpError(404, "UnknownGroup", f"there is no group {name!r}")
    if problem in (Problem.NON_EMPTY_GROUP, Problem.UNKNOWN_MEMBER_ID, Problem.GROUP_SUBSCRIBED_TO_TOPIC):
        return HttpError(409, "GroupNotEmpty", f"the group {name!r} has members that read. Stop them first.")
    return HttpError(503, "GroupsNotReady", f"the groups cannot be reached now ({problem.name}): try again")


# --- moving and deleting ----------------------------------------------------------------------------------------------

TARGET = either(
    text(choices=("earliest", "latest")),
    object_of({"offset": integer("In all partitions.", 0)}),
    object_of({"time_ms": integer("The first message that is not older.", 0)}),
    object_of({"shift": integer("So many messages on, or back.")}),
)
MOVED = object_of(
    {
        "topic": text(),
        "partition": integer(),
        "before": nullable(integer()),
        "after": integer(),
        "start": integer(),
        "end": integer(),
        "change": nullable(integer("Messages that are read again (below 0), or left out.")),
    }
)


@Operation(
    "POST",
    GROUP_PATH + "/reset",
    "Moves the positions of a group that has no members, or shows what a move would change.",
    rights=on_group(Right.READ),
    doc="It takes READ on each topic, too. An offset beyond what there is becomes the nearest that there is.",
    body=object_of(
        {"to": TARGET},
        {
            "topic": text("All that the group has positions in, if none is given."),
            "partitions": array(integer(), "Of the topic; all, if none are given.", PARTITIONS_MAX),
            "dry_run": flag("Only show it."),
        },
    ),
    answer=object_of({"group": text(), "dry_run": flag(), "partitions": array(MOVED)}),
    errors=(UNKNOWN, NOT_EMPTY, NOT_READY, UnknownTopic, PartitionOffline),
    command="group reset GROUP",
)
async def reset_group(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    to, name = fields.take("to"), fields.text("topic")
    indexes, dry_run = fields.take("partitions"), fields.flag("dry_run")
    fields.end()
    target = _target(to)
    id = names["group"]
    wanted = [name] if name else []
    for each in wanted:
        broker.security.check(request.session, Right.READ, Resource.TOPIC, each)
    topics = [broker.topics.existing(each) for each in wanted]
    group = await broker.groups.find(id) if topics else await find(broker, id)
    if group is not None and group.member_count:
        raise _problem(Problem.NON_EMPTY_GROUP, id)
    committed = await _read_committed(broker, id)
    if not topics:
        topics = [topic for each in committed if (topic := broker.topics.get(each)) is not None]
        for topic in topics:
            broker.security.check(request.session, Right.READ, Resource.TOPIC, topic.name)
    partitions = [each for topic in topics for each in _chosen(topic, indexes if name else None)]
    if len(partitions) > PARTITIONS_MAX:
        raise bad_request(f"these are {len(partitions)} partitions: {PARTITIONS_MAX} are moved at once")
    moved = []
    for partition in partitions:
        at = committed.get(partition.topic.name, {}).get(partition.index)
        moved.append(await _move(partition, None if at is None else at.offset, target))
    if not dry_run and moved:
        commits = [
            Commit(each.topic.name, each.topic.id, each.index, row["after"])
            for each, row in zip(partitions, moved, strict=True)
        ]
        for problem in await broker.groups.commit(id, commits):
            if problem is not Problem.NONE:
                raise _problem(problem, id)
        topics_moved = ", ".join(topic.name for topic in topics)
        broker.audit.record(request.session, "group.reset", Resource.GROUP, id, detail=f"to {to} of {topics_moved}")
    return {"group": id, "dry_run": dry_run, "partitions": moved}


class Target(NamedTuple):
    """Where positions go: by one of these."""

    kind: str
    value: int = 0


def _target(to: Any) -> Target:
    if to in ("earliest", "latest"):
        return Target(to)
    if isinstance(to, dict) and len(to) == 1:
        kind, value = next(iter(to.items()))
        is_number = type(value) is int and abs(value) < 1 << 62
        if is_number and (kind == "shift" or (kind in ("offset", "time_ms") and value >= 0)):
            return Target(kind, value)
    raise bad_request(
        f'to must be "earliest", "latest", {{"offset": N}}, {{"time_ms": N}} or {{"shift": N}} (got {to!r})'
    )


def _chosen(topic: Topic, indexes: Any) -> list[Partition]:
    if indexes is None:
        return list(topic.partitions)
    if not isinstance(indexes, list) or not all(
        type(each) is int and 0 <= each < len(topic.partitions) for each in indexes
    ):
        raise bad_request(f"partitions is {indexes!r}: '{topic.name}' has 0 to {len(topic.partitions) - 1}")
    return [topic.partitions[each] for each in dict.fromkeys(indexes)]


async def _move(partition: Partition, before: int | None, target: Target) -> dict[str, Any]:
    await partition.load()
    start, end = partition.start, partition.high_watermark
    if target.kind == "earliest":
        after = start
    elif target.kind == "latest":
        after = end
    elif target.kind == "offset":
        after = target.value
    elif target.kind == "shift":
        after = (start if before is None else before) + target.value
    else:
        found = (await partition.offset_at(target.value)).offset
        after = end if found < 0 else found
    after = min(max(after, start), end)
    return {
        "topic": partition.topic.name,
        "partition": partition.index,
        "before": before,
        "after": after,
        "start": start,
        "end": end,
        "change": None if before is None else after - before,
    }


@Operation(
    "DELETE",
    GROUP_PATH,
    "Deletes a group that has no members, with its positions.",
    rights=on_group(Right.DELETE),
    answer=object_of({"group": text(), "deleted": flag()}),
    errors=(UNKNOWN, NOT_EMPTY, NOT_READY),
    command="group delete GROUP",
)
async def delete_group(broker: Broker, request: Request, names: Names) -> Answer:
    name = names["group"]
    problem = await broker.groups.delete(name)
    if problem is not Problem.NONE:
        raise _problem(problem, name)
    broker.audit.record(request.session, "group.delete", Resource.GROUP, name)
    return {"group": name, "deleted": True}


@Operation(
    "DELETE",
    GROUP_PATH + "/topics/{topic}",
    "Deletes the positions of a group in one topic, which no member of it may read.",
    rights=on_group(Right.DELETE),
    answer=object_of({"group": text(), "topic": text(), "deleted": integer("Positions.")}),
    errors=(UNKNOWN, NOT_EMPTY, NOT_READY),
    command="group delete GROUP",
)
async def delete_group_positions(broker: Broker, request: Request, names: Names) -> Answer:
    name, topic = names["group"], names["topic"]
    group = await find(broker, name)
    places = [(topic, index) for index in group.offsets.by_topic.get(topic, {})]
    problem, problems = await broker.groups.delete_offsets(name, places)
    for each in (problem, *problems):
        if each is not Problem.NONE:
            raise _problem(each, name)
    broker.audit.record(request.session, "group.forget", Resource.GROUP, name, detail=topic)
    return {"group": name, "topic": topic, "deleted": len(places)}
