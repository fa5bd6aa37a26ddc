"""Who is in a group of the consumer protocol, what they subscribe to, and which partitions each of them has."""

from __future__ import annotations

from uuid import UUID

from headrace.broker.groups.consumer.consumer_member import ConsumerMember, Position, Traits
from headrace.broker.groups.consumer.heartbeat import JOINING, LEAVING_FOR_A_WHILE, Heartbeat
from headrace.broker.groups.consumer.places import NOWHERE, Places, each, join, less, within
from headrace.broker.groups.consumer.subscriptions import Subscriptions
from headrace.broker.groups.members import Members
from headrace.broker.groups.protocol import GroupError, Problem


class ConsumerRoster(Members[ConsumerMember]):
    """The members of one group."""

    def __init__(self, group_id: str) -> None:
        super().__init__()
        self.subscriptions = Subscriptions()
        # Which member has a partition, or has yet to give it back, and since which epoch.
        self.owners: dict[tuple[UUID, int], tuple[str, int]] = {}
        self._group_id = group_id

    # --- coming and going ---------------------------------------------------------------------------------------------

    def enter(self, member: ConsumerMember) -> None:
        """Take a member in, with what it has."""
        self._put(member)
        self.size += member.traits.size
        self.subscriptions.put(member.member_id, member.traits)
        self._own(member, NOWHERE, join(member.position.assigned, member.position.revoking))

    def remove(self, member: ConsumerMember) -> None:
        """Take a member out; what it had is free."""
        member.stop()
        self._remove(member)
        self.size -= member.traits.size
        self.subscriptions.drop(member.member_id)
        self._own(member, join(member.position.assigned, member.position.revoking), NOWHERE)

    def change_traits(self, member: ConsumerMember, traits: Traits) -> bool:
        """A member describes itself anew; whether it subscribes to something else."""
        old, member.traits = member.traits, traits
        self.size += traits.size - old.size
        if (old.topics, old.pattern) == (traits.topics, traits.pattern):
            return False
        self.subscriptions.put(member.member_id, traits)
        return True

    # --- partitions ---------------------------------------------------------------------------------------------------

    def move(self, member: ConsumerMember, after: Position) -> None:
        """A member gives partitions back, or gets some."""
        before, member.position = member.position, after
        self._own(member, join(before.assigned, before.revoking), join(after.assigned, after.revoking))

    def is_taken(self, topic: UUID, index: int) -> bool:
        """Whether a member has a partition, or has yet to give it back."""
        return (topic, index) in self.owners

    def held(self, member_id: str, epoch: int, topic: UUID, index: int) -> bool:
        """Whether the member has had a partition from that epoch to this day."""
        owner, since = self.owners.get((topic, index), ("", 0))
        return owner == member_id and since <= epoch <= self.members[member_id].position.epoch

    def _own(self, member: ConsumerMember, before: Places, after: Places) -> None:
        for place in each(less(before, after)):
            if self.owners.get(place, ("", 0))[0] == member.member_id:
                del self.owners[place]
        for place in each(less(after, before)):
            self.owners[place] = (member.member_id, member.position.epoch)

    # --- whose heartbeat it is ----------------------------------------------------------------------------------------

    def find(self, beat: Heartbeat) -> ConsumerMember | None:
        """The member that sends it, or whose place a static member takes; None for a new one. Raises GroupError."""
        if beat.epoch != JOINING:
            member = self.sender(beat)
            _judge_epoch(beat, member)
            return member
        known = self.members.get(beat.member_id)
        if beat.instance_id is None:
            return known
        if known is not None and known.instance_id != beat.instance_id:
            raise GroupError(
                Problem.INVALID_REQUEST,
                f"Member {beat.member_id} is in the group with instance id {known.instance_id}, and cannot take "
                f"{beat.instance_id}.",
            )
        known = self.members.get(self.holder(beat.instance_id) or "")
        if known and known.member_id != beat.member_id and known.position.epoch != LEAVING_FOR_A_WHILE:
            raise GroupError(
                Problem.UNRELEASED_INSTANCE_ID,
                f"Static member {beat.member_id} with instance id {beat.instance_id} cannot join the group because the "
                f"instance id is owned by {known.member_id} member.",
            )
        return known

    def sender(self, beat: Heartbeat) -> ConsumerMember:
        """The member that a heartbeat names by its ids. Raises GroupError."""
        problem = self.judge(beat.member_id, beat.instance_id)
        if problem is Problem.NONE:
            return self.members[beat.member_id]
        message = f"Instance id {beat.instance_id} is unknown."
        if problem is Problem.FENCED_INSTANCE_ID:
            message = (
                f"Static member {beat.member_id} with instance id {beat.instance_id} was fenced by member "
                f"{self.holder(beat.instance_id)}."
            )
        elif beat.instance_id is None:
            message = f"Member {beat.member_id} is not a member of group {self._group_id}."
        raise GroupError(problem, message)


def _judge_epoch(beat: Heartbeat, member: ConsumerMember) -> None:
    position = member.position
    if beat.epoch == position.epoch:
        return
    # The answer with its new epoch may have been lost.
    has_assigned = beat.owned is not None and within(beat.owned, position.assigned)
    if beat.epoch == position.previous_epoch and beat.epoch < position.epoch and has_assigned:
        return
    compared = "greater" if beat.epoch > position.epoch else "smaller"
    raise GroupError(
        Problem.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {compared} member epoch ({beat.epoch}) than the one known by the group "
        f"coordinator ({position.epoch}). The member must abandon all its partitions and rejoin.",
    )
