"""Operations, resources and names as people write them: `write`, `transactional-id`, `orders*`."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from headrace.broker.security.rights import OPERATIONS, Operation, Pattern, Resource
from headrace.broker.security.rules import ANY, Rule
from headrace.errors import InvalidRule

Kind = TypeVar("Kind", bound=IntEnum)

TEXT_MAX = 256


def word(value: IntEnum) -> str:
    """A member of an enumeration as people write it."""
    return value.name.lower().replace("_", "-")


def parse_word(kind: type[Kind], text: str, what: str) -> Kind:
    """The member of that name. Raises InvalidRule."""
    try:
        return kind[text.upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(map(word, kind))
        raise InvalidRule(f"there is no {what} '{text[:TEXT_MAX]}'. Use one of {known}.") from None


def parse_operation(text: str) -> Operation:
    return parse_word(Operation, text, "operation")


def parse_resource(text: str) -> Resource:
    return parse_word(Resource, text, "kind of resource")


def check_operation(operation: Operation, resource: Resource) -> None:
    """Raise InvalidRule where there is no such operation on that kind of resource."""
    if operation is not Operation.ALL and operation not in OPERATIONS[resource]:
        known = ", ".join(sorted(map(word, OPERATIONS[resource])))
        raise InvalidRule(f"there is no {word(operation)} on a {word(resource)}. Use one of all, {known}.")


def pattern_of(name: str) -> tuple[Pattern, str]:
    """A name as it is written: with `*` at its end it is a prefix, and `*` alone is every name."""
    if name == ANY or not name.endswith(ANY):
        return Pattern.LITERAL, name
    return Pattern.PREFIXED, name[:-1]


def written_name(rule: Rule) -> str:
    """The name of a rule as it is written."""
    return rule.name + ANY if rule.pattern is Pattern.PREFIXED else rule.name
