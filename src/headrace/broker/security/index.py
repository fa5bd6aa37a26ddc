"""The index of rules, by which a decision looks at the few rules that are about its user and resource.

Rules stand by user and kind of resource, and there by name: literal names in a table, prefixes in another one that is
asked once for each length that a prefix has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.broker.security.rights import Operation, Pattern, Permission, Resource
from headrace.broker.security.rules import ANY, Rule


class _Names:
    """The rules of one user on one kind of resource."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, list[Rule]] = {}
        self.prefixed: dict[str, list[Rule]] = {}
        self.lengths: dict[int, int] = {}
        """Of the prefixes, in ascending order, and how many there are of each."""

    def put(self, rule: Rule) -> None:
        table = self._table(rule)
        rules = table.get(rule.name)
        if rules is not None:
            rules.append(rule)
            return
        table[rule.name] = [rule]
        if rule.pattern is Pattern.PREFIXED:
            self._count(len(rule.name), 1)

    def discard(self, rule: Rule) -> None:
        table = self._table(rule)
        rules = table[rule.name]
        rules.remove(rule)
        if not rules:
            del table[rule.name]
            if rule.pattern is Pattern.PREFIXED:
                self._count(len(rule.name), -1)

    def _table(self, rule: Rule) -> dict[str, list[Rule]]:
        return self.prefixed if rule.pattern is Pattern.PREFIXED else self.literal

    def _count(self, length: int, more: int) -> None:
        count = self.lengths.get(length, 0) + more
        if count == 0:
            del self.lengths[length]
        elif count == more:
            self.lengths = dict(sorted({**self.lengths, length: count}.items()))
        else:
            self.lengths[length] = count

    def of(self, name: str) -> Iterator[list[Rule]]:
        """The rules that are about the resource of that name."""
        if (rules := self.literal.get(name)) is not None:
            yield rules
        if name != ANY and (rules := self.literal.get(ANY)) is not None:
            yield rules
        size = len(name)
        for length in self.lengths:
            if length > size:
                return
            if (rules := self.prefixed.get(name[:length])) is not None:
                yield rules

    @property
    def all(self) -> Iterator[Rule]:
        for table in (self.literal, self.prefixed):
            for rules in table.values():
                yield from rules


class RuleIndex:
    """Some rules, as decisions look for them."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._by_user: dict[str, dict[Resource, _Names]] = {}
        self._hosts = 0
        for rule in rules:
            self.put(rule)

    @property
    def has_hosts(self) -> bool:
        """Whether any rule is about one address: decisions then depend on it."""
        return self._hosts > 0

    def put(self, rule: Rule) -> None:
        """One more rule; the same one may be there several times."""
        self._hosts += rule.host != ANY
        self._by_user.setdefault(rule.user, {}).setdefault(rule.resource, _Names()).put(rule)

    def discard(self, rule: Rule) -> None:
        """One rule less, which is there."""
        self._hosts -= rule.host != ANY
        by_resource = self._by_user[rule.user]
        names = by_resource[rule.resource]
        names.discard(rule)
        if not names.literal and not names.prefixed:
            del by_resource[rule.resource]
            if not by_resource:
                del self._by_user[rule.user]

    def _names(self, user: str, resource: Resource) -> list[_Names]:
        found = (self._by_user.get(each) for each in ((user,) if user == ANY else (user, ANY)))
        return [rules[resource] for rules in found if rules is not None and resource in rules]

    def decide(self, user: str, host: str, operation: Operation, resource: Resource, name: str) -> Rule | None:
        """The rule that decides: one that denies before one that allows. None: no rule is about this, and so it is
        not allowed."""
        allowing: Rule | None = None
        for names in self._names(user, resource):
            for rules in names.of(name):
                for rule in rules:
                    if rule.host not in (ANY, host) or not rule.is_for_operation(operation):
                        continue
                    if rule.permission is Permission.DENY:
                        return rule
                    allowing = allowing or rule
        return allowing

    def allows_some(self, user: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Whether there can be a resource of that kind on which the operation is allowed, as Kafka asks it."""
        allowed: list[Rule] = []
        denied_prefixes: list[str] = []
        for names in self._names(user, resource):
            for rule in names.all:
                if rule.host not in (ANY, host) or not rule.is_for_operation(operation):
                    continue
                if rule.permission is Permission.ALLOW:
                    allowed.append(rule)
                elif rule.pattern is Pattern.PREFIXED:
                    denied_prefixes.append(rule.name)
                elif rule.name == ANY:
                    return False
        prefixes = tuple(denied_prefixes)
        for rule in allowed:
            if rule.pattern is Pattern.LITERAL and rule.name != ANY:
                decided = self.decide(user, host, operation, resource, rule.name)
                if decided is not None and decided.permission is Permission.ALLOW:
                    return True
            elif rule.pattern is Pattern.LITERAL or not rule.name.startswith(prefixes):
                # Of all names, no finite number of prefixes leaves none.
                return True
        return False
