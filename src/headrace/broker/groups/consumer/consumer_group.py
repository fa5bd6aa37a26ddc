"""One group of the consumer protocol.

The group's epoch rises when members come, go or subscribe to something else, and when their topics change. The next
heartbeat has the targets computed for the new epoch; each member then follows by its own heartbeats
(`reconciliation.py`), and its epoch shows how far it is. Members wait only for partitions that others have yet to give
back.

Everything here is plain, synchronous code. An answer waits for all that was written before it (`saved`), so no member
ever acts on what a power cut could take back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import structlog

from headrace.broker.groups.consumer.assignors import ASSIGNORS, choose_assignor
from headrace.broker.groups.consumer.changed_records import ChangedRecords, Storage
from headrace.broker.groups.consumer.consumer_codec import (
    EPOCH,
    MEMBER,
    POSITION,
    TARGET,
    TARGET_EPOCH,
    ConsumerKey,
    StoredConsumerGroup,
    write_epoch,
    write_member,
    write_position,
    write_target,
    write_target_epoch,
)
from headrace.broker.groups.consumer.consumer_member import ConsumerMember, Position, Step, Traits
from headrace.broker.groups.consumer.consumer_roster import ConsumerRoster
from headrace.broker.groups.consumer.heartbeat import (
    LEAVING,
    LEAVING_FOR_A_WHILE,
    Answer,
    Heartbeat,
)
from headrace.broker.groups.consumer.places import NOWHERE, Places, join
from headrace.broker.groups.consumer.reconciliation import follow
from headrace.broker.groups.consumer.settings import GroupSettings
from headrace.broker.groups.consumer.subscriptions import compile_pattern
from headrace.broker.groups.consumer.viewer import HeldViewer
from headrace.broker.groups.deadline import Deadline
from headrace.broker.groups.members import GROUP_BYTES_MAX
from headrace.broker.groups.offsets import GroupOffsets, TopicPartition
from headrace.broker.groups.protocol import Commit, Committer, GroupError, Leaver, Problem, State
from headrace.broker.groups.subscription import CONSUMER
from headrace.log.interface import Topic

log = structlog.get_logger("headrace.groups")

# Targets of a large group take a while on the loop: where they took longer than this, they are next due so many times
# as long after. A member that comes before waits, and a burst of members costs a share of the loop, not all of it.
ASSIGNING_SECONDS = 0.02
ASSIGNING_REST = 10
# Each pattern is matched with each topic.
PATTERNS_MAX = 100


class ConsumerHost(Storage, Protocol):
    """What a group of the consumer protocol needs of its coordinator."""

    @property
    def max_size(self) -> int: ...
    def settings_of(self, group_id: str) -> GroupSettings: ...
    @property
    def catalogue(self) -> Mapping[str, Topic]: ...
    @property
    def catalogue_turn(self) -> int:
        """A number that rises when the catalogue, or who may see what of it, changes."""
        ...

    @property
    def is_guarded(self) -> bool:
        """Whether members may see some topics and not others."""
        ...


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """A member as administrators see it."""

    member_id: str
    traits: Traits
    epoch: int
    assignment: Places
    """What it has, be it that it must give some of it back."""
    target: Places


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescription:
    """A group as administrators see it."""

    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerDescription, ...]


class ConsumerGroup:
    """A group of the consumer protocol, and its committed offsets."""

    kind = family = "consumer"
    protocol_type = CONSUMER
    is_void = False
    """A group that was joined is stored."""

    def __init__(self, group_id: str, host: ConsumerHost) -> None:
        self.group_id = group_id
        self.offsets = GroupOffsets()
        self.epoch = 0
        self.assignment_epoch = 0
        self.roster = ConsumerRoster(group_id)
        self._host = host
        self._targets: dict[str, Places] = {}
        self._fingerprint = 0
        # When targets are next due, by the loop's time.
        self._due = 0.0
        self._dead = False
        self._records = ChangedRecords(group_id, host, self._value)
        self.flush = self._records.flush
        self.saved = self._records.saved
        self.tombstones = self._records.tombstones

    # --- what members ask ---------------------------------------------------------------------------------------------

    def heartbeat(self, beat: Heartbeat) -> Answer:
        """One heartbeat; its answer may be given once all is `saved`. Raises GroupError, having changed nothing."""
        if beat.epoch in (LEAVING, LEAVING_FOR_A_WHILE):
            return self._leave(beat)
        known = self.roster.find(beat)
        traits = (known.traits if known else Traits()).after(beat)
        self._judge_room(known, traits)
        if traits.pattern and (known is None or traits.pattern != known.traits.pattern):
            self._judge_pattern(traits.pattern)
        member = self._hear(beat, known, traits)
        self.roster.subscriptions.view(member.member_id, beat.viewer)
        self._look()
        self._assign()
        self._follow(member, beat.owned)
        self._touch(member)
        self.flush()
        is_due = beat.is_full or member.position.assigned != member.sent
        return Answer(
            member_id=member.member_id,
            epoch=member.position.epoch,
            heartbeat_ms=self._host.settings_of(self.group_id).heartbeat_ms,
            assignment=member.position.assigned if is_due else None,
        )

    def answered(self, answer: Answer) -> None:
        """The answer to a heartbeat is given: the same assignment is not sent to its member again."""
        member = self.roster.members.get(answer.member_id or "")
        if member is not None and answer.assignment is not None:
            member.sent = answer.assignment

    def leave(self, leavers: Sequence[Leaver]) -> list[Problem]:
        """LeaveGroup: an administrator takes members out; the answer to each."""
        problems = []
        for leaver in leavers:
            member_id = self.roster.id_of(leaver)
            problems.append(self.roster.judge(member_id, leaver.instance_id))
            if problems[-1] is Problem.NONE:
                self._drop(self.roster.members[member_id], "was taken out: " + leaver.reason)
        self.flush()
        return problems

    def judge_commit(self, member_id: str, epoch: int, knows_epochs: bool) -> Problem:
        """Whether offsets may be committed in this name, by a client that knows of members' epochs or not. In a stale
        epoch, those may of partitions that it held already."""
        if self._dead:
            return Problem.COORDINATOR_NOT_AVAILABLE
        if epoch < 0 and not self.roster.members:
            return Problem.NONE
        member = self.roster.members.get(member_id)
        if member is None:
            return Problem.UNKNOWN_MEMBER_ID
        if not knows_epochs:
            return Problem.UNSUPPORTED_VERSION
        return Problem.NONE if epoch == member.position.epoch else Problem.STALE_MEMBER_EPOCH

    def judge_commits(self, commits: Sequence[Commit], committer: Committer) -> list[Problem]:
        """Whether each may be committed in this name."""
        member_id, epoch = committer.member_id, committer.generation
        problem = self.judge_commit(member_id, epoch, committer.knows_epochs)
        stale = problem is Problem.STALE_MEMBER_EPOCH
        return [
            Problem.NONE if stale and self.roster.held(member_id, epoch, each.topic_id, each.partition) else problem
            for each in commits
        ]

    def judge_fetch(self, member_id: str | None, epoch: int) -> Problem:
        """Whether offsets may be asked for in this name."""
        if member_id is None and epoch < 0:
            return Problem.NONE
        member = self.roster.members.get(member_id or "")
        if member is None:
            return Problem.UNKNOWN_MEMBER_ID
        return Problem.NONE if epoch == member.position.epoch else Problem.STALE_MEMBER_EPOCH

    # --- what others ask ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The group's state, by the name that Kafka's tools print."""
        if self._dead:
            return State.DEAD
        if not self.roster.members:
            return State.EMPTY
        if self.epoch > self.assignment_epoch:
            return State.ASSIGNING
        there = all(
            member.position.step is Step.STABLE and member.position.epoch == self.assignment_epoch
            for member in self.roster
        )
        return State.STABLE if there else State.RECONCILING

    @property
    def assignor(self) -> str:
        """The assignor that most members wish for now."""
        return choose_assignor(member.traits.assignor for member in self.roster)

    @property
    def member_count(self) -> int:
        return len(self.roster)

    @property
    def is_vacant(self) -> bool:
        """Whether it has no members."""
        return not self.roster.members and not self._dead

    def reads_topic(self, topic: str) -> bool:
        """Whether a member subscribes to the topic."""
        self.roster.subscriptions.renew(self._host.catalogue_turn, self._host.catalogue)
        return topic in self.roster.subscriptions.names

    def expired(self, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """The committed offsets whose time is over."""
        return self.offsets.expired(now_ms, retention_ms, None, self.reads_topic)

    def describe(self) -> ConsumerGroupDescription:
        """The group as administrators see it."""
        members = tuple(
            ConsumerDescription(
                member.member_id,
                member.traits,
                member.position.epoch,
                join(member.position.assigned, member.position.revoking),
                self._targets.get(member.member_id, NOWHERE),
            )
            for member in self.roster
        )
        return ConsumerGroupDescription(self.state.value, self.epoch, self.assignment_epoch, self.assignor, members)

    def restore(self, stored: StoredConsumerGroup) -> None:
        """Become what was stored. Sessions start with `resume`."""
        self.epoch, self._fingerprint = stored.epoch, stored.fingerprint
        self.assignment_epoch = stored.assignment_epoch
        members = [
            ConsumerMember(member_id, traits, stored.positions.get(member_id, Position()))
            for member_id, traits in stored.members.items()
        ]
        # Where a member's release was not written, the member that has the partition now is in a later epoch.
        for member in sorted(members, key=lambda each: each.position.epoch):
            self.roster.enter(member)
            target = self._targets[member.member_id] = stored.targets.get(member.member_id, NOWHERE)
            if self._host.is_guarded:
                held = frozenset((*target, *member.position.assigned))
                self.roster.subscriptions.view(member.member_id, HeldViewer(held))

    def resume(self) -> None:
        """Start the sessions of restored members: each has its whole timeout to be heard of."""
        for member in self.roster:
            self._touch(member)
            if member.position.step is Step.UNREVOKED:
                self._await_revocation(member)

    def kill(self) -> None:
        """End it: no timer is left."""
        for member in self.roster:
            member.stop()
        self._dead = True

    def _value(self, key: ConsumerKey) -> bytes | None:
        if key.kind == EPOCH:
            return write_epoch(self.epoch, self._fingerprint)
        if key.kind == TARGET_EPOCH:
            return write_target_epoch(self.assignment_epoch)
        member = self.roster.members.get(key.member_id)
        if member is None:
            return None
        if key.kind == MEMBER:
            return write_member(member.traits)
        if key.kind == TARGET:
            return write_target(self._targets.get(key.member_id, NOWHERE))
        return write_position(member.position)

    # --- coming and going ---------------------------------------------------------------------------------------------

    def _judge_room(self, known: ConsumerMember | None, traits: Traits) -> None:
        size = self.roster.size + traits.size - (known.traits.size if known else 0)
        if len(self._records) > 4 * self._host.max_size:
            raise GroupError(
                Problem.COORDINATOR_NOT_AVAILABLE, "What changes in the group cannot be written right now."
            )
        if known is None and len(self.roster.members) >= self._host.max_size:
            raise GroupError(
                Problem.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {self._host.max_size} members.",
            )
        if size > GROUP_BYTES_MAX:
            raise GroupError(
                Problem.GROUP_MAX_SIZE_REACHED,
                f"The subscriptions of the group's members would take {size} bytes, above {GROUP_BYTES_MAX}.",
            )

    def _judge_pattern(self, pattern: str) -> None:
        patterns = self.roster.subscriptions.patterns
        if pattern not in patterns and len(patterns) >= PATTERNS_MAX:
            raise GroupError(
                Problem.GROUP_MAX_SIZE_REACHED,
                f"The members of a group have at most {PATTERNS_MAX} different patterns.",
            )
        compile_pattern(pattern)

    def _hear(self, beat: Heartbeat, known: ConsumerMember | None, traits: Traits) -> ConsumerMember:
        """Take up what a heartbeat has of its member."""
        if known is None:
            log.info("member comes", group=self.group_id, member=beat.member_id)
            member = ConsumerMember(beat.member_id, traits, Position())
            self.roster.enter(member)
            self._raise_epoch()
        elif known.member_id != beat.member_id:
            log.info("member returns", group=self.group_id, member=beat.member_id, instance=beat.instance_id)
            member = self._replace(known, beat.member_id)
        else:
            member = known
        if known is None or member.traits != traits:
            self._records.mark(MEMBER, member.member_id)
            if self.roster.change_traits(member, traits):
                self._raise_epoch()
        return member

    def _replace(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back under another id, and has what it had."""
        position = replace(old.position, epoch=0, previous_epoch=0)
        target = self._targets.get(old.member_id, NOWHERE)
        self._remove(old)
        member = ConsumerMember(member_id, old.traits, position)
        self.roster.enter(member)
        self._targets[member_id] = target
        for kind in (MEMBER, TARGET, POSITION):
            self._records.mark(kind, member_id)
        return member

    def _leave(self, beat: Heartbeat) -> Answer:
        member = self.roster.sender(beat)
        if beat.epoch == LEAVING_FOR_A_WHILE:
            position = replace(member.position, epoch=LEAVING_FOR_A_WHILE, step=Step.STABLE, revoking=NOWHERE)
            self._move(member, position)
            if member.revocation is not None:
                member.revocation.cancel()
        else:
            self._drop(member, "left")
        self.flush()
        return Answer(member_id=beat.member_id, epoch=beat.epoch)

    def _drop(self, member: ConsumerMember, why: str) -> None:
        log.info("member goes", group=self.group_id, member=member.member_id, why=why)
        self._remove(member)
        self._raise_epoch()

    def _remove(self, member: ConsumerMember) -> None:
        self.roster.remove(member)
        self._targets.pop(member.member_id, None)
        for kind in (POSITION, TARGET, MEMBER):
            self._records.mark(kind, member.member_id)

    # --- epochs and targets -------------------------------------------------------------------------------------------

    def _raise_epoch(self) -> None:
        """Members, or what they read, are others than before."""
        # Several changes before the next targets are one.
        if self.epoch == self.assignment_epoch:
            self.epoch += 1
        self._records.mark(EPOCH)

    def _look(self) -> None:
        """See whether the topics that the group reads have changed."""
        self.roster.subscriptions.renew(self._host.catalogue_turn, self._host.catalogue)
        subscriptions = self.roster.subscriptions
        if self._fingerprint != subscriptions.fingerprint or subscriptions.has_shifted:
            self._fingerprint, subscriptions.has_shifted = subscriptions.fingerprint, False
            self._raise_epoch()

    def _assign(self) -> None:
        """Compute the targets unless they are those of the group's epoch, or it is too soon."""
        now = self._host.loop.time()
        if self.assignment_epoch == self.epoch or now < self._due:
            return
        assignor = self.assignor
        # Static members come first: their order stays as it is while others come and go under ids of chance.
        order = sorted(
            self.roster,
            key=lambda each: (each.traits.instance_id is None, each.traits.instance_id or each.member_id),
        )
        subscribed = {each.member_id: self.roster.subscriptions.of(each.member_id) for each in order}
        targets = ASSIGNORS[assignor](subscribed, self.roster.subscriptions.sizes, self._targets)
        for member_id, places in targets.items():
            if self._targets.get(member_id) != places:
                self._records.mark(TARGET, member_id)
        self._targets = targets
        self.assignment_epoch = self.epoch
        self._records.mark(TARGET_EPOCH)
        log.info("targets", group=self.group_id, epoch=self.epoch, members=len(self.roster.members), assignor=assignor)
        took = self._host.loop.time() - now
        self._due = now + self._host.settings_of(self.group_id).assignment_ms / 1000
        if took > ASSIGNING_SECONDS:
            self._due = max(self._due, now + (1 + ASSIGNING_REST) * took)

    # --- following ----------------------------------------------------------------------------------------------------

    def _follow(self, member: ConsumerMember, owned: Places | None) -> None:
        before = member.position
        if before.step is Step.STABLE and before.epoch == self.assignment_epoch == self.epoch:
            return
        target = self._targets.get(member.member_id, NOWHERE)
        reads = self.roster.subscriptions.of(member.member_id)
        after = follow(before, self.assignment_epoch, target, reads, owned, self.roster.is_taken)
        if after == before:
            return
        self._move(member, after)
        if after.step is Step.UNREVOKED:
            self._await_revocation(member)
        elif member.revocation is not None:
            member.revocation.cancel()

    def _move(self, member: ConsumerMember, after: Position) -> None:
        self.roster.move(member, after)
        self._records.mark(POSITION, member.member_id)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _touch(self, member: ConsumerMember) -> None:
        if member.session is None:
            member.session = Deadline(self._host.loop, partial(self._time_is_up, member, "was not heard of in time"))
        member.session.set(self._host.settings_of(self.group_id).session_ms / 1000)

    def _await_revocation(self, member: ConsumerMember) -> None:
        if member.revocation is None:
            why = "did not give its partitions back in time"
            member.revocation = Deadline(self._host.loop, partial(self._time_is_up, member, why))
        member.revocation.set(member.traits.rebalance_timeout_ms / 1000)

    def _time_is_up(self, member: ConsumerMember, why: str) -> None:
        self._drop(member, why)
        self.flush()
