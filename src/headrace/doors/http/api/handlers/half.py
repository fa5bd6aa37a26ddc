"""Half messages over HTTP: prepare, commit, roll back, list, show, and ask for those that are to be checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.prepared import Check, Message, Standing, State
from headrace.doors.http.api.answers import Fields, found, put_bytes
from headrace.doors.http.api.message_fields import bytes_of, headers_of
from headrace.doors.http.server.messages import Request, Response
from headrace.errors import UnknownTopic

LIST_DEFAULT = 100
LIST_MAX = 1_000
# Questions of one poll, and how long it waits: below what clients and proxies take for a dead connection.
CHECKS_DEFAULT = 10
CHECKS_MAX = 100
WAIT_DEFAULT_MS = 10_000
WAIT_MAX_MS = 30_000

Names = Mapping[str, str]


async def prepared(broker: Broker, request: Request, names: Names) -> Response:
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
    id = await broker.half.prepare(
        topic, value, group=group, key=key, headers=headers, partition=partition, timeout_ms=timeout_ms
    )
    return found({"id": id, "state": State.PREPARED}, 201)


async def committed(broker: Broker, request: Request, names: Names) -> Response:
    """POST /v1/half/{id}/commit"""
    Fields.of_body(request.body).end()
    return found(_standing(await broker.half.commit(names["id"])))


async def rolled_back(broker: Broker, request: Request, names: Names) -> Response:
    """POST /v1/half/{id}/rollback"""
    Fields.of_body(request.body).end()
    return found(_standing(await broker.half.rollback(names["id"])))


async def shown(broker: Broker, request: Request, names: Names) -> Response:
    """GET /v1/half/{id}"""
    Fields(request.parameters()).end()
    standing, message = await broker.half.show(names["id"])
    said = _standing(standing)
    if message is not None:
        _put_message(said, message)
    return found(said)


async def listed(broker: Broker, request: Request, names: Names) -> Response:
    """GET /v1/half?topic=&group=&limit=&after="""
    fields = Fields(request.parameters())
    topic = fields.text("topic")
    group = fields.text("group")
    limit = fields.number("limit", LIST_DEFAULT, 1, LIST_MAX)
    after = fields.text("after")
    fields.end()
    standings = await broker.half.list(topic, group, limit, after)
    if topic and not standings and broker.topics.get(topic) is None:
        raise UnknownTopic(f"there is no topic {topic!r}")
    return found(
        {
            "half": [_standing(each) for each in standings],
            "next": standings[-1].id if len(standings) == limit else None,
            "pending": broker.half.pending,
            "parked": broker.half.parked,
        }
    )


async def checks(broker: Broker, request: Request, names: Names) -> Response:
    """GET /v1/half/checks?group=&wait_ms=&limit="""
    fields = Fields(request.parameters())
    group = fields.text("group")
    wait_ms = fields.number("wait_ms", WAIT_DEFAULT_MS, 0, WAIT_MAX_MS)
    limit = fields.number("limit", CHECKS_DEFAULT, 1, CHECKS_MAX)
    fields.end()
    return found({"checks": [_check(each) for each in await broker.half.poll(group, wait_ms / 1_000, limit)]})


def _check(check: Check) -> dict[str, Any]:
    message = check.message
    said: dict[str, Any] = {
        "id": check.id,
        "topic": message.topic,
        "partition": _known(message.partition),
        "group": message.group,
        "prepared_ms": message.prepared_ms,
        "checks": check.checks,
    }
    _put_message(said, message)
    return said


def _standing(standing: Standing) -> dict[str, Any]:
    said: dict[str, Any] = {"id": standing.id, "state": standing.state}
    if standing.state is State.COMMITTED:
        said |= {"topic": standing.topic, "partition": standing.partition, "offset": standing.offset}
    if standing.given_up:
        said["given_up"] = True
    if standing.state in (State.PREPARED, State.PARKED):
        said |= {
            "topic": standing.topic,
            "partition": _known(standing.partition),
            "group": standing.group,
            "prepared_ms": standing.prepared_ms,
            "timeout_ms": standing.timeout_ms,
            "checks": standing.checks,
            "next_check_ms": _known(standing.next_check_ms),
        }
    return said


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _put_message(said: dict[str, Any], message: Message) -> None:
    put_bytes(said, "key", message.key)
    put_bytes(said, "value", message.value)
    headers: list[dict[str, Any]] = []
    for name, content in message.headers:
        header: dict[str, Any] = {"name": name}
        put_bytes(header, "value", content)
        headers.append(header)
    if headers:
        said["headers"] = headers
