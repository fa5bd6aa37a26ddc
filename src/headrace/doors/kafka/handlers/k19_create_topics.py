"""CreateTopics (19), versions 2 to 7.

Partitions and replication factor may be -1 (the defaults) from version 4 on, and are accepted below it too, as Kafka
does. Every node of the group has a replica of every partition: the replication factor is their number, and an
assignment by hand can only name all of them. All topics of a
request are made together; each fails or succeeds alone. `validate_only` makes none and returns no topic id (Kafka
returns one that it throws away).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.internal import CLUSTER_METADATA
from headrace.broker.security import Operation, Resource
from headrace.broker.topics import check_name
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.changes import check_asked, check_replicas, repeated, within
from headrace.doors.kafka.codec import encode_in_turns
from headrace.doors.kafka.configs import topic_entries
from headrace.doors.kafka.errors import KafkaError, controller_code
from headrace.errors import InvalidTopicConfig

# The first version whose clients know THROTTLING_QUOTA_EXCEEDED.
TOLD_FROM = 6


async def handle(call: Call, request: Any) -> dict[str, Any]:
    duplicates = repeated(topic.name for topic in request.topics)
    wanted = {topic.name: topic for topic in request.topics}

    default = call.broker.config.num_partitions
    counts = (len(each.assignments) or int(each.num_partitions) for each in request.topics)
    asked = sum(default if count == -1 else max(0, count) for count in counts)

    def making(topic: Any) -> Any:
        return lambda: _make(call, topic, request.validate_only, topic.name in duplicates, asked)

    outcomes = await within(request.timeout, [making(topic) for topic in wanted.values()])
    results = (_result(name, outcome) for name, outcome in zip(wanted, outcomes, strict=True))
    with_size = ((1 + len(result["configs"]), result) for result in results)
    return {"topics": await encode_in_turns(call.api_key, call.version, "topics", with_size)}


async def _make(call: Call, topic: Any, validate_only: bool, duplicate: bool, asked: int) -> dict[str, Any]:
    if duplicate:
        raise KafkaError(ErrorCode.invalid_request, f"'{topic.name}' occurs more than once in the request")
    topics = call.broker.topics
    call.broker.security.check_create(call.session, topic.name)
    check_name(topic.name)
    if topic.name == CLUSTER_METADATA:
        raise KafkaError(
            ErrorCode.invalid_request, f"'{topic.name}' is the name of Kafka's own metadata: choose another"
        )
    nodes = call.broker.membership.replicas
    partitions = _partitions(topic, nodes)
    check_asked(asked, call.broker.config)
    config: dict[str, str] = {}
    for entry in topic.configs:
        if entry.value is None:
            raise InvalidTopicConfig(f"{entry.name} needs a value: leave it out for the default")
        config[entry.name] = entry.value
    if validate_only:
        own = topics.check_new(topic.name, partitions, config)
        topic_id, count = None, call.broker.config.num_partitions if partitions == -1 else partitions
    else:
        call.mutate(call.broker.config.num_partitions if partitions == -1 else partitions, TOLD_FROM)
        made = await topics.create(topic.name, partitions, config, session=call.session)
        own, topic_id, count = dict(made.config), made.id, len(made.partitions)
    if not call.allows(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, topic.name):
        return {
            "topic_id": topic_id,
            "error_code": ErrorCode.none,
            "error_message": None,
            "topic_config_error_code": ErrorCode.topic_authorization_failed,
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": (),
        }
    return {
        "topic_id": topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "topic_config_error_code": 0,
        "num_partitions": count,
        "replication_factor": len(nodes),
        "configs": topic_entries(call.broker, own),
    }


def _partitions(topic: Any, nodes: Sequence[int]) -> int:
    """How many partitions are asked for, -1 for the default."""
    if not topic.assignments:
        if topic.replication_factor not in (-1, len(nodes)):
            raise KafkaError(
                ErrorCode.invalid_replication_factor, _replication_sentence(topic.replication_factor, len(nodes))
            )
        return int(topic.num_partitions)
    if topic.replication_factor != -1:
        raise KafkaError(
            ErrorCode.invalid_request,
            "replicas were assigned by hand, so the replication factor must be -1",
        )
    if topic.num_partitions != -1:
        raise KafkaError(
            ErrorCode.invalid_request,
            "replicas were assigned by hand, so the number of partitions must be -1",
        )
    seen = set()
    for assignment in topic.assignments:
        if assignment.partition_index in seen:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"replicas were assigned to partition {assignment.partition_index} more than once",
            )
        seen.add(assignment.partition_index)
        check_replicas(assignment.broker_ids, nodes)
    if seen != set(range(len(seen))):
        raise KafkaError(ErrorCode.invalid_replica_assignment, "partitions are numbered from 0 without a gap")
    return len(seen)


def _replication_sentence(factor: int, nodes: int) -> str:
    if factor < 1:
        return f"the replication factor is {nodes} (or -1 for the default), not {factor}"
    if factor < nodes:
        return f"each of the {nodes} nodes of the group has a replica of every topic: ask for {nodes} (or -1)"
    there = "is one" if nodes == 1 else f"are {nodes}"
    return f"{factor} replicas need {factor} brokers, and there {there}: ask for {nodes} (or -1)"


def _result(name: str, outcome: dict[str, Any] | BaseException) -> dict[str, Any]:
    if isinstance(outcome, BaseException):
        return {
            "name": name,
            "error_code": controller_code(outcome),
            "error_message": str(outcome),
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": (),
        }
    return {"name": name, **outcome}
