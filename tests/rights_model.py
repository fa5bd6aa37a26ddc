"""A plain model of rules, and rules by chance: what every door's matrix of identities, operations and resources is
compared with. It shares nothing with `RuleIndex` but the words."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import Pattern, Permission
from headrace.broker.security.rules import Rule

SEES = (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)


def _fits(rule: Rule, user: str, operation: Operation, resource: Resource, name: str) -> bool:
    if rule.resource is not resource or rule.user not in ("*", user) or rule.host not in ("*", "127.0.0.1"):
        return False
    if rule.pattern is Pattern.PREFIXED:
        if not name.startswith(rule.name):
            return False
    elif rule.name not in ("*", name):
        return False
    if rule.operation in (operation, Operation.ALL):
        return True
    if rule.permission is Permission.DENY:
        return False
    if operation is Operation.DESCRIBE:
        return rule.operation in SEES
    return operation is Operation.DESCRIBE_CONFIGS and rule.operation is Operation.ALTER_CONFIGS


def allows(rules: Sequence[Rule], user: str, operation: Operation, resource: Resource, name: str) -> bool:
    """Whether a user on this machine may do that."""
    fitting = [rule for rule in rules if _fits(rule, user, operation, resource, name)]
    return bool(fitting) and all(rule.permission is Permission.ALLOW for rule in fitting)


def rules_by_chance(
    seed: int, users: Sequence[str], asked: Sequence[tuple[Operation, Resource, str]], count: int = 12
) -> list[Rule]:
    """Rules about what will be asked for: about each name, a beginning of it, or all, for some users and addresses."""
    random = Random(seed)
    rules = []
    for _ in range(count):
        operation, resource, name = random.choice(asked)
        pattern = random.choice((Pattern.LITERAL, Pattern.LITERAL, Pattern.PREFIXED))
        if pattern is Pattern.PREFIXED:
            name = name[: random.randint(1, len(name))]
        elif random.random() < 0.2:
            name = "*"
        rules.append(
            Rule(
                Permission.DENY if random.random() < 0.2 else Permission.ALLOW,
                random.choice((*users, "*")),
                random.choice(("*", "*", "127.0.0.1", "10.1.2.3")),
                random.choice((operation, operation, operation, Operation.ALL)),
                resource,
                pattern,
                name,
            )
        )
    return rules
