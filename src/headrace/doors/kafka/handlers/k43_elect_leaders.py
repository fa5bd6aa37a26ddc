"""ElectLeaders (43), versions 0 to 2: one node leads everything already, so no election is ever needed.

As in Kafka, asking for all partitions (null) lists the topics and, since nothing was elected, no partitions.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call

_ELECTION_TYPES = (0, 1)


async def handle(call: Call, request: Any) -> dict[str, Any]:
    topics = call.broker.topics
    if request.topic_partitions is None:
        nothing: list[dict[str, Any]] = [{"topic": name, "partition_result": ()} for name in topics.all]
        return {"error_code": ErrorCode.none, "replica_election_results": nothing}
    kind = getattr(request, "election_type", 0)
    known = kind in _ELECTION_TYPES
    results = []
    for asked in request.topic_partitions:
        topic = topics.get(asked.topic)
        elected = []
        for index in asked.partitions:
            if not known:
                code, sentence = ErrorCode.invalid_request, f"there is no election of type {kind}"
            elif topic is None:
                code, sentence = ErrorCode.unknown_topic_or_partition, f"there is no topic '{asked.topic}'"
            elif not 0 <= index < len(topic.partitions):
                code, sentence = ErrorCode.unknown_topic_or_partition, f"there is no partition {asked.topic}-{index}"
            else:
                code, sentence = ErrorCode.election_not_needed, f"broker {call.broker.node_id} leads it already"
            elected.append({"partition_id": index, "error_code": code, "error_message": sentence})
        results.append({"topic": asked.topic, "partition_result": elected})
    return {
        "error_code": ErrorCode.none if known else ErrorCode.invalid_request,
        "replica_election_results": results,
    }
