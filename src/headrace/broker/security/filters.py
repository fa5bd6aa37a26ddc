"""Which rules are meant, where rules are listed and removed. Kafka's model, with its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from headrace.broker.security.rights import Operation, Pattern, Permission, Resource
from headrace.broker.security.rules import Rule


class PatternFilter(IntEnum):
    """How a filter's name is compared with a rule's."""

    ANY = 1
    """They are equal, whatever the rule's pattern."""
    MATCH = 2
    """The rule is about the resource of that name."""
    LITERAL = 3
    PREFIXED = 4


@dataclass(frozen=True, slots=True)
class RuleFilter:
    """What rules must have. None: anything."""

    resource: Resource | None = None
    name: str | None = None
    pattern: PatternFilter = PatternFilter.ANY
    user: str | None = None
    """As rules have it: the filter `*` means rules for all users, not all rules."""
    host: str | None = None
    operation: Operation | None = None
    """As rules have it: the filter `ALL` means rules for all operations, not all rules."""
    permission: Permission | None = None

    def fits(self, rule: Rule) -> bool:
        """Whether a rule has that."""
        wanted = self.resource, self.user, self.host, self.operation, self.permission
        found = rule.resource, rule.user, rule.host, rule.operation, rule.permission
        if any(one is not None and one != other for one, other in zip(wanted, found, strict=True)):
            return False
        if self.pattern in (PatternFilter.LITERAL, PatternFilter.PREFIXED) and rule.pattern != Pattern(self.pattern):
            return False
        if self.name is None:
            return True
        return rule.is_for_name(self.name) if self.pattern is PatternFilter.MATCH else rule.name == self.name
