"""Producer groups: the live producers that can be asked what became of a prepared message.

A heartbeat brings a producer into its groups, whichever of RocketMQ's protocols it speaks; the end of its connection
takes it out. While it is in a group, check-back (`broker/prepared`) may ask it about any message of that group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.broker.prepared import Check, Listener
from headrace.broker.prepared.check_back import CheckBack
from headrace.doors.rocketmq.frames import VERSION

GROUP_CHARACTERS_MAX = 255
# Of one producer: about the messages of the others it is not asked.
GROUPS_MAX = 1_000


@dataclass(slots=True, eq=False)
class Producer:
    """A client that sends, on one connection."""

    client_id: str
    address: str
    """HOST:PORT that it came from."""
    ask: Callable[[Check], None]
    """Ask it about a message, without waiting."""
    language: int = 0
    version: int = VERSION
    heard_ms: int = 0
    """When its last heartbeat came; 0: that is not known."""
    groups: dict[str, Listener] = field(default_factory=dict)
    is_closed: bool = False


class ProducerGroups:
    """The live producers of all groups."""

    def __init__(self, check_back: CheckBack) -> None:
        self._check_back = check_back
        self._members: dict[str, dict[Producer, None]] = {}

    def join(self, group: str, producer: Producer) -> None:
        """A heartbeat names a group of a producer."""
        if group in producer.groups or producer.is_closed or not 0 < len(group) <= GROUP_CHARACTERS_MAX:
            return
        if len(producer.groups) >= GROUPS_MAX:
            return
        producer.groups[group] = self._check_back.listen(group, producer.ask)
        self._members.setdefault(group, {})[producer] = None

    def leave(self, group: str, producer: Producer) -> None:
        """A producer leaves a group."""
        listener = producer.groups.pop(group, None)
        if listener is None:
            return
        listener.close()
        del self._members[group][producer]
        if not self._members[group]:
            del self._members[group]

    def leave_all(self, producer: Producer) -> None:
        """The connection of a producer is lost."""
        producer.is_closed = True
        for group in list(producer.groups):
            self.leave(group, producer)

    def members(self, group: str) -> Sequence[Producer]:
        """The producers of a group."""
        return list(self._members.get(group, ()))

    @property
    def names(self) -> Sequence[str]:
        """The groups that have producers."""
        return list(self._members)
