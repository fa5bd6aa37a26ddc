"""Kafka's access control lists on the wire, as the broker's rules.

Kafka's numbers are the broker's own, so little is to be translated: principals have a type in front of the name, of
which `User` is the only one here, and rules about what Kafka does not have (queues, timers, ...) are never shown to its
clients, nor removed by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeVar

from headrace.broker.security import Operation, Resource
from headrace.broker.security.filters import PatternFilter, RuleFilter
from headrace.broker.security.rights import Pattern, Permission
from headrace.broker.security.rules import Rule
from headrace.errors import InvalidRule

KAFKAS = tuple(each for each in Resource if each.is_kafkas)
ANY = 1
PREFIX = "User:"

E = TypeVar("E", bound=IntEnum)


def rule_of(asked: Any) -> Rule:
    """The rule that a creation asks for. Raises InvalidRule."""
    return Rule(
        _member(Permission, asked.permission_type, "permission"),
        _user(asked.principal),
        asked.host,
        _member(Operation, asked.operation, "operation"),
        _kafkas(asked.resource_type),
        _member(Pattern, getattr(asked, "resource_pattern_type", Pattern.LITERAL), "pattern type"),
        asked.resource_name,
    )


def filters_of(asked: Any) -> list[RuleFilter]:
    """What a filter means, for each kind of resource that Kafka's clients know. Raises InvalidRule."""
    kinds = KAFKAS if asked.resource_type_filter == ANY else (_kafkas(asked.resource_type_filter),)
    pattern = _member(PatternFilter, getattr(asked, "pattern_type_filter", Pattern.LITERAL), "pattern type")
    user = None if asked.principal_filter is None else _user(asked.principal_filter)
    operation = None if asked.operation == ANY else _member(Operation, asked.operation, "operation")
    permission = None if asked.permission_type == ANY else _member(Permission, asked.permission_type, "permission")
    return [
        RuleFilter(kind, asked.resource_name_filter, pattern, user, asked.host_filter, operation, permission)
        for kind in kinds
    ]


def listed(rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Rules as DescribeAcls shows them, by resource."""
    by_resource: dict[tuple[Resource, str, Pattern], list[Rule]] = {}
    for rule in rules:
        by_resource.setdefault((rule.resource, rule.name, rule.pattern), []).append(rule)
    return [
        {
            "resource_type": resource,
            "resource_name": name,
            "pattern_type": pattern,
            "acls": [_describe(rule) for rule in some],
        }
        for (resource, name, pattern), some in by_resource.items()
    ]


def matched(rule: Rule) -> dict[str, Any]:
    """A rule as DeleteAcls shows it."""
    return {
        "error_code": 0,
        "error_message": None,
        "resource_type": rule.resource,
        "resource_name": rule.name,
        "pattern_type": rule.pattern,
        **_describe(rule),
    }


def _describe(rule: Rule) -> dict[str, Any]:
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation,
        "permission_type": rule.permission,
    }


def _user(principal: str) -> str:
    if not principal.startswith(PREFIX):
        raise InvalidRule(f"a principal is {PREFIX} and a name (got '{principal[:256]}')")
    return principal.removeprefix(PREFIX)


def _kafkas(number: int) -> Resource:
    kind = _member(Resource, number, "resource type")
    if not kind.is_kafkas:
        raise InvalidRule(f"there is no resource type {number}")
    return kind


def _member(kind: type[E], number: int, what: str) -> E:
    try:
        return kind(number)
    except ValueError:
        raise InvalidRule(f"there is no {what} {number}") from None
