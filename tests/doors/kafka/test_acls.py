"""DescribeAcls, CreateAcls and DeleteAcls, and what they say of rules that Kafka's clients do not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.doors.kafka.probes import acl
from tests.doors.kafka.secured import as_user, secured_door
from tests.doors.kafka.wired import Wire

from headrace.broker.security import OWN, Operation, Resource
from headrace.broker.security.filters import RuleFilter
from headrace.broker.security.rules import allow

ANY: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
OF_QUEUE = allow("eve", Operation.READ, Resource.QUEUE, "orders/mail")


async def described(wire: Wire, version: int, **wanted: Any) -> list[tuple[int, str, int, str]]:
    reply = await wire.ask("describe_acls", version, **{**ANY, **wanted})
    assert reply.error_code is ErrorCode.none
    return [
        (each.resource_type, each.resource_name, rule.operation, rule.principal)
        for each in reply.resources
        for rule in each.acls
    ]


@pytest.mark.parametrize("version", range(1, 4))
async def test_rules_are_added_listed_and_removed(tmp_path: Path, version: int) -> None:
    async with secured_door(tmp_path) as door, as_user(door, "root") as wire:
        await door.broker.security.grants.add_rules(OWN, [OF_QUEUE])
        made = await wire.ask("create_acls", version, creations=[acl(""), {**acl(""), "operation": 4}])
        assert [each.error_code for each in made.results] == [ErrorCode.none] * 2
        both = [(2, "fish", 3, "User:eve"), (2, "fish", 4, "User:eve")]
        # What Kafka does not have is never shown to its clients, nor removed by them.
        assert sorted(await described(wire, version)) == both
        assert await described(wire, version, operation=4) == both[1:]
        assert await described(wire, version, principal_filter="User:bob") == []
        assert sorted(await described(wire, version, resource_name_filter="fish", pattern_type_filter=2)) == both
        gone = await wire.ask("delete_acls", version, filters=[ANY, {**ANY, "principal_filter": "eve"}])
        assert [each.error_code for each in gone.filter_results] == [ErrorCode.none, ErrorCode.invalid_request]
        assert sorted(each.operation for each in gone.filter_results[0].matching_acls) == [3, 4]
        assert await described(wire, version) == []
        assert door.broker.security.grants.find_rules(OWN, RuleFilter()) == [OF_QUEUE]


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": 1},
        {"resource_type": 100},
        {"resource_pattern_type": 2},
        {"operation": 1},
        {"operation": 9},
        {"permission_type": 1},
        {"principal": "eve"},
        {"principal": "Group:eves"},
        {"resource_name": ""},
        {"host": ""},
    ],
)
async def test_a_rule_that_makes_no_sense_is_refused_alone(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async with secured_door(tmp_path) as door, as_user(door, "root") as wire:
        made = await wire.ask("create_acls", 3, creations=[{**acl(""), **wrong}, acl("")])
        assert [each.error_code for each in made.results] == [ErrorCode.invalid_request, ErrorCode.none]
        assert len(door.broker.security.grants.find_rules(OWN, RuleFilter())) == 1


async def test_without_authorization_there_are_no_acls(tmp_path: Path) -> None:
    async with secured_door(tmp_path, authorization="off") as door, as_user(door, "ann") as wire:
        disabled = ErrorCode.security_disabled
        assert (await wire.ask("describe_acls", 3, **ANY)).error_code is disabled
        assert (await wire.ask("create_acls", 3, creations=[acl("")])).results[0].error_code is disabled
        assert (await wire.ask("delete_acls", 3, filters=[ANY])).filter_results[0].error_code is disabled
