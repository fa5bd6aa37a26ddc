"""Half messages over HTTP: prepare, commit, roll back, list, show, and ask for those that are to be checked."""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.prepared import Check, PreparedStatus, State
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.security.rights import Inside
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.message_fields import MESSAGE_BODY, MESSAGE_FIELDS, bytes_of, headers_of, put_message
from headrace.doors.http.api.operations import Operation, Query, after_query, limit_query, text_query
from headrace.doors.http.api.responses import Answer, Names, json_response
from headrace.doors.http.api.rights import LISTED, on_group
from headrace.doors.http.api.schemas import Named, Shape, array, flag, integer, nullable, object_of, text
from headrace.doors.http.server.messages import Request
from headrace.errors import (
    BatchTooLarge,
    HalfDecided,
    HalfFull,
    InvalidHalf,
    NotAuthorized,
    TopicFull,
    UnknownHalf,
    UnknownTopic,
)

LIST_DEFAULT = 100
LIST_MAX = 1_000
# Questions of one poll, and how long it waits: below what clients and proxies take for a dead connection.
CHECKS_DEFAULT = 10
CHECKS_MAX = 100
WAIT_DEFAULT_MS = 10_000
WAIT_MAX_MS = 30_000


DECIDING = (InvalidHalf, UnknownHalf, HalfDecided)
PREPARED: dict[str, Shape] = {
    "topic": text(),
    "partition": nullable(integer("Null: as its key says, at the commit.")),
    "group": text("The producer group."),
    "prepared_ms": integer(),
    "checks": integer("Rounds of check-back so far."),
}
STATUS = Named(
    "HalfMessage",
    object_of(
        {"id": text(), "state": text(choices=tuple(State))},
        {
            **PREPARED,
            "offset": integer("Where a committed message is."),
            "given_up": flag("The broker decided it, or parked it."),
            "timeout_ms": integer(),
            "next_check_ms": nullable(integer()),
            **MESSAGE_FIELDS,
        },
    ),
)
CHECK = object_of({"id": text(), **PREPARED}, MESSAGE_FIELDS)


@Operation(
    "POST",
    "/v1/half",
    "Prepares a message, which no consumer sees until it is committed.",
    rights=Inside("WRITE topic TOPIC"),
    body=object_of(
        {"topic": text(), "group": text("The producer group that is asked for the outcome.")},
        {**MESSAGE_BODY, "partition": integer(least=-1), "timeout_ms": integer("When it is first asked about.", 0)},
    ),
    answer=object_of({"id": text(), "state": text()}),
    status=201,
    errors=(UnknownTopic, InvalidHalf, BatchTooLarge, HalfFull, TopicFull),
    is_large=True,
)
async def prepare(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    topic = fields.text("topic")
    group = fields.text("group")
    key = bytes_of(fields, "key")
    value = bytes_of(fields, "value")
    headers = headers_of(fields)
    partition = fields.number("partition", -1, -1, (1 << 31) - 1)
    timeout_ms = None if fields.take("timeout_ms") is None else fields.number("timeout_ms", 0)
    fields.end()
    id = await broker.prepared.prepare(
        topic,
        value,
        group=group,
        key=key,
        headers=headers,
        partition=partition,
        timeout_ms=timeout_ms,
        session=request.session,
    )
    return json_response({"id": id, "state": State.PREPARED}, 201)


@Operation(
    "POST",
    "/v1/half/{id}/commit",
    "Commits a half message: consumers see it.",
    rights=Inside("WRITE topic of the message"),
    body=object_of({}),
    answer=STATUS,
    errors=(*DECIDING, UnknownTopic),
    command="half commit ID",
)
async def commit(broker: Broker, request: Request, names: Names) -> Answer:
    Fields.of_body(request.body).end()
    await _authorize(broker, request, names["id"], Right.WRITE)
    return _standing(await broker.prepared.commit(names["id"]))


@Operation(
    "POST",
    "/v1/half/{id}/rollback",
    "Rolls a half message back: no consumer ever sees it.",
    rights=Inside("WRITE topic of the message"),
    body=object_of({}),
    answer=STATUS,
    errors=DECIDING,
    command="half rollback ID",
)
async def roll_back(broker: Broker, request: Request, names: Names) -> Answer:
    Fields.of_body(request.body).end()
    await _authorize(broker, request, names["id"], Right.WRITE)
    return _standing(await broker.prepared.rollback(names["id"]))


@Operation(
    "GET",
    "/v1/half/{id}",
    "Shows a half message.",
    rights=Inside("READ topic of the message"),
    reads_messages=True,
    answer=STATUS,
    errors=(InvalidHalf, UnknownHalf),
    command="half show ID",
)
async def show_half(broker: Broker, request: Request, names: Names) -> Answer:
    await _authorize(broker, request, names["id"], Right.READ)
    standing, message = await broker.prepared.show(names["id"])
    shown = _standing(standing)
    if message is not None:
        put_message(shown, message.key, message.value, message.headers)
    return shown


@Operation(
    "GET",
    "/v1/half",
    "Lists undecided messages, the oldest first.",
    rights=LISTED,
    query=(
        text_query("topic", "Only those of this topic."),
        text_query("group", "Only those of this producer group."),
        limit_query(LIST_DEFAULT, LIST_MAX),
        after_query(),
    ),
    answer=object_of(
        {
            "half": array(STATUS),
            "next": nullable(text("Where to go on.")),
            "pending": integer("Undecided messages of all topics."),
            "parked": integer("Of these, those that were given up and are kept."),
        }
    ),
    errors=(UnknownTopic,),
    command="half list",
)
async def list_half(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    topic = fields.text("topic")
    group = fields.text("group")
    limit = fields.number("limit", LIST_DEFAULT, 1, LIST_MAX)
    after = fields.text("after")
    fields.end()
    if topic:
        broker.security.check(request.session, Right.DESCRIBE, Resource.TOPIC, topic)
    standings = await broker.prepared.list(topic, group, limit, after)
    if topic and not standings:
        broker.topics.existing(topic)
    visible = set(broker.security.visible(request.session, Resource.TOPIC, {each.topic for each in standings}))
    return {
        "half": [_standing(each) for each in standings if each.topic in visible],
        "next": standings[-1].id if len(standings) == limit else None,
        "pending": broker.prepared.pending,
        "parked": broker.prepared.parked,
    }


@Operation(
    "GET",
    "/v1/half/checks",
    "Waits until messages of a producer group are to be checked.",
    rights=on_group(Right.READ),
    query=(
        text_query("group", "The producer group.", required=True),
        Query("wait_ms", integer("How long to wait for the first.", 0, WAIT_MAX_MS, WAIT_DEFAULT_MS)),
        limit_query(CHECKS_DEFAULT, CHECKS_MAX),
    ),
    reads_messages=True,
    answer=object_of({"checks": array(CHECK)}),
    errors=(InvalidHalf,),
    command="half checks GROUP",
)
async def poll_checks(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    group = fields.text("group")
    wait_ms = fields.number("wait_ms", WAIT_DEFAULT_MS, 0, WAIT_MAX_MS)
    limit = fields.number("limit", CHECKS_DEFAULT, 1, CHECKS_MAX)
    fields.end()
    return {"checks": [_check(each) for each in await broker.prepared.poll(group, wait_ms / 1_000, limit)]}


async def _authorize(broker: Broker, request: Request, id: str, right: Right) -> None:
    """Raise NotAuthorized unless the client may do that to the topic of a message, and UnknownHalf where it may not
    even know of it. One that was rolled back has no topic any more."""
    security, session = broker.security, request.session
    if not security.is_enforced:
        return
    topic = (await broker.prepared.find(id)).topic
    if topic and not security.allows(session, right, Resource.TOPIC, topic):
        if not security.visible(session, Resource.TOPIC, [topic]):
            raise UnknownHalf(f"there is no half message {id!r}")
        raise NotAuthorized(right.name, Resource.TOPIC.name, topic)


def _check(check: Check) -> dict[str, Any]:
    message = check.message
    shown: dict[str, Any] = {
        "id": check.id,
        "topic": message.topic,
        "partition": _known(message.partition),
        "group": message.group,
        "prepared_ms": message.prepared_ms,
        "checks": check.checks,
    }
    put_message(shown, message.key, message.value, message.headers)
    return shown


def _standing(standing: PreparedStatus) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": standing.id, "state": standing.state}
    if standing.state is State.COMMITTED:
        shown |= {"topic": standing.topic, "partition": standing.partition, "offset": standing.offset}
    if standing.given_up:
        shown["given_up"] = True
    if standing.state in (State.PREPARED, State.PARKED):
        shown |= {
            "topic": standing.topic,
            "partition": _known(standing.partition),
            "group": standing.group,
            "prepared_ms": standing.prepared_ms,
            "timeout_ms": standing.timeout_ms,
            "checks": standing.checks,
            "next_check_ms": _known(standing.next_check_ms),
        }
    return shown


def _known(number: int) -> int | None:
    return None if number < 0 else number
