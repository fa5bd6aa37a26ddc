"""OffsetFetch (9), versions 1 to 10: how far a group has read.

Up to version 7 one group is asked for, from version 8 several. Null topics (from version 2) mean all that have a
commit. Where there is none, or no such group, the offset is -1. Topics are named by id from version 10
(UNKNOWN_TOPIC_ID). With `require_stable` (from version 7) an offset that an open transaction may change is
UNSTABLE_OFFSET_COMMIT, and the client asks again. A member of the consumer protocol gives its id and epoch (version 9),
and is refused where they are not the group's (STALE_MEMBER_EPOCH). An offset beyond what an unclean start left of the
log is cut back.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.groups import Problem
from headrace.broker.groups.group_codec import Committed
from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.rights import visible

_GROUP_ERROR_FROM = 2
_SEVERAL_FROM = 8
_TOPIC_ID_FROM = 10


async def handle(call: Call, request: Any) -> dict[str, Any]:
    stable = getattr(request, "require_stable", False)
    if call.version >= _SEVERAL_FROM:
        return {"groups": [await _group(call, group, stable) for group in request.groups]}
    return await _group(call, request, stable)


async def _group(call: Call, asking: Any, stable: bool) -> dict[str, Any]:
    if not call.allows(Operation.DESCRIBE, Resource.GROUP, asking.group_id):
        return _refuse(call, asking)
    groups = call.broker.groups
    group_id, topics = asking.group_id, asking.topics

    def entry(name: str, index: int, committed: Committed | None, code: ErrorCode = ErrorCode.none) -> dict[str, Any]:
        if stable and code is ErrorCode.none and groups.unstable(group_id, name, index):
            return _partition(index, None, ErrorCode.unstable_offset_commit)
        return _partition(index, committed, code)

    named = [(topic, _name(call, topic)) for topic in topics or ()]
    denied = {
        name for _, name in named if name is not None and not call.allows(Operation.DESCRIBE, Resource.TOPIC, name)
    }
    asked: dict[str, list[int]] = {}
    for topic, name in named:
        if name is not None and name not in denied:
            asked.setdefault(name, []).extend(topic.partition_indexes)
    problem, found = await groups.committed(
        group_id,
        None if topics is None else asked,
        member_id=getattr(asking, "member_id", None),
        member_epoch=getattr(asking, "member_epoch", -1),
    )
    replies = []
    if topics is None:
        for name in await visible(call, Resource.TOPIC, found):
            partitions = found[name]
            known = call.broker.log.topics.get(name)
            if call.version >= _TOPIC_ID_FROM and known is None:
                continue
            entries = [entry(name, index, committed) for index, committed in partitions.items()]
            replies.append({"name": name, "topic_id": known.id if known else None, "partitions": entries})
    elif problem is Problem.NONE or call.version < _GROUP_ERROR_FROM:
        for topic, name in named:
            code = ErrorCode.unknown_topic_id if name is None else ErrorCode(problem)
            code = ErrorCode.topic_authorization_failed if name in denied else code
            of_topic = found.get(name or "", {})
            entries = [entry(name or "", index, of_topic.get(index), code) for index in topic.partition_indexes]
            replies.append({"name": name or "", "topic_id": getattr(topic, "topic_id", None), "partitions": entries})
    return {"group_id": group_id, "error_code": problem, "topics": replies}


def _refuse(call: Call, asking: Any) -> dict[str, Any]:
    """Up to version 1 an error stands with each partition alone."""
    code = ErrorCode.group_authorization_failed
    topics: list[dict[str, Any]] = []
    if call.version < _GROUP_ERROR_FROM:
        topics = [
            {"name": each.name, "partitions": [_partition(index, None, code) for index in each.partition_indexes]}
            for each in asking.topics
        ]
    return {"group_id": asking.group_id, "error_code": code, "topics": topics}


def _name(call: Call, topic: Any) -> str | None:
    if call.version < _TOPIC_ID_FROM:
        return str(topic.name)
    known = call.broker.log.topics.by_id.get(topic.topic_id)
    return None if known is None else known.name


def _partition(index: int, committed: Committed | None, code: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": -1 if committed is None else committed.offset,
        "committed_leader_epoch": -1 if committed is None else committed.leader_epoch,
        "metadata": "" if committed is None else committed.metadata,
        "error_code": code,
    }
