"""What doors and the parts of the broker ask, before they do something for a client."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.broker.security.rights import Operation, Resource
from headrace.broker.security.session import Session
from headrace.errors import NotAuthorized


class Security:
    """Identities, rights, quotas and audit of one broker."""

    def __init__(self) -> None:
        self.on_changed: list[Callable[[str | None], None]] = []
        """Called after the rights of a user have changed, with its name; None: those of any user may have."""

    @property
    def is_enforced(self) -> bool:
        """Whether anything can be refused: what asks for many rights at once can leave it out otherwise."""
        return False

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether a session may do that. A plain call; a refusal is counted, logged and audited here."""
        return True

    def check(self, session: Session, operation: Operation, resource: Resource, name: str) -> None:
        """Raise NotAuthorized unless a session may do that."""
        if not self.allows(session, operation, resource, name):
            raise NotAuthorized(operation.name, resource.name, name)

    def visible(self, session: Session, resource: Resource, names: Iterable[str]) -> list[str]:
        """Those of some names that a session may describe: what lists show. What is left out is no refusal."""
        return list(names)

    def operations(self, session: Session, resource: Resource, name: str) -> frozenset[Operation]:
        """What a session may do to a resource."""
        return frozenset(Operation) - {Operation.ALL}
