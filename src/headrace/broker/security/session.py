"""Who asks: a connection, or a request where a door has no state between them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from headrace.log.interface import Partition, Topic

if TYPE_CHECKING:
    from headrace.broker.security.identity import Identity, Scope

ANONYMOUS = "ANONYMOUS"
"""The name by which rules mean clients that have not shown who they are."""


class Session:
    """A client, with the user as whom it was authenticated."""

    __slots__ = (
        *("__weakref__", "client_id", "door", "host", "identity", "is_own", "number", "on_ended", "scope", "subject"),
        "user",
    )

    def __init__(
        self,
        number: int = 0,
        user: str = "",
        host: str = "",
        client_id: str = "",
        door: str = "",
        *,
        is_own: bool = False,
    ) -> None:
        self.number = number
        self.user = user
        """The name by which the client was authenticated; empty where it was not."""
        self.host = host
        """The address from which it came."""
        self.client_id = client_id
        """As the client calls itself: proves nothing."""
        self.door = door
        self.is_own = is_own
        """The broker itself asks: it may do everything."""
        self.identity: Identity | None = None
        """How the client was authenticated; kept by `Security.login`."""
        self.scope: Scope | None = None
        """What narrows its rights."""
        self.subject: Hashable = None
        """What its rights to publish depended on when they were last asked for, None before: kept by `Admissions`.
        Caches that sessions share are keyed by it."""
        self.on_ended: Callable[[str], None] | None = None
        """Called with the reason when the identity ends while the client is there: it has expired, its user is deleted
        or its token revoked. The session is anonymous by then; a door closes the connection."""

    @property
    def principal(self) -> str:
        """The user as Kafka's rules name it."""
        return f"User:{self.user or ANONYMOUS}"

    def partition_of(self, topic: Topic) -> Partition:
        """Where messages without a key go: all of a session to one partition, so that they keep their order."""
        return topic.partitions[self.number % len(topic.partitions)]


OWN = Session(is_own=True)
"""The broker itself."""
