"""Identities: as whom a client was authenticated, how, until when, and what narrows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.broker.security.index import RuleIndex
from headrace.broker.security.rights import Operation, Permission, Resource
from headrace.broker.security.rules import ANY, Rule


class Scope:
    """What a token may be used for, at most: its user must be allowed to do it, too. Two of them are never equal, and
    each is made once: decisions are remembered by it."""

    __slots__ = ("_index", "rules")

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Of rules that allow something to any user at any address."""
        self.rules = tuple(rules)
        self._index = RuleIndex(rules)

    def decide(self, operation: Operation, resource: Resource, name: str) -> Rule | None:
        """The rule that allows it."""
        return self._index.decide(ANY, ANY, operation, resource, name)

    def allows_some(self, operation: Operation, resource: Resource) -> bool:
        """Whether it allows that on any resource of that kind."""
        return self._index.allows_some(ANY, ANY, operation, resource)

    def __repr__(self) -> str:
        return f"Scope({'; '.join(map(str, self.rules))})"


@dataclass(frozen=True, slots=True)
class Identity:
    """As whom a client was authenticated."""

    user: str
    how: str
    """`SCRAM-SHA-256`, `SCRAM-SHA-512`, `password`, `certificate`, `jwt`, `token` or `signature`."""
    expires_at: int | None = None
    """In milliseconds since the epoch; None: it does not expire by itself."""
    scope: Scope | None = None
    """What it may be used for at most; None: all that its user may do."""
    token_id: str = ""
    """Of an API token."""


def is_allowed(rule: Rule | None) -> bool:
    """What a decision means."""
    return rule is not None and rule.permission is Permission.ALLOW
