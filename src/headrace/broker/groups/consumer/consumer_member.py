"""One member of a group of the consumer protocol: its subscription, and how far it has followed the group."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

from headrace.broker.groups.consumer.heartbeat import Heartbeat
from headrace.broker.groups.consumer.places import Places
from headrace.broker.groups.deadline import Deadline

# What a string takes beside its characters, of which each takes up to four bytes.
WORD_BYTES = 64


class Step(IntEnum):
    """How far a member is on its way to its target, by the numbers that Kafka stores."""

    STABLE = 0
    """It has all that it shall have."""
    UNREVOKED = 1
    """It has yet to give something back, and stays in its epoch until then."""
    UNRELEASED = 2
    """It waits for what others have yet to give back."""


@dataclass(frozen=True, slots=True)
class Traits:
    """How a member describes itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None

    @property
    def size(self) -> int:
        """About how much of memory they take; records take less."""
        words = (self.instance_id or "", self.rack_id or "", self.client_id, self.pattern, *self.topics)
        return sum(4 * len(word) + WORD_BYTES for word in words)

    def after(self, beat: Heartbeat) -> Traits:
        """What they are once a heartbeat has been heard."""
        return replace(
            self,
            instance_id=self.instance_id if beat.instance_id is None else beat.instance_id,
            rack_id=self.rack_id if beat.rack_id is None else beat.rack_id,
            client_id=beat.client_id,
            client_host=beat.client_host,
            topics=self.topics if beat.topics is None else tuple(sorted(set(beat.topics))),
            pattern=self.pattern if beat.pattern is None else beat.pattern,
            rebalance_timeout_ms=self.rebalance_timeout_ms
            if beat.rebalance_timeout_ms == -1
            else beat.rebalance_timeout_ms,
            assignor=self.assignor if beat.assignor is None else beat.assignor,
        )


@dataclass(frozen=True, slots=True)
class Position:
    """Where a member is: in which epoch, with which partitions."""

    epoch: int = 0
    previous_epoch: int = 0
    step: Step = Step.STABLE
    assigned: Places = field(default_factory=dict)
    """What it may use."""
    revoking: Places = field(default_factory=dict)
    """What it must give back; no other member gets it before."""


@dataclass(slots=True, eq=False)
class ConsumerMember:
    """A member."""

    member_id: str
    traits: Traits
    position: Position
    sent: Places | None = None
    """The assignment of the last answer to it, where that is known."""
    session: Deadline | None = None
    revocation: Deadline | None = None

    @property
    def instance_id(self) -> str | None:
        return self.traits.instance_id

    def stop(self) -> None:
        """No timer of it is left."""
        for deadline in (self.session, self.revocation):
            if deadline is not None:
                deadline.cancel()
