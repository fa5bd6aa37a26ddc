"""ACLs and reassignments, which are not here: clients that ask are told so in Kafka's terms.

The expected codes are what Apache Kafka 4.3.1 answered to the same requests, without an authorizer.
"""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.doors.kafka.local_client import LocalClient

ANY: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
ALLOWED: dict[str, Any] = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


@pytest.mark.parametrize("version", range(1, 4))
async def test_acls_are_disabled(ask: LocalClient, version: int) -> None:
    described = await ask("describe_acls", version, **ANY)
    assert (described.error_code, described.resources) == (ErrorCode.security_disabled, ())
    assert described.error_message
    created = await ask("create_acls", version, creations=[ALLOWED, ALLOWED])
    assert [each.error_code for each in created.results] == [ErrorCode.security_disabled] * 2
    deleted = await ask("delete_acls", version, filters=[ANY, ANY])
    assert [(each.error_code, each.matching_acls) for each in deleted.filter_results] == [
        (ErrorCode.security_disabled, ())
    ] * 2


@pytest.mark.parametrize("topics", [None, [], [{"name": "t", "partition_indexes": [0, 7]}]])
async def test_nothing_is_being_reassigned(ask: LocalClient, topics: Any) -> None:
    reply = await ask("list_partition_reassignments", 0, timeout=1000, topics=topics)
    assert (reply.error_code, reply.error_message, reply.topics) == (ErrorCode.none, None, ())
