"""Roles: bundles of rules that belong together. Granting one is granting its rules, also those that it gets later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headrace.broker.security.rights import CLUSTER_NAME, Operation, Permission, Resource
from headrace.broker.security.rules import ANY, Rule
from headrace.broker.security.words import pattern_of
from headrace.errors import InvalidRule

ADMIN, OPERATOR, VIEWER, PRODUCER, CONSUMER = "admin", "operator", "viewer", "producer", "consumer"


@dataclass(frozen=True, slots=True)
class Grant:
    """A role that a user has. A name that ends in `*` means all that begin so."""

    user: str
    role: str
    name: str = ANY
    """Of a producer and a consumer: the topics."""
    group: str = ANY
    """Of a consumer: the groups that it may join."""

    def __str__(self) -> str:
        of = f" of {self.name}" if self.role in (PRODUCER, CONSUMER) else ""
        return f"{self.role}{of}{f' in {self.group}' if self.group != ANY else ''}"

    def rules(self) -> tuple[Rule, ...]:
        """What the role allows. Raises InvalidRule."""
        rights = ROLES.get(self.role)
        if rights is None:
            raise InvalidRule(f"there is no role '{self.role}'. Use one of {', '.join(ROLES)}.")
        if self.name != ANY and self.role not in (PRODUCER, CONSUMER):
            raise InvalidRule(f"the role {self.role} is for all topics (got '{self.name}'). Leave the name out.")
        if self.group != ANY and self.role != CONSUMER:
            raise InvalidRule(f"the role {self.role} has no group (got '{self.group}'). Leave it out.")
        return tuple(
            Rule(Permission.ALLOW, self.user, ANY, operation, resource, *pattern_of(name), role=f"role {self}")
            for operation, resource, name in rights(self)
        )


Right = tuple[Operation, Resource, str]


_KINDS = tuple(each for each in Resource if each is not Resource.CLUSTER)


def _admin(grant: Grant) -> Iterator[Right]:
    for kind in Resource:
        yield Operation.ALL, kind, ANY


def _operator(grant: Grant) -> Iterator[Right]:
    """Everything but users, rules and what changes the group of nodes."""
    for kind in _KINDS:
        if kind is not Resource.USER:
            yield Operation.ALL, kind, ANY
    for operation in (Operation.CREATE, Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE):
        yield operation, Resource.CLUSTER, CLUSTER_NAME


def _viewer(grant: Grant) -> Iterator[Right]:
    """To see everything but the messages."""
    for kind in (*_KINDS, Resource.CLUSTER):
        if kind is not Resource.USER:
            yield Operation.DESCRIBE, kind, ANY
    for kind in (Resource.TOPIC, Resource.GROUP, Resource.CLUSTER):
        yield Operation.DESCRIBE_CONFIGS, kind, ANY
    for kind in (Resource.SCHEMA, Resource.APP, Resource.CONSOLE):
        yield Operation.READ, kind, ANY


def _producer(grant: Grant) -> Iterator[Right]:
    for operation in (Operation.WRITE, Operation.CREATE):
        yield operation, Resource.TOPIC, grant.name
    for operation in (Operation.DESCRIBE, Operation.DELETE):
        yield operation, Resource.TIMER, grant.name
    yield Operation.READ, Resource.SCHEMA, ANY


def _consumer(grant: Grant) -> Iterator[Right]:
    yield Operation.READ, Resource.TOPIC, grant.name
    yield Operation.READ, Resource.GROUP, grant.group
    queues = grant.name if grant.name.endswith(ANY) else f"{grant.name}/*"
    for operation in (Operation.READ, Operation.CREATE):
        yield operation, Resource.QUEUE, queues
    yield Operation.READ, Resource.SCHEMA, ANY


ROLES: Mapping[str, Callable[[Grant], Iterator[Right]]] = {
    VIEWER: _viewer,
    OPERATOR: _operator,
    ADMIN: _admin,
    PRODUCER: _producer,
    CONSUMER: _consumer,
}
