"""Who asks: a connection, or a request where a door has no state between them."""

from __future__ import annotations

from headrace.log.interface import Partition, Topic

ANONYMOUS = "ANONYMOUS"
"""The name by which rules mean clients that have not shown who they are."""


class Session:
    """A client, with the user as whom it was authenticated."""

    __slots__ = ("client_id", "door", "host", "number", "user")

    def __init__(self, number: int = 0, user: str = "", host: str = "", client_id: str = "", door: str = "") -> None:
        self.number = number
        self.user = user
        """The name by which the client was authenticated; empty where it was not."""
        self.host = host
        """The address from which it came."""
        self.client_id = client_id
        """As the client calls itself: proves nothing."""
        self.door = door

    @property
    def principal(self) -> str:
        """The user as Kafka's rules name it."""
        return f"User:{self.user or ANONYMOUS}"

    def partition_of(self, topic: Topic) -> Partition:
        """Where messages without a key go: all of a session to one partition, so that they keep their order."""
        return topic.partitions[self.number % len(topic.partitions)]
