"""RocketMQ's side of the coordinator: members by heartbeats, and positions that come again and again.

RocketMQ's clients send the position of every queue every 5 seconds, whether it has moved or not, and again with each
pull. A position that has not moved is not appended. Of those that have, the ones that come while an append is under way
wait for it and are appended together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING

from headrace.broker.groups.group_codec import Committed
from headrace.broker.groups.protocol import NAME_CHARACTERS_MAX, GroupError, Problem, State
from headrace.broker.groups.rocketmq_group import RocketMqGroup, RocketMqMember
from headrace.log.interface import Topic
from headrace.log.local import LocalLog

if TYPE_CHECKING:
    from headrace.broker.groups.offsets import GroupOffsets, TopicPartition
    from headrace.broker.groups.shard import AnyGroup, Shard
    from headrace.broker.groups.shards import Shards


# Whose a commit is, in its metadata. One with other metadata is an administrator's, too.
BY_TOOL = ""
BY_CLIENT = "rocketmq"
BY_QUEUE = "rocketmq-queue"


class RocketMqCoordinator:
    """All groups of RocketMQ's clients."""

    def __init__(self, log: LocalLog, now_ms: Callable[[], int]) -> None:
        self.log = log
        self._now_ms = now_ms
        # What is to be appended, by group, and the tasks that append.
        self._moved: dict[str, dict[TopicPartition, Committed]] = {}
        self._appending: dict[str, asyncio.Task[Problem]] = {}

    def stand_on(self, shards: Shards) -> None:
        """Where groups are kept."""
        self._shards = shards

    # --- members ------------------------------------------------------------------------------------------------------

    async def join(self, group_id: str, member: RocketMqMember) -> RocketMqGroup:
        """Take a member in by its heartbeat. Raises GroupError where the group has members of another protocol."""
        shard, group = await self._group(group_id)
        was_vacant = group.is_vacant
        group.join(member)
        if was_vacant:
            shard.append([group.change()], lambda _: None)
        return group

    def leave(self, group: RocketMqGroup, member: RocketMqMember) -> None:
        """Take a member out; members are notified."""
        if group.leave_member(member) and group.is_vacant and group.state is not State.DEAD:
            self._shards.home(group.group_id).append([group.change()], lambda _: None)

    def find(self, group_id: str) -> RocketMqGroup | None:
        """A group that is in memory, as those with members are."""
        found = self._shards.home(group_id).groups.get(group_id) if self._shards.all else None
        return found if isinstance(found, RocketMqGroup) else None

    async def all(self) -> list[RocketMqGroup]:
        """Every group of RocketMQ's clients, once all are read. Raises GroupError."""
        return [each async for each in self._loaded() if isinstance(each, RocketMqGroup)]

    async def exists(self, group_id: str) -> bool:
        """Whether there is such a group, whichever protocol its members speak. Raises GroupError."""
        shard = await self._shards.of(group_id)
        return shard is not None and group_id in shard.groups

    async def readers(self, topic: str) -> list[str]:
        """The groups of any protocol that read a topic or have committed offsets of it. Raises GroupError."""
        return [
            each.group_id async for each in self._loaded() if topic in each.offsets.by_topic or each.reads_topic(topic)
        ]

    async def _loaded(self) -> AsyncIterator[AnyGroup]:
        async for shard in self._shards.loaded():
            for group in list(shard.groups.values()):
                yield group

    async def _group(self, group_id: str) -> tuple[Shard, RocketMqGroup]:
        """The group, which is made if it is missing, or is empty and one of another protocol. Raises GroupError."""
        if not group_id or len(group_id) > NAME_CHARACTERS_MAX:
            raise GroupError(Problem.INVALID_GROUP_ID, f"{group_id[:40]!r} is not a group name")
        shard = await self._shards.for_change(group_id)
        found: AnyGroup | None = shard.groups.get(group_id)
        if isinstance(found, RocketMqGroup):
            return shard, found
        if found is not None and not found.is_vacant:
            raise GroupError(
                Problem.INCONSISTENT_GROUP_PROTOCOL,
                f"the group {group_id} has members that speak Kafka's protocol. Stop them, or choose another group.",
            )
        group = RocketMqGroup(group_id, self._now_ms)
        if found is None:
            shard.groups[group_id] = group
        else:
            shard.replace(found, group)
        return shard, group

    # --- positions ----------------------------------------------------------------------------------------------------

    def move(self, group_id: str, topic: Topic, index: int, offset: int, by: str = BY_CLIENT) -> None:
        """Note the position of a group in a partition; `settle` waits until it is durable. `by`: whose commit it is."""
        committed = Committed(
            offset, metadata=by, commit_ms=self._now_ms(), topic_id=topic.id, written_epoch=self.log.epoch
        )
        self._moved.setdefault(group_id, {})[topic.name, index] = committed
        if group_id not in self._appending:
            self._appending[group_id] = asyncio.get_running_loop().create_task(self._append(group_id))

    async def settle(self, group_id: str) -> None:
        """Wait until the positions that were noted are durable. Raises GroupError."""
        while (task := self._appending.get(group_id)) is not None:
            problem = await asyncio.shield(task)
            if problem is not Problem.NONE:
                raise GroupError(problem, f"the position of the group {group_id} was not stored: {problem.name}")

    async def position(self, group_id: str, topic: Topic, index: int) -> int | None:
        """Where a group goes on in a partition. Raises GroupError."""
        await self.settle(group_id)
        shard = await self._shards.of(group_id)
        group = None if shard is None else shard.groups.get(group_id)
        if group is None:
            return None
        committed = await group.offsets.current(self.log, group_id, topic.name, index)
        return None if committed is None else committed.offset

    async def offsets(self, group_id: str) -> GroupOffsets | None:
        """The offsets of a group, if it has any. Raises GroupError."""
        shard = await self._shards.of(group_id)
        group = None if shard is None else shard.groups.get(group_id)
        return None if group is None else group.offsets

    def known_offsets(self, group_id: str) -> GroupOffsets | None:
        """The same, of a group that is in memory."""
        group = self._shards.home(group_id).groups.get(group_id) if self._shards.all else None
        return None if group is None else group.offsets

    async def _append(self, group_id: str) -> Problem:
        problem = Problem.NONE
        try:
            while moved := self._moved.pop(group_id, None):
                found = await self._append_moved(group_id, moved.items())
                # Those who wait wait for all of it: one that failed is not made good by the next.
                problem = found if problem is Problem.NONE else problem
        finally:
            del self._appending[group_id]
        return problem

    async def _append_moved(self, group_id: str, moved: Iterable[tuple[TopicPartition, Committed]]) -> Problem:
        try:
            shard, group = await self._group(group_id)
        except GroupError as refusal:
            return refusal.problem
        taken = {}
        for place, committed in moved:
            current = group.offsets.get(*place)
            if current is None or (current.offset, current.topic_id, current.written_epoch) != (
                committed.offset,
                committed.topic_id,
                committed.written_epoch,
            ):
                taken[place] = committed
        problem = await shard.commit(group, taken) if taken else Problem.NONE
        shard.drop_if_void(group)
        return problem
