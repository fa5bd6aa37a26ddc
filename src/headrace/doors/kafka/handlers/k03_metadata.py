"""Metadata (3), versions 0 to 13: which brokers there are and where each partition lives.

Null topics (and the empty list of version 0) mean all; an empty list means none. Topics are asked for by name, from
version 12 also by id. A name that does not exist is made if the broker and the client (from version 4) allow it, and
is then in this very reply; Kafka answers UNKNOWN_TOPIC_OR_PARTITION first and expects the client to ask again.
Internal topics are not made this way. A name that the client may not describe is TOPIC_AUTHORIZATION_FAILED, whether
there is such a topic or not.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.codec import encode_in_turns
from headrace.doors.kafka.partitions import describe_topic, refuse_topic
from headrace.doors.kafka.placement import Placement, endpoints, leader_of
from headrace.doors.kafka.rights import NOT_ASKED, Operations, cluster_operations, visible
from headrace.format.schema import Encoded

_TOPIC_ID_FROM = 12


async def handle(call: Call, request: Any) -> dict[str, Any]:
    broker = call.broker
    asked = request.topics
    if asked and any(_refuses(call.version, topic) for topic in asked):
        return _refuse(asked)
    operations = Operations(call, Resource.TOPIC, getattr(request, "include_topic_authorized_operations", False))
    if asked is None or (call.version == 0 and not asked):
        found: Any = await _all(call, operations)
    else:
        found = await _ask(call, asked, getattr(request, "allow_auto_topic_creation", True), operations)
    for_cluster = getattr(request, "include_cluster_authorized_operations", False)
    return {
        "brokers": [each._asdict() for each in endpoints(broker, call.way)],
        "cluster_id": broker.cluster_id,
        "controller_id": leader_of(broker, call.listener),
        "topics": found,
        "cluster_authorized_operations": cluster_operations(call) if for_cluster else NOT_ASKED,
        "error_code": ErrorCode.none,
    }


async def _all(call: Call, operations: Operations) -> Encoded:
    """Every topic that the client may see, some at a time: there may be tens of thousands."""
    placement = Placement.of(call.broker, call.listener)

    names = await visible(call, Resource.TOPIC, call.broker.topics.all)
    described = (
        (1 + len(topic.partitions), describe_topic(placement, topic, operations.on(name)))
        for name in names
        if (topic := call.broker.topics.get(name)) is not None
    )
    return await encode_in_turns(call.api_key, call.version, "topics", described)


def _refuses(version: int, topic: Any) -> bool:
    by_id = getattr(topic, "topic_id", None) is not None
    return (topic.name is None and not by_id) or (by_id and version < _TOPIC_ID_FROM)


def _refuse(asked: Any) -> dict[str, Any]:
    """The reply to a request that makes no sense as a whole."""
    topics = [
        refuse_topic(ErrorCode.invalid_request, topic.name or "", NOT_ASKED, getattr(topic, "topic_id", None))
        for topic in asked
    ]
    return {"brokers": [], "cluster_id": None, "controller_id": -1, "topics": topics}


async def _ask(call: Call, asked: Any, may_create: bool, operations: Operations) -> list[dict[str, Any]]:
    topics = call.broker.topics
    # A client may name a topic twice, or by both name and id: it gets it once.
    ids = {topic.topic_id: None for topic in asked if getattr(topic, "topic_id", None) is not None}
    names = {topic.name: None for topic in asked if getattr(topic, "topic_id", None) is None}
    hidden = [name for name in names if name and not call.allows(Operation.DESCRIBE, Resource.TOPIC, name)]
    for name in hidden:
        del names[name]
    if may_create:
        missing = [name for name in names if topics.get(name) is None]
        made = await asyncio.gather(*(_make(call, name) for name in missing), return_exceptions=True)
        failures = {name: error for name, error in zip(missing, made, strict=True) if isinstance(error, BaseException)}
    else:
        failures = {}
    placement = Placement.of(call.broker, call.listener)
    denied = ErrorCode.topic_authorization_failed
    found = [refuse_topic(denied, name, NOT_ASKED) for name in hidden]
    for topic_id in ids:
        topic = call.broker.log.topics.by_id.get(topic_id)
        if topic is None:
            found.append(refuse_topic(ErrorCode.unknown_topic_id, None, NOT_ASKED, topic_id))
        elif not call.allows(Operation.DESCRIBE, Resource.TOPIC, topic.name):
            found.append(refuse_topic(denied, None, NOT_ASKED, topic_id))
        else:
            found.append(describe_topic(placement, topic, operations.on(topic.name)))
            names.pop(topic.name, None)
    for name in names:
        topic = topics.get(name)
        if topic is None:
            found.append(refuse_topic(failures.get(name), name, NOT_ASKED))
        else:
            found.append(describe_topic(placement, topic, operations.on(name)))
    return found


async def _make(call: Call, name: str) -> None:
    """Make a topic that is asked for, where that is configured and the client may."""
    if call.broker.config.auto_create_topics:
        call.broker.security.check_create(call.session, name)
    await call.broker.topics.ensure(name, session=call.session)
