"""Rules: who may, or must not, do what to which resources. Kafka's model.

A rule is for one user or all, from one address or all, for one operation or all, on the resources of one name, of a
prefix, or all of a kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.security.rights import IMPLIED, Operation, Pattern, Permission, Resource

ANY = "*"
"""As a user, a host or a literal name: each of them."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    permission: Permission
    user: str
    """The bare name, or `ANY`; clients that are not authenticated are `ANONYMOUS`."""
    host: str
    """An address, or `ANY`."""
    operation: Operation
    resource: Resource
    pattern: Pattern
    name: str
    role: str = ""
    """The role that it is a part of; empty: it stands for itself."""

    @property
    def principal(self) -> str:
        """The user as Kafka names it."""
        return f"User:{self.user}"

    def is_for_name(self, name: str) -> bool:
        """Whether it is about the resource of that name."""
        if self.pattern is Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (ANY, name)

    def is_for_operation(self, operation: Operation) -> bool:
        """Whether it is about that operation. A right to do something is one to see it, too."""
        if self.operation in (operation, Operation.ALL):
            return True
        return self.permission is Permission.ALLOW and operation in IMPLIED.get(self.operation, ())

    def __str__(self) -> str:
        on = f"{self.resource.name.lower().replace('_', '-')} {self.name}"
        if self.pattern is Pattern.PREFIXED:
            on += ANY
        where = "" if self.host == ANY else f" from {self.host}"
        role = f" ({self.role})" if self.role else ""
        return f"{self.permission.name.lower()} {self.user} {self.operation.name} on {on}{where}{role}"


def allow(
    user: str,
    operation: Operation,
    resource: Resource,
    name: str,
    pattern: Pattern = Pattern.LITERAL,
    host: str = ANY,
) -> Rule:
    """A rule that allows something."""
    return Rule(Permission.ALLOW, user, host, operation, resource, pattern, name)


def deny(
    user: str,
    operation: Operation,
    resource: Resource,
    name: str,
    pattern: Pattern = Pattern.LITERAL,
    host: str = ANY,
) -> Rule:
    """A rule that denies something."""
    return Rule(Permission.DENY, user, host, operation, resource, pattern, name)
