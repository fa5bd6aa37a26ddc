"""The group coordinator: finds the group a request is about, and keeps what must outlive the process.

All groups of this broker are coordinated here. Their state lives in the internal topic `__consumer_offsets`, which is
made when a group first needs it and replayed, partition by partition, when one of its groups is first asked for
(`shard.py`). What is acknowledged is durable: a commit is answered when its append is, a generation starts when its
assignment is stored.

Members speak the classic protocol here; those of the consumer protocol in `consumer/consumer_coordinator.py`, those of
RocketMQ in `rocketmq_coordinator.py`. Share groups and streams groups are left out: the door refuses clients that ask
for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from uuid import UUID

import structlog

from headrace.broker.groups.classic_state import ClassicState, Stored
from headrace.broker.groups.consumer.consumer_coordinator import ConsumerCoordinator
from headrace.broker.groups.consumer.consumer_group import ConsumerGroup
from headrace.broker.groups.group import Group
from headrace.broker.groups.group_codec import (
    NO_EXPIRY,
    Committed,
    StoredGroup,
    write_group,
    write_group_key,
)
from headrace.broker.groups.offsets import GroupOffsets, TopicPartition
from headrace.broker.groups.protocol import (
    NAME_CHARACTERS_MAX,
    Commit,
    Committer,
    GroupDescription,
    GroupError,
    GroupListing,
    Joined,
    JoinRequest,
    Leaver,
    Problem,
    State,
    Synced,
    SyncRequest,
)
from headrace.broker.groups.rocketmq_coordinator import RocketMqCoordinator
from headrace.broker.groups.rocketmq_group import RocketMqGroup
from headrace.broker.groups.shard import AnyGroup, AppendWithin, Shard
from headrace.broker.groups.shards import Shards
from headrace.broker.groups.subscription import CONSUMER
from headrace.broker.periodic import Periodic
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics import Topics
from headrace.log.interface import Partition, Topic
from headrace.log.local import LocalLog
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.groups")

EXPIRY_CHECK_SECONDS = 600.0
EXPIRY_STEP_GROUPS = 64

NO_MEMBER = Committer()


class GroupCoordinator:
    """All groups of this broker."""

    def __init__(self, runtime: Runtime, log: LocalLog, topics: Topics, config: BrokerSettings) -> None:
        self.max_size = config.group_max_size
        self.initial_delay = config.group_initial_rebalance_delay_ms / 1000
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._runtime = runtime
        self._log = log
        self._config = config
        self.consumers = ConsumerCoordinator(runtime, self.loop, topics, config)
        self.rocketmq = RocketMqCoordinator(log, self.now_ms)
        self._shards = Shards(runtime, log, topics, config, self, self.consumers)
        self.consumers.stand_on(self._shards)
        self.rocketmq.stand_on(self._shards)
        self._expiry = Periodic(EXPIRY_CHECK_SECONDS, self.expire, "drop expired offsets", logger)

    async def start(self) -> None:
        """Begin to look for expired offsets from time to time. Nothing is read yet."""
        self._expiry.start()

    async def stop(self) -> None:
        """Refuse whatever waits and stop all timers. What is stored stays: members go on after the next start."""
        self._expiry.cancel()
        self._shards.stop()

    # --- members ------------------------------------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> Joined:
        """JoinGroup: answered when the generation that the member joins is complete."""
        problem = self._judge_join(group_id, request)
        if problem is not Problem.NONE:
            return Joined(problem=problem, member_id=request.member_id)
        try:
            shard = await self._shards.for_change(group_id)
        except GroupError as refusal:
            return Joined(problem=refusal.problem, member_id=request.member_id)
        group = shard.groups.get(group_id)
        if group is None:
            if request.member_id:
                return Joined(problem=Problem.UNKNOWN_MEMBER_ID, member_id=request.member_id)
            group = shard.make(group_id)
        if not isinstance(group, Group):
            return await self._join_other(shard, group, request)
        answer = group.join(request)
        if answer.done():
            shard.drop_if_void(group)
        # The member stays when its connection goes: it may come back on another one.
        return await asyncio.shield(answer)

    async def sync(self, group_id: str, request: SyncRequest) -> Synced:
        """SyncGroup: answered when the leader has brought the assignment and it is durable."""
        if not group_id:
            return Synced(problem=Problem.INVALID_GROUP_ID)
        try:
            group = await self._find(group_id)
        except GroupError as refusal:
            return Synced(problem=refusal.problem)
        if not isinstance(group, Group):
            return Synced(problem=Problem.UNKNOWN_MEMBER_ID)
        return await asyncio.shield(group.sync(request))

    async def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Problem:
        """Heartbeat."""
        if not group_id:
            return Problem.INVALID_GROUP_ID
        try:
            group = await self._find(group_id)
        except GroupError as refusal:
            # A member must not lose its place because the broker has just started.
            loading = refusal.problem is Problem.COORDINATOR_LOAD_IN_PROGRESS
            return Problem.NONE if loading else refusal.problem
        if not isinstance(group, Group):
            return Problem.UNKNOWN_MEMBER_ID
        return group.heartbeat(member_id, instance_id, generation)

    async def leave(self, group_id: str, leavers: Sequence[Leaver]) -> tuple[Problem, list[Problem]]:
        """LeaveGroup: the problem of the whole request, and that of each member."""
        if not group_id:
            return Problem.INVALID_GROUP_ID, []
        try:
            group = await self._find(group_id)
        except GroupError as refusal:
            return refusal.problem, []
        if group is None:
            return Problem.NONE, [Problem.UNKNOWN_MEMBER_ID] * len(leavers)
        problems = group.leave(leavers)
        return await group.saved(), problems

    async def _join_other(self, shard: Shard, other: ConsumerGroup | RocketMqGroup, request: JoinRequest) -> Joined:
        """A classic member comes to a group of another protocol, which becomes a classic one if it is empty."""
        if not other.is_vacant:
            return Joined(problem=Problem.INCONSISTENT_GROUP_PROTOCOL, member_id=request.member_id)
        group = Group(other.group_id, self)
        answer = group.join(request)
        if answer.done() and answer.result().problem not in (Problem.NONE, Problem.MEMBER_ID_REQUIRED):
            group.kill()
        else:
            shard.replace(other, group)
        return await asyncio.shield(answer)

    # --- offsets ------------------------------------------------------------------------------------------------------

    async def commit(
        self, group_id: str, commits: Sequence[Commit], committer: Committer = NO_MEMBER, retention_ms: int = -1
    ) -> list[Problem]:
        """OffsetCommit: the answer to each, once all that are taken are durable."""
        if len(group_id) > NAME_CHARACTERS_MAX:
            return [Problem.INVALID_GROUP_ID] * len(commits)
        try:
            shard, group = await self._group_of_commit(group_id, committer, Problem.GROUP_ID_NOT_FOUND)
        except GroupError as refusal:
            return [refusal.problem] * len(commits)
        expire_ms = NO_EXPIRY if retention_ms < 0 else self.now_ms() + retention_ms
        answers, taken = self._take(commits, group.judge_commits(commits, committer), expire_ms)
        if taken:
            problem = await asyncio.shield(shard.commit(group, taken))
            answers = [problem if each is Problem.NONE else each for each in answers]
        shard.drop_if_void(group)
        return answers

    async def _group_of_commit(self, group_id: str, committer: Committer, unknown: Problem) -> tuple[Shard, AnyGroup]:
        """The group that offsets are committed for, made if it is missing and no member of it commits. Raises
        GroupError."""
        shard = await self._shards.for_change(group_id)
        group = shard.groups.get(group_id)
        if group is None and committer.generation >= 0:
            raise GroupError(unknown)
        return shard, group or shard.make(group_id)

    def _take(
        self, commits: Sequence[Commit], problems: Sequence[Problem], expire_ms: int
    ) -> tuple[list[Problem], dict[TopicPartition, Committed]]:
        """The answer to each commit, as far as it alone decides it, and those that are to be stored."""
        now, longest = self.now_ms(), self._config.offset_metadata_max_bytes
        answers = []
        taken: dict[TopicPartition, Committed] = {}
        for each, problem in zip(commits, problems, strict=True):
            if problem is Problem.NONE and len(each.metadata) > longest:
                problem = Problem.OFFSET_METADATA_TOO_LARGE
            answers.append(problem)
            if problem is Problem.NONE:
                taken[each.topic, each.partition] = Committed(
                    each.offset, each.leader_epoch, each.metadata, now, expire_ms, each.topic_id, self._log.epoch
                )
        return answers, taken

    # --- offsets within a transaction ---------------------------------------------------------------------------------

    async def home(self, group_id: str) -> Partition:
        """The partition that keeps a group, warm and replayed, for a transaction to write to it. Raises GroupError."""
        if len(group_id) > NAME_CHARACTERS_MAX:
            raise GroupError(Problem.INVALID_GROUP_ID)
        shard = await self._shards.for_change(group_id)
        if shard.partition is None:
            raise GroupError(Problem.COORDINATOR_NOT_AVAILABLE)
        return shard.partition

    async def warm(self, index: int) -> None:
        """Replay a partition of the topic, so that the end of a transaction in it is seen. Raises GroupError."""
        await self._shards.warm(index)

    async def commit_within(
        self,
        group_id: str,
        commits: Sequence[Commit],
        committer: Committer,
        producer_id: int,
        epoch: int,
        append: AppendWithin,
    ) -> list[Problem]:
        """TxnOffsetCommit: offsets that count once the producer's transaction commits; the answer to each, once all
        that are taken are durable. `append` puts them into the group's partition, or raises why it does not."""
        try:
            shard, group = await self._group_of_commit(group_id, committer, Problem.ILLEGAL_GENERATION)
        except GroupError as refusal:
            return [refusal.problem] * len(commits)
        problems = [Problem.NONE] * len(commits)
        if committer.is_member:
            problems = [
                Problem.ILLEGAL_GENERATION if problem is Problem.STALE_MEMBER_EPOCH else problem
                for problem in group.judge_commits(commits, committer)
            ]
        answers, taken = self._take(commits, problems, NO_EXPIRY)
        if not taken:
            shard.drop_if_void(group)
            return answers
        problem = await asyncio.shield(shard.commit_within(group, taken, producer_id, epoch, append))
        return [problem if each is Problem.NONE else each for each in answers]

    def end_transaction(self, producer_id: int, commit: bool, indexes: Sequence[int]) -> None:
        """The markers of a producer's transaction are durable in these partitions of the topic."""
        for index in indexes:
            self._shards.all[index].end_transaction(producer_id, commit)

    def unstable(self, group_id: str, topic: str, index: int) -> bool:
        """Whether an open transaction may change an offset of a group that is in memory."""
        group = self._in_memory(group_id)
        return group is not None and group.offsets.unstable(topic, index)

    async def committed(
        self,
        group_id: str,
        asked: Mapping[str, Sequence[int]] | None,
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> tuple[Problem, dict[str, dict[int, Committed | None]]]:
        """OffsetFetch: by topic and partition; where nothing in particular is asked for, everything. A member of the
        consumer protocol asks in its epoch."""
        try:
            group = await self._find(group_id)
        except GroupError as refusal:
            return refusal.problem, {}
        problem = Problem.NONE if group is None else group.judge_fetch(member_id, member_epoch)
        if problem is not Problem.NONE:
            return problem, {}
        offsets = GroupOffsets() if group is None else group.offsets
        everything: dict[str, list[int]] = {topic: list(indexes) for topic, indexes in offsets.by_topic.items()}
        found: dict[str, dict[int, Committed | None]] = {}
        for topic, indexes in (everything if asked is None else asked).items():
            for index in indexes:
                committed = await offsets.current(self._log, group_id, topic, index)
                if committed is not None or asked is not None:
                    found.setdefault(topic, {})[index] = committed
        return Problem.NONE, found

    async def delete_offsets(self, group_id: str, places: Sequence[TopicPartition]) -> tuple[Problem, list[Problem]]:
        """OffsetDelete: the problem of the whole request, and that of each partition."""
        try:
            shard = await self._shards.of(group_id)
        except GroupError as refusal:
            return refusal.problem, []
        group = shard.groups.get(group_id) if shard else None
        if shard is None or group is None or group.state is State.DEAD:
            return Problem.GROUP_ID_NOT_FOUND, []
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
            return Problem.NON_EMPTY_GROUP, []
        read = {topic for topic in dict.fromkeys(topic for topic, _ in places) if group.reads_topic(topic)}
        problems = [Problem.GROUP_SUBSCRIBED_TO_TOPIC if topic in read else Problem.NONE for topic, _ in places]
        dropped = [place for place in places if place[0] not in read and group.offsets.has(*place)]
        if dropped:
            problem = await shard.drop_offsets(group, dropped)
            if problem is not Problem.NONE:
                return problem, []
        return Problem.NONE, problems

    # --- administration -----------------------------------------------------------------------------------------------

    async def describe(self, group_id: str) -> tuple[Problem, GroupDescription | None]:
        """DescribeGroups, one of them; None where there is no such classic group."""
        try:
            group = await self._find(group_id)
        except GroupError as refusal:
            return refusal.problem, None
        return Problem.NONE, group.describe() if isinstance(group, Group | RocketMqGroup) else None

    async def list_groups(self) -> tuple[Problem, list[GroupListing]]:
        """ListGroups."""
        listings = []
        try:
            async for shard in self._shards.loaded():
                for group in shard.groups.values():
                    listings.append(GroupListing(group.group_id, group.protocol_type or "", group.state, group.kind))
        except GroupError as refusal:
            return refusal.problem, []
        return Problem.NONE, listings

    async def each(self) -> AsyncIterator[AnyGroup]:
        """Every group, once all are read. Raises GroupError."""
        async for shard in self._shards.loaded():
            for group in list(shard.groups.values()):
                yield group

    async def find(self, group_id: str) -> AnyGroup | None:
        """A group of whichever protocol. Raises GroupError."""
        return await self._find(group_id)

    async def delete(self, group_id: str) -> Problem:
        """DeleteGroups, one of them."""
        try:
            shard = await self._shards.of(group_id)
        except GroupError as refusal:
            return refusal.problem
        group = shard.groups.get(group_id) if shard else None
        if shard is None or group is None or group.state is State.DEAD:
            return Problem.GROUP_ID_NOT_FOUND
        if group.state is not State.EMPTY or group.offsets.pending:
            return Problem.NON_EMPTY_GROUP
        return await shard.delete(group)

    # --- what is in memory; cold groups stay cold ---------------------------------------------------------------------

    def committed_offsets(self) -> Iterator[tuple[str, str, int, int]]:
        """Group, topic, partition and offset of every commit, for metrics."""
        for shard in self._shards.all:
            for group_id, group in shard.groups.items():
                for (topic, index), committed in group.offsets:
                    yield group_id, topic, index, committed.offset

    def committed_now(self, group_id: str, topic: Topic) -> dict[int, int]:
        """The offsets that a group has committed of a topic, by partition; of a cold group none are known."""
        group = self._in_memory(group_id)
        offsets = {} if group is None else group.offsets.by_topic.get(topic.name, {})
        return {index: committed.offset for index, committed in offsets.items() if committed.is_of(topic)}

    def committed_of(self, topic: str, index: int) -> list[tuple[str, int]]:
        """Group and offset of every commit on one partition."""
        return [
            (group_id, partitions[index].offset)
            for shard in self._shards.all
            for group_id, group in shard.groups.items()
            if (partitions := group.offsets.by_topic.get(topic)) is not None and index in partitions
        ]

    def _in_memory(self, group_id: str) -> AnyGroup | None:
        return self._shards.home(group_id).groups.get(group_id) if self._shards.all else None

    # --- expiry -------------------------------------------------------------------------------------------------------

    async def expire(self) -> None:
        """Drop the offsets whose time is over or whose topic is gone, and groups of which nothing is left."""
        async for shard in self._shards.loaded():
            for count, group in enumerate(list(shard.groups.values()), 1):
                if shard.groups.get(group.group_id) is group:
                    await self._expire_group(shard, group)
                if count % EXPIRY_STEP_GROUPS == 0:
                    await asyncio.sleep(0)

    async def _expire_group(self, shard: Shard, group: AnyGroup) -> None:
        expired = group.expired(self.now_ms(), self._config.offsets_retention_ms)
        dropped = list(dict.fromkeys([*expired, *group.offsets.orphaned(self._log.topics)]))
        if dropped:
            logger.info("offsets expired", group=group.group_id, offsets=len(dropped))
            await shard.drop_offsets(group, dropped)
        if group.is_vacant and not group.offsets and shard.groups.get(group.group_id) is group:
            logger.info("group expired", group=group.group_id)
            await shard.delete(group)

    # --- what groups ask (group.Host) ---------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The calendar's time."""
        return self._runtime.clock.now_ms()

    def draw_member_id(self, prefix: str) -> str:
        """A member id that is new: what the client calls itself, and random bits."""
        return f"{prefix[:255]}-{UUID(bytes=self._runtime.random.bytes(16), version=4)}"

    def store(self, group_id: str, record: StoredGroup, stored: Stored) -> None:
        """Write a group's record."""
        self._shards.home(group_id).append([(write_group_key(group_id), write_group(record))], stored)

    def vacated(self, group: ClassicState) -> None:
        """A group has no members left."""
        shard = self._shards.home(group.group_id)
        if shard.groups.get(group.group_id) is group:
            shard.drop_if_void(group)

    # --- finding ------------------------------------------------------------------------------------------------------

    def _judge_join(self, group_id: str, request: JoinRequest) -> Problem:
        if not group_id or len(group_id) > NAME_CHARACTERS_MAX:
            return Problem.INVALID_GROUP_ID
        config = self._config
        shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            return Problem.INVALID_SESSION_TIMEOUT
        names = (request.instance_id or "", request.client_id, request.protocol_type)
        if max(map(len, (*names, *(name for name, _ in request.protocols)))) > NAME_CHARACTERS_MAX:
            return Problem.INVALID_REQUEST
        return Problem.NONE

    async def _find(self, group_id: str) -> AnyGroup | None:
        shard = await self._shards.of(group_id)
        return None if shard is None else shard.groups.get(group_id)
