"""Half messages over HTTP: prepare, commit, roll back, list, show, and ask for those that are to be checked."""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.prepared import Check, PreparedStatus, State
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.message_fields import bytes_of, headers_of, put_message
from headrace.doors.http.api.responses import Answer, Names, json_response
from headrace.doors.http.server.messages import Request

LIST_DEFAULT = 100
LIST_MAX = 1_000
# Questions of one poll, and how long it waits: below what clients and proxies take for a dead connection.
CHECKS_DEFAULT = 10
CHECKS_MAX = 100
WAIT_DEFAULT_MS = 10_000
WAIT_MAX_MS = 30_000


async def prepare(broker: Broker, request: Request, names: Names) -> Answer:
    """POST /v1/half"""
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
        topic, value, group=group, key=key, headers=headers, partition=partition, timeout_ms=timeout_ms
    )
    return json_response({"id": id, "state": State.PREPARED}, 201)


async def commit(broker: Broker, request: Request, names: Names) -> Answer:
    """POST /v1/half/{id}/commit"""
    Fields.of_body(request.body).end()
    return _standing(await broker.prepared.commit(names["id"]))


async def roll_back(broker: Broker, request: Request, names: Names) -> Answer:
    """POST /v1/half/{id}/rollback"""
    Fields.of_body(request.body).end()
    return _standing(await broker.prepared.rollback(names["id"]))


async def show_half(broker: Broker, request: Request, names: Names) -> Answer:
    """GET /v1/half/{id}"""
    Fields.of_query(request).end()
    standing, message = await broker.prepared.show(names["id"])
    shown = _standing(standing)
    if message is not None:
        put_message(shown, message.key, message.value, message.headers)
    return shown


async def list_half(broker: Broker, request: Request, names: Names) -> Answer:
    """GET /v1/half?topic=&group=&limit=&after="""
    fields = Fields.of_query(request)
    topic = fields.text("topic")
    group = fields.text("group")
    limit = fields.number("limit", LIST_DEFAULT, 1, LIST_MAX)
    after = fields.text("after")
    fields.end()
    standings = await broker.prepared.list(topic, group, limit, after)
    if topic and not standings:
        broker.topics.existing(topic)
    return {
        "half": [_standing(each) for each in standings],
        "next": standings[-1].id if len(standings) == limit else None,
        "pending": broker.prepared.pending,
        "parked": broker.prepared.parked,
    }


async def poll_checks(broker: Broker, request: Request, names: Names) -> Answer:
    """GET /v1/half/checks?group=&wait_ms=&limit="""
    fields = Fields.of_query(request)
    group = fields.text("group")
    wait_ms = fields.number("wait_ms", WAIT_DEFAULT_MS, 0, WAIT_MAX_MS)
    limit = fields.number("limit", CHECKS_DEFAULT, 1, CHECKS_MAX)
    fields.end()
    return {"checks": [_check(each) for each in await broker.prepared.poll(group, wait_ms / 1_000, limit)]}


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
