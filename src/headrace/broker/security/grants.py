"""Rules and roles: how they are added, removed, listed and explained.

Each call asks whether the session may, so that no door has to, and is durable when it returns; decisions that were made
before, admissions and what watches a right (`watches.py`) follow at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.security.filters import RuleFilter
from headrace.broker.security.rights import CLUSTER_NAME, Operation, Pattern, Permission, Resource
from headrace.broker.security.roles import Grant
from headrace.broker.security.rules import ANY, Rule
from headrace.broker.security.session import Session
from headrace.broker.security.store import Json, Key, RecordKind, StoredChange
from headrace.broker.security.words import check_operation
from headrace.errors import InvalidRule, TooManyIdentities

if TYPE_CHECKING:
    from headrace.broker.security.security import Security

TEXT_CHARACTERS_MAX = 1_024


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether something is allowed, and why."""

    is_allowed: bool
    why: str
    rule: Rule | None = None
    """The rule that decides."""


def check_rule(rule: Rule) -> None:
    """Raise InvalidRule unless the rule makes sense."""
    for what, text in (("user", rule.user), ("host", rule.host), ("name", rule.name)):
        if not 0 < len(text) <= TEXT_CHARACTERS_MAX or "\0" in text:
            raise InvalidRule(f"the {what} of a rule has 1 to {TEXT_CHARACTERS_MAX} characters (got {len(text)})")
    check_operation(rule.operation, rule.resource)
    if rule.resource is Resource.CLUSTER and (rule.name not in (CLUSTER_NAME, ANY) or rule.pattern != Pattern.LITERAL):
        raise InvalidRule(f"the one cluster is named {CLUSTER_NAME} (got '{rule.name}')")


class Grants:
    """All rules and roles."""

    def __init__(self, security: Security, rules_max: int) -> None:
        self._security = security
        self._rules_max = rules_max
        self._rules = security.store.table(RULE, self._on_rule)
        self._roles = security.store.table(ROLE, self._on_role)
        # How many rules there are, those of roles too.
        self._count = 0

    def _on_rule(self, key: Key, before: Rule | None, now: Rule | None) -> None:
        self._change([before] if before else [], [now] if now else [])

    def _on_role(self, key: Key, before: Grant | None, now: Grant | None) -> None:
        self._change(before.rules() if before else [], now.rules() if now else [])

    def _change(self, removed: Sequence[Rule], added: Sequence[Rule]) -> None:
        self._count += len(added) - len(removed)
        self._security.change_rules(removed, added)

    # --- rules --------------------------------------------------------------------------------------------------------

    def find_rules(self, session: Session, wanted: RuleFilter) -> list[Rule]:
        """The rules that a filter means, without those of roles. Raises NotAuthorized."""
        self._security.check(session, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
        return [rule for rule in self._rules.values.values() if wanted.fits(rule)]

    async def add_rules(self, session: Session, rules: Sequence[Rule]) -> int:
        """Add rules; how many of them are new. Raises NotAuthorized, InvalidRule or TooManyIdentities."""
        self._security.check(session, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME)
        for rule in rules:
            check_rule(rule)
        async with self._security.store.changing():
            new = {key: rule for rule in rules if (key := _key_of(rule)) not in self._rules.values}
            self._check_room(len(new))
            await self._security.store.write([self._rules.put(key, rule) for key, rule in new.items()])
            await self._notify(new.values())
        self._record(session, "acl.grant", new.values())
        return len(new)

    async def remove_rules(self, session: Session, filters: Sequence[RuleFilter]) -> list[list[Rule]]:
        """Remove the rules that filters mean; for each of them, which. Raises NotAuthorized."""
        self._security.check(session, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME)
        async with self._security.store.changing():
            rules = self._rules.values
            found = [[rule for rule in rules.values() if wanted.fits(rule)] for wanted in filters]
            gone = {_key_of(rule): rule for some in found for rule in some}
            await self._security.store.write([self._rules.drop(key) for key in gone])
            await self._notify(gone.values())
        self._record(session, "acl.revoke", gone.values())
        return found

    def _check_room(self, more: int) -> None:
        if self._count + more > self._rules_max:
            raise TooManyIdentities(
                f"there are {self._count} rules, and {more} more would be above {self._rules_max}. Use prefixes or "
                "roles, or raise rules_max."
            )

    def _record(self, session: Session, action: str, rules: Iterable[Rule]) -> None:
        for rule in rules:
            self._security.audit.record(session, action, rule.resource, rule.name, detail=str(rule))

    async def _notify(self, rules: Iterable[Rule]) -> None:
        users = {rule.user for rule in rules}
        if users:
            await self._security.notify_rules(users)

    # --- roles --------------------------------------------------------------------------------------------------------

    def roles(self, session: Session, user: str | None = None) -> list[Grant]:
        """The roles of a user, or of all. Raises NotAuthorized."""
        self._security.check(session, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
        return [each for _, each in sorted(self._roles.values.items()) if user in (None, each.user)]

    async def grant_role(self, session: Session, grant: Grant) -> None:
        """Give a user a role. Raises NotAuthorized, InvalidRule or TooManyIdentities."""
        self._security.check(session, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME)
        rules = grant.rules()
        for rule in rules:
            check_rule(rule)
        async with self._security.store.changing():
            if changes := self.put_changes(grant):
                await self._security.store.write(changes)
                await self._notify(rules)
        self._security.audit.record(session, "role.grant", Resource.USER, grant.user, detail=str(grant))

    async def revoke_role(self, session: Session, grant: Grant) -> None:
        """Take a role from a user. Raises NotAuthorized or InvalidRule."""
        self._security.check(session, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME)
        key = _key_of_role(grant)
        async with self._security.store.changing():
            if key not in self._roles.values:
                raise InvalidRule(f"'{grant.user}' does not have the role {grant}. See `headrace role list`.")
            await self._security.store.write([self._roles.drop(key)])
            await self._notify(grant.rules())
        self._security.audit.record(session, "role.revoke", Resource.USER, grant.user, detail=str(grant))

    def put_changes(self, grant: Grant) -> list[StoredChange]:
        """What gives a user a role; nothing where it has it. The caller writes it, and notifies. Raises
        TooManyIdentities."""
        key = _key_of_role(grant)
        if key in self._roles.values:
            return []
        self._check_room(len(grant.rules()))
        return [self._roles.put(key, grant)]

    def dropped_roles(self, user: str) -> list[StoredChange]:
        """What takes all roles from a user. The caller writes it, and notifies."""
        return [self._roles.drop(key) for key, grant in self._roles.values.items() if grant.user == user]

    # --- why ----------------------------------------------------------------------------------------------------------

    def explain(
        self, session: Session, user: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> Explanation:
        """What would be decided for a user at an address, and why. Raises NotAuthorized."""
        self._security.check(session, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
        return self._security.explain(user, host, operation, resource, name)


def _key_of(rule: Rule) -> Key:
    numbers = rule.permission, rule.operation, rule.resource, rule.pattern
    return (rule.user, rule.host, rule.name, *(each.name for each in numbers))


def _key_of_role(grant: Grant) -> Key:
    return grant.user, grant.role, grant.name, grant.group


def _read_rule(key: Key, value: Json) -> Rule:
    user, host, name, permission, operation, resource, pattern = key
    return Rule(Permission[permission], user, host, Operation[operation], Resource[resource], Pattern[pattern], name)


def _read_role(key: Key, value: Json) -> Grant:
    grant = Grant(*key)
    grant.rules()
    return grant


RULE: RecordKind[Rule] = RecordKind("rule", lambda rule: {}, _read_rule)
ROLE: RecordKind[Grant] = RecordKind("role", lambda grant: {}, _read_role)
