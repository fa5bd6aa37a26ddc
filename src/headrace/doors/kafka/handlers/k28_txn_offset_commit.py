"""TxnOffsetCommit (28), versions 0 to 5: a group has read up to here, if the transaction commits.

The reply comes when the offsets are durable; readers of offsets see them once the transaction has committed. From
version 3 the member and its generation are checked, so that a consumer that lost its partitions commits nothing. From
version 5 the broker adds the group to the transaction by itself; before, AddOffsetsToTxn must have done it.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.groups import Commit, Committer
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import coordinator_code
from headrace.doors.kafka.partitions import commit_of, find_partitions
from headrace.errors import HeadraceError

_NEVER_FENCED = 1 << 15
_BROKER_ADDS_FROM = 5


async def handle(call: Call, request: Any) -> dict[str, Any]:
    replies, existing = find_partitions(call, request.topics)
    codes = await _commit(call, request, [commit_of(each) for each in existing])
    for (reply, _, _), code in zip(existing, codes, strict=True):
        reply["error_code"] = code
    return {"topics": replies}


async def _commit(call: Call, request: Any, commits: list[Commit]) -> list[ErrorCode]:
    if not request.group_id:
        return [ErrorCode.invalid_group_id] * len(commits)
    try:
        problems = await call.broker.transactions.commit_offsets(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.group_id,
            commits,
            2 if call.version >= _BROKER_ADDS_FROM else 1,
            Committer(
                getattr(request, "member_id", ""),
                getattr(request, "group_instance_id", None),
                getattr(request, "generation_id", -1),
            ),
        )
    except (HeadraceError, OSError) as error:
        return [coordinator_code(error, call.version, _NEVER_FENCED)] * len(commits)
    return [ErrorCode(problem) for problem in problems]
