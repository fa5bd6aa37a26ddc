"""OffsetCommit (8), versions 2 to 10: a group has read up to here.

The reply comes when the commit is durable. A member commits in its generation, also while the group prepares a
rebalance; without a generation (-1) only an empty group takes commits. Partitions that do not exist get
UNKNOWN_TOPIC_OR_PARTITION, metadata above the limit OFFSET_METADATA_TOO_LARGE; the others are committed. Topics are
named by id from version 10 (UNKNOWN_TOPIC_ID). The retention time of versions 2 to 4 is kept. A generation of a group
that does not exist is ILLEGAL_GENERATION, from version 9 GROUP_ID_NOT_FOUND. A member of the consumer protocol commits
in its epoch (STALE_MEMBER_EPOCH), which takes version 9 (before: UNSUPPORTED_VERSION).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from headrace.broker.groups import Committer, Problem
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.partitions import commit_of, find_partitions

_NOT_FOUND_FROM = 9
_EPOCHS_FROM = 9
_TOPIC_ID_FROM = 10
_MILLISECOND = timedelta(milliseconds=1)


async def handle(call: Call, request: Any) -> dict[str, Any]:
    replies, existing = find_partitions(call, request.topics, call.version >= _TOPIC_ID_FROM)
    if existing:
        problems = await call.broker.groups.commit(
            request.group_id,
            [commit_of(each) for each in existing],
            Committer(
                request.member_id,
                getattr(request, "group_instance_id", None),
                request.generation_id_or_member_epoch,
                knows_epochs=call.version >= _EPOCHS_FROM,
            ),
            getattr(request, "retention_time", -_MILLISECOND) // _MILLISECOND,
        )
        for (reply, _, _), problem in zip(existing, problems, strict=True):
            if problem is Problem.GROUP_ID_NOT_FOUND and call.version < _NOT_FOUND_FROM:
                problem = Problem.ILLEGAL_GENERATION
            reply["error_code"] = problem
    return {"topics": replies}
