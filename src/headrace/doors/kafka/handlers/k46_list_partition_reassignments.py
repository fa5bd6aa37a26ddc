"""ListPartitionReassignments (46), version 0: partitions do not move one by one, since every node of the group has all
of them. So none are under way, and as in Kafka a topic that does not exist has none either."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call


async def handle(call: Call, request: Any) -> dict[str, Any]:
    return {"error_code": ErrorCode.none, "error_message": None, "topics": ()}
