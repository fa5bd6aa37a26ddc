"""ConsumerGroupHeartbeat (68), versions 0 to 1: a member of the consumer protocol (KIP-848) joins, stays, follows or
leaves.

One request does what JoinGroup, SyncGroup, Heartbeat and LeaveGroup do for classic members. The broker divides the
work; the reply names the member's partitions where they have changed. Version 1 has patterns, and members that draw
their own ids. The reply comes when what the heartbeat changed is durable.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from headrace.broker.groups import Problem
from headrace.broker.groups.consumer.heartbeat import Heartbeat
from headrace.broker.groups.consumer.places import Places
from headrace.broker.groups.consumer.viewer import UserViewer
from headrace.broker.security import Operation, Resource, Session
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import error_code
from headrace.errors import NotAuthorized

_MEMBERS_DRAW_IDS_FROM = 1
_MILLISECOND = timedelta(milliseconds=1)


async def handle(call: Call, request: Any) -> dict[str, Any]:
    for name in dict.fromkeys(request.subscribed_topic_names or ()):
        try:
            call.check(Operation.DESCRIBE, Resource.TOPIC, name)
        except NotAuthorized as error:
            return {"error_code": error_code(error), "error_message": str(error)}
    owned = request.topic_partitions
    beat = Heartbeat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout // _MILLISECOND,
        topics=request.subscribed_topic_names,
        pattern=getattr(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        owned=None if owned is None else owned_places(owned),
        client_id=call.client_id or "",
        client_host="/" + call.client_host,
        viewer=viewer_of(call),
    )
    draws_id = call.version < _MEMBERS_DRAW_IDS_FROM
    answer = await call.broker.groups.consumers.heartbeat(request.group_id, beat, draws_id=draws_id)
    if request.member_epoch < 0:
        call.connection.watched().left(request.group_id, request.member_id)
    elif answer.problem is Problem.NONE and answer.member_id:
        call.connection.watched().beats(request.group_id, answer.member_id, request.instance_id)
    return {
        "error_code": answer.problem,
        "error_message": answer.message,
        "member_id": answer.member_id,
        "member_epoch": answer.epoch,
        "heartbeat_interval": answer.heartbeat_ms,
        "assignment": None if answer.assignment is None else {"topic_partitions": shown(answer.assignment)},
    }


def viewer_of(call: Call) -> UserViewer | None:
    """Which topics the member's patterns can mean."""
    security = call.broker.security
    if not security.is_enforced:
        return None
    session = call.connection.session
    # It stands for the member when this connection has gone, or is another user's.
    user = Session(user=session.user, host=session.host, client_id=session.client_id, door=session.door)
    user.scope = session.scope
    return UserViewer(security.subject(session), partial(security.visible, user, Resource.TOPIC))


def owned_places(topics: Any) -> Places:
    """The partitions that a member reports as its own."""
    places: dict[UUID, set[int]] = {}
    for each in topics:
        if each.topic_id is not None and each.partitions:
            places.setdefault(each.topic_id, set()).update(each.partitions)
    return {topic: frozenset(indexes) for topic, indexes in places.items()}


def shown(places: Places) -> list[dict[str, Any]]:
    """Partitions as replies name them."""
    return [{"topic_id": topic, "partitions": sorted(indexes)} for topic, indexes in places.items()]
