"""Metadata (3), versions 0 to 13: which brokers there are and where each partition lives.

Null topics (and the empty list of version 0) mean all; an empty list means none. Topics are asked for by name, from
version 12 also by id. A name that does not exist is made if the broker and the client (from version 4) allow it, and
is then in this very reply; Kafka answers UNKNOWN_TOPIC_OR_PARTITION first and expects the client to ask again.
Internal topics are not made this way.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.codec import encode_in_turns
from headrace.doors.kafka.partitions import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    describe_topic,
    refuse_topic,
)
from headrace.doors.kafka.placement import Placement, endpoints, leader_of
from headrace.format.schema import Encoded

_TOPIC_ID_FROM = 12


async def handle(call: Call, request: Any) -> dict[str, Any]:
    broker = call.broker
    asked = request.topics
    if asked and any(_refuses(call.version, topic) for topic in asked):
        return _refused(asked)
    operations = TOPIC_OPERATIONS if getattr(request, "include_topic_authorized_operations", False) else NOT_ASKED
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
        "cluster_authorized_operations": CLUSTER_OPERATIONS if for_cluster else NOT_ASKED,
        "error_code": ErrorCode.none,
    }


async def _all(call: Call, operations: int) -> Encoded:
    """Every topic, some at a time: there may be tens of thousands."""
    topics, placement = list(call.broker.topics.all.values()), Placement.of(call.broker, call.listener)
    described = (
        (1 + len(topic.partitions), describe_topic(placement, topic, operations))
        for topic in topics
        if not topic.deleted
    )
    return await encode_in_turns(call.api_key, call.version, "topics", described)


def _refuses(version: int, topic: Any) -> bool:
    by_id = getattr(topic, "topic_id", None) is not None
    return (topic.name is None and not by_id) or (by_id and version < _TOPIC_ID_FROM)


def _refused(asked: Any) -> dict[str, Any]:
    """The reply to a request that makes no sense as a whole."""
    topics = [
        refuse_topic(ErrorCode.invalid_request, topic.name or "", NOT_ASKED, getattr(topic, "topic_id", None))
        for topic in asked
    ]
    return {"brokers": [], "cluster_id": None, "controller_id": -1, "topics": topics}


async def _ask(call: Call, asked: Any, may_create: bool, operations: int) -> list[dict[str, Any]]:
    topics = call.broker.topics
    # A client may name a topic twice, or by both name and id: it gets it once.
    ids = {topic.topic_id: None for topic in asked if getattr(topic, "topic_id", None) is not None}
    names = {topic.name: None for topic in asked if getattr(topic, "topic_id", None) is None}
    if may_create:
        missing = [name for name in names if topics.get(name) is None]
        made = await asyncio.gather(*map(topics.ensure, missing), return_exceptions=True)
        failures = {name: error for name, error in zip(missing, made, strict=True) if isinstance(error, BaseException)}
    else:
        failures = {}
    found, placement = [], Placement.of(call.broker, call.listener)
    for topic_id in ids:
        topic = call.broker.log.topics.by_id.get(topic_id)
        if topic is None:
            found.append(refuse_topic(ErrorCode.unknown_topic_id, None, operations, topic_id))
        else:
            found.append(describe_topic(placement, topic, operations))
            names.pop(topic.name, None)
    for name in names:
        topic = topics.get(name)
        if topic is None:
            found.append(refuse_topic(failures.get(name), name, operations))
        else:
            found.append(describe_topic(placement, topic, operations))
    return found
