"""What a classic group knows, and what it answers by that alone.

`group.py` changes it: members join, sync and leave, and generations follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from headrace.broker.groups.deadline import Deadline, Loop
from headrace.broker.groups.group_codec import StoredGroup, StoredMember, write_group_key
from headrace.broker.groups.member import Member
from headrace.broker.groups.members import GROUP_BYTES_MAX
from headrace.broker.groups.offsets import GroupOffsets, TopicPartition
from headrace.broker.groups.protocol import (
    GroupDescription,
    JoinRequest,
    Problem,
    State,
    SyncRequest,
)
from headrace.broker.groups.roster import Roster
from headrace.broker.groups.subscription import CONSUMER, subscribed_topics
from headrace.broker.store import Change

Stored = Callable[[Problem], None]


class Host(Protocol):
    """What a group needs of its coordinator."""

    @property
    def loop(self) -> Loop: ...
    @property
    def max_size(self) -> int: ...
    @property
    def initial_delay(self) -> float: ...
    def now_ms(self) -> int: ...
    def draw_member_id(self, prefix: str) -> str: ...
    def store(self, group_id: str, record: StoredGroup, stored: Stored) -> None:
        """Write a group's record; say when it is durable, or why it will not be. Never raises."""
        ...

    def vacated(self, group: ClassicState) -> None:
        """The last pending member of a group without members went."""
        ...


class ClassicState:
    """A group of the classic protocol, and its committed offsets."""

    kind = family = "classic"

    def __init__(self, group_id: str, host: Host) -> None:
        self.group_id = group_id
        self.offsets = GroupOffsets()
        self.state = State.EMPTY
        self.state_ms = host.now_ms()
        """When the group came into its state."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.roster = Roster()
        self._host = host
        # What a restart, or the next leader of a group of nodes, would find.
        self._stored: StoredGroup | None = None
        # Ids that were handed out and have not come back yet.
        self._pending: dict[str, Deadline] = {}

    @property
    def member_count(self) -> int:
        return len(self.roster)

    @property
    def is_vacant(self) -> bool:
        """Whether it has no members, and none is about to join."""
        return self.state is State.EMPTY and not self._pending

    @property
    def is_void(self) -> bool:
        """Whether nothing of it was ever stored, so that it need not be remembered."""
        return self.is_vacant and self.generation == 0 and not self.offsets

    def expired(self, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """The committed offsets whose time is over."""
        if self.state is State.EMPTY:
            # Members came and went: the group's emptiness counts. A group that never had any goes by its commits.
            since = self.state_ms if self.protocol_type and self.state_ms >= 0 else None
            return self.offsets.expired(now_ms, retention_ms, since, lambda _: False)
        if self.state is State.STABLE and self.protocol_type == CONSUMER:
            return self.offsets.expired(now_ms, retention_ms, None, self.reads_topic)
        return []

    def tombstones(self) -> list[Change]:
        """What ends the group in the log."""
        return [(write_group_key(self.group_id), None)]

    def reads_topic(self, topic: str) -> bool:
        """Whether a member subscribes to the topic; also where its metadata cannot be read."""
        if self.protocol_type != CONSUMER:
            return False
        for member in self.roster:
            topics = subscribed_topics(member.metadata(self.protocol_name))
            if topics is None or topic in topics:
                return True
        return False

    def describe(self) -> GroupDescription:
        """The group as administrators see it."""
        name = (self.protocol_name or "") if self.state is State.STABLE else ""
        return GroupDescription(self.group_id, self.state, self.protocol_type or "", name, self._stored_members({}))

    def stored(self, assignments: Mapping[str, bytes]) -> StoredGroup:
        """The group as it is stored, with these assignments."""
        since = self.state_ms if self.state is State.EMPTY else self._host.now_ms()
        members = self._stored_members(assignments)
        return StoredGroup(
            self.protocol_type or "", self.generation, self.protocol_name, self.roster.leader, since, members
        )

    def _stored_members(self, assignments: Mapping[str, bytes]) -> tuple[StoredMember, ...]:
        return tuple(
            StoredMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(self.protocol_name),
                assignments.get(member.member_id, member.assignment),
            )
            for member in self.roster
        )

    def _store(self, record: StoredGroup, stored: Stored) -> None:
        """Write a record of the group, and remember it once it is durable."""

        def done(problem: Problem) -> None:
            if problem is Problem.NONE:
                self._stored = record
            stored(problem)

        self._host.store(self.group_id, record, done)

    def _renamed(self) -> StoredGroup | None:
        """What is stored, with the member ids that static members go by now; None: it has them, or none else."""
        if self._stored is None:
            return None
        members = tuple(self._rename(each) for each in self._stored.members)
        if members == self._stored.members:
            return None
        ids = {old.member_id: new.member_id for old, new in zip(self._stored.members, members, strict=True)}
        return replace(self._stored, leader=ids.get(self._stored.leader or ""), members=members)

    def _rename(self, stored: StoredMember) -> StoredMember:
        holder = self.roster.holder(stored.instance_id)
        return stored if holder in (None, stored.member_id) else replace(stored, member_id=holder)

    def restore(self, stored: StoredGroup) -> None:
        """Become what was stored. Sessions start with `resume`."""
        self._stored = stored
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type or None
        self.protocol_name = stored.protocol_name
        for each in stored.members:
            member = Member(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout_ms,
                each.session_timeout_ms,
                {stored.protocol_name or "": each.subscription},
                each.assignment,
            )
            self.roster.enter(member)
        if stored.leader in self.roster:
            self.roster.leader = stored.leader
        self.state = State.STABLE if self.roster.members else State.EMPTY
        self.state_ms = stored.state_ms

    # --- what members may do ---

    def judge_member(self, member_id: str, instance_id: str | None) -> Problem:
        """Whether there is such a member, and it is the one that holds its instance id."""
        if self.state is State.DEAD:
            return Problem.COORDINATOR_NOT_AVAILABLE
        return self.roster.judge(member_id, instance_id)

    def judge_fetch(self, member_id: str | None, epoch: int) -> Problem:
        """Whether offsets may be asked for in this name: in any."""
        return Problem.NONE

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is State.EMPTY:
            return bool(request.protocol_type and request.protocols)
        return request.protocol_type == self.protocol_type and any(
            self.roster.knows_all(name) for name, _ in request.protocols
        )

    def _has_room(self, request: JoinRequest) -> bool:
        roster, limit = self.roster, self._host.max_size
        if roster.size + sum(len(name) + len(metadata) for name, metadata in request.protocols) > GROUP_BYTES_MAX:
            return False
        known = roster.members.get(request.member_id or roster.holder(request.instance_id) or "")
        if known is None:
            # An id that was handed out holds its place, or a client could fill the memory with them.
            others = len(self._pending) - (request.member_id in self._pending)
            return (roster.joining if self.state is State.PREPARING else len(roster)) + others < limit
        return self.state is not State.PREPARING or known.join is not None or roster.joining < limit

    def _judge_sync(self, request: SyncRequest) -> Problem:
        problem = self.judge_member(request.member_id, request.instance_id)
        if problem is not Problem.NONE:
            return problem
        if request.generation != self.generation:
            return Problem.ILLEGAL_GENERATION
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            return Problem.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and request.protocol_name != self.protocol_name:
            return Problem.INCONSISTENT_GROUP_PROTOCOL
        return Problem.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else Problem.NONE

    def _move(self, state: State) -> None:
        self.state = state
        self.state_ms = self._host.now_ms()
