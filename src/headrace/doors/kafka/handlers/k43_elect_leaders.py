"""ElectLeaders (43), versions 0 to 2: the preferred leader takes over, for all partitions at once.

One node leads every partition, so an election for one of them is one for all. The preferred leader is the first of the
replicas that is in sync and lives; leadership is transferred to it, which loses nothing. An unclean election is for a
group without a leader, and then no node takes this request. As in Kafka, asking for all partitions (null) lists all
topics, and of their partitions those that were elected.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.membership import Membership
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.changes import within
from headrace.doors.kafka.errors import controller_code

_PREFERRED, _UNCLEAN = 0, 1

_Outcome = tuple[ErrorCode, str | None]


async def handle(call: Call, request: Any) -> dict[str, Any]:
    kind = getattr(request, "election_type", _PREFERRED)
    asked = request.topic_partitions
    topics = {name: len(topic.partitions) for name, topic in call.broker.topics.all.items()}
    if kind not in (_PREFERRED, _UNCLEAN):
        outcome: _Outcome = ErrorCode.invalid_request, f"there is no election of type {kind}"
    elif asked is not None and not any(0 <= i < topics.get(each.topic, 0) for each in asked for i in each.partitions):
        outcome = ErrorCode.none, None
    else:
        outcome = await _elect(call, kind, request)
    refused = outcome[0] in (ErrorCode.invalid_request, ErrorCode.not_controller)
    results = []
    if asked is None:
        needless = outcome[0] is ErrorCode.election_not_needed
        for name, count in topics.items():
            elected = () if needless else [_result(index, outcome) for index in range(count)]
            results.append({"topic": name, "partition_result": elected})
    else:
        for each in asked:
            count = topics.get(each.topic, 0)
            elected = [
                _result(index, outcome if refused or 0 <= index < count else _unknown(each, index))
                for index in each.partitions
            ]
            results.append({"topic": each.topic, "partition_result": elected})
    return {"error_code": outcome[0] if refused else ErrorCode.none, "replica_election_results": results}


def _result(index: int, outcome: _Outcome) -> dict[str, Any]:
    return {"partition_id": index, "error_code": outcome[0], "error_message": outcome[1]}


def _unknown(asked: Any, index: int) -> _Outcome:
    return ErrorCode.unknown_topic_or_partition, f"there is no partition {index} of a topic '{asked.topic}'"


async def _elect(call: Call, kind: int, request: Any) -> _Outcome:
    group = call.broker.membership
    if kind == _UNCLEAN:
        return (
            ErrorCode.election_not_needed,
            f"broker {group.leader} leads all partitions: an unclean election is for a group without a leader",
        )
    preferred = _preferred(group)
    if preferred == group.leader:
        first = group.replicas[0]
        if first == group.leader:
            return ErrorCode.election_not_needed, f"broker {group.leader} leads already"
        return ErrorCode.preferred_leader_not_available, f"broker {first} is not in sync, or does not run"
    [failed] = await within(request.timeout, [lambda: group.transfer(preferred)])
    if failed is None:
        return ErrorCode.none, None
    return controller_code(failed), str(failed)


def _preferred(group: Membership) -> int | None:
    """The node that is to lead when all is well."""
    return next((each for each in group.replicas if each in group.isr and each in group.nodes), group.leader)
