"""CreatePartitions (37), versions 0 to 3: topics grow, never shrink. An assignment by hand can only name all nodes
of the group."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.changes import check_asked, check_replicas, repeated, within
from headrace.doors.kafka.errors import KafkaError, controller_code
from headrace.errors import NotAuthorized

# The first version whose clients know THROTTLING_QUOTA_EXCEEDED.
TOLD_FROM = 3


async def handle(call: Call, request: Any) -> dict[str, Any]:
    duplicates = repeated(topic.name for topic in request.topics)
    wanted = {topic.name: topic for topic in request.topics}

    may = {name: call.allows(Operation.ALTER, Resource.TOPIC, name) for name in wanted}
    known = {name: call.broker.topics.get(name) for name in wanted if may[name]}
    asked = sum(max(0, each.count - len(now.partitions)) for name, each in wanted.items() if (now := known.get(name)))

    def growing(topic: Any) -> Any:
        return lambda: _grow(call, topic, may[topic.name], request.validate_only, topic.name in duplicates, asked)

    outcomes = await within(request.timeout, [growing(topic) for topic in wanted.values()])
    return {
        "results": [
            {
                "name": name,
                "error_code": ErrorCode.none if outcome is None else controller_code(outcome),
                "error_message": None if outcome is None else str(outcome),
            }
            for name, outcome in zip(wanted, outcomes, strict=True)
        ]
    }


async def _grow(call: Call, topic: Any, may: bool, validate_only: bool, duplicate: bool, asked: int) -> None:
    if not may:
        raise NotAuthorized(Operation.ALTER.name, Resource.TOPIC.name, topic.name)
    if duplicate:
        raise KafkaError(ErrorCode.invalid_request, f"'{topic.name}' occurs more than once in the request")
    topics = call.broker.topics
    now = topics.check_growth(topic.name, topic.count)
    check_asked(asked, call.broker.config)
    if topic.assignments is not None:
        more = topic.count - len(now.partitions)
        if len(topic.assignments) != more:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"{more} partition(s) come and replicas were assigned to {len(topic.assignments)}: assign all or none",
            )
        for assignment in topic.assignments:
            check_replicas(assignment.broker_ids, call.broker.membership.replicas)
    if not validate_only:
        call.mutate(topic.count - len(now.partitions), TOLD_FROM)
        await topics.grow(topic.name, topic.count, call.session)
