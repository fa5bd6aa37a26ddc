"""A group of RocketMQ's clients: who its members are, as their heartbeats tell.

Its members divide the queues among themselves, by a list of members that is the same for all of them. So the broker
only lists them, and notifies each of them when the list changes. A group has no generations; what it has committed are
offsets as of any other group. Kafka's tools see a classic group without a protocol, and so show its lag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.broker.groups.group_codec import StoredGroup, StoredMember, write_group, write_group_key
from headrace.broker.groups.offsets import GroupOffsets, TopicPartition
from headrace.broker.groups.protocol import Commit, Committer, GroupDescription, Leaver, Problem, State
from headrace.broker.store import Change

PROTOCOL = "rocketmq"
"""The protocol type by which such a group is stored."""
# A lock that is not asked for again ends after this.
LOCK_MS = 60_000
# Of a group that was stored while it had members: there is no time since when it is empty.
HAS_MEMBERS = -1


@dataclass(frozen=True, slots=True)
class RocketMqSubscription:
    """What a member reads of a topic."""

    expression: str
    """`*`, tags with `||` between them, or an expression of another kind."""
    version: int = 0
    tags: frozenset[int] = frozenset()
    """Java's hashes of the tags; none: all messages."""
    kind: str = "TAG"
    """Of the expression, by RocketMQ's name."""


@dataclass(frozen=True, slots=True)
class RocketMqMember:
    """A client, in one of its groups."""

    client_id: str
    client_host: str
    subscriptions: Mapping[str, RocketMqSubscription]
    """By the log's names of topics."""
    notify: Callable[[str], None] = field(compare=False)
    """Call with the group when its list of members has changed."""


class RocketMqGroup:
    """The members of a group, and its committed offsets."""

    # The type that Kafka's tools know, and list.
    kind = "classic"
    family = "rocketmq"
    protocol_type = ""

    def __init__(self, group_id: str, now_ms: Callable[[], int]) -> None:
        self.group_id = group_id
        self.offsets = GroupOffsets()
        self.members: dict[str, RocketMqMember] = {}
        self.state = State.EMPTY
        self.state_ms = now_ms()
        """When the group came into its state."""
        self._now_ms = now_ms
        # Topic and partition -> the client that alone reads it, and until when. They end with the process.
        self._locks: dict[TopicPartition, tuple[str, int]] = {}

    # --- members ------------------------------------------------------------------------------------------------------

    def join(self, member: RocketMqMember) -> None:
        """Take a member in, or note what has changed about it; the others are notified where that concerns them."""
        before = self.members.get(member.client_id)
        self.members[member.client_id] = member
        self._move(State.STABLE)
        if before is None or before.subscriptions != member.subscriptions:
            self._notify()

    def leave_member(self, member: RocketMqMember) -> bool:
        """Take a member out; False where another connection has taken its place."""
        if self.members.get(member.client_id) is not member:
            return False
        del self.members[member.client_id]
        if not self.members:
            self._move(State.EMPTY)
        self._notify()
        return True

    def subscription(self, topic: str) -> RocketMqSubscription | None:
        """What the members read of a topic: the newest, where they do not agree."""
        found = [each.subscriptions[topic] for each in self.members.values() if topic in each.subscriptions]
        return max(found, key=lambda each: each.version, default=None)

    def lock(self, place: TopicPartition, client_id: str, now_ms: int) -> bool:
        """Make a client the only reader of a partition, or let it stay that; False where another one is."""
        holder, until = self._locks.get(place, (client_id, 0))
        if holder != client_id and until > now_ms:
            return False
        self._locks[place] = client_id, now_ms + LOCK_MS
        return True

    def has_locks(self, now_ms: int) -> bool:
        """Whether a client is the only reader of any partition."""
        return any(until > now_ms for _, until in self._locks.values())

    def unlock(self, place: TopicPartition, client_id: str) -> None:
        """A client is no longer the only reader of a partition."""
        if self._locks.get(place, ("", 0))[0] == client_id:
            del self._locks[place]

    def _notify(self) -> None:
        for member in list(self.members.values()):
            member.notify(self.group_id)

    def _move(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self.state_ms = self._now_ms()

    # --- what the coordinator asks of every group ---------------------------------------------------------------------

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def is_vacant(self) -> bool:
        """Whether it has no members."""
        return not self.members

    @property
    def is_void(self) -> bool:
        """Whether nothing of it was ever stored, so that it need not be remembered."""
        return not self.members and not self.offsets

    def expired(self, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """The committed offsets whose time is over: live members keep all."""
        if self.members:
            return []
        return self.offsets.expired(now_ms, retention_ms, self.state_ms, lambda _: False)

    def reads_topic(self, topic: str) -> bool:
        """Whether a member subscribes to the topic."""
        return any(topic in member.subscriptions for member in self.members.values())

    def tombstones(self) -> list[Change]:
        """What ends the group in the log."""
        return [(write_group_key(self.group_id), None)]

    def change(self) -> Change:
        """What stores the group: that it is one of RocketMQ's, and since when it is empty."""
        since = HAS_MEMBERS if self.members else self.state_ms
        return write_group_key(self.group_id), write_group(StoredGroup(PROTOCOL, 0, None, None, since, ()))

    def restore(self, stored: StoredGroup) -> None:
        """Become what was stored. Where it had members, it is empty since now."""
        if stored.state_ms != HAS_MEMBERS:
            self.state_ms = stored.state_ms

    def describe(self) -> GroupDescription:
        """The group as administrators see it."""
        members = tuple(
            StoredMember(each.client_id, None, each.client_id, each.client_host, -1, -1, b"", b"")
            for each in self.members.values()
        )
        return GroupDescription(self.group_id, self.state, self.protocol_type, "", members)

    def judge_commits(self, commits: Sequence[Commit], committer: Committer) -> list[Problem]:
        """Whether each may be committed by a client of another protocol: while there are no members."""
        return [Problem.UNKNOWN_MEMBER_ID if self.members else Problem.NONE] * len(commits)

    def judge_fetch(self, member_id: str | None, epoch: int) -> Problem:
        """Whether offsets may be asked for in this name: in any."""
        return Problem.NONE

    def leave(self, leavers: Sequence[Leaver]) -> list[Problem]:
        """An administrator of another protocol takes no members out."""
        return [Problem.UNKNOWN_MEMBER_ID] * len(leavers)

    async def saved(self) -> Problem:
        """What a leave has changed is durable: it changes nothing."""
        return Problem.NONE

    def resume(self) -> None:
        """Members come back by their heartbeats."""

    def kill(self) -> None:
        """End it."""
        self.members.clear()
        self.state = State.DEAD
