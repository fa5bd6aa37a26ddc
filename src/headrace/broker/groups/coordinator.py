"""The group coordinator: finds the group a request is about, and keeps what must outlive the process.

All groups of this broker are coordinated here. Their state lives in the internal topic `__consumer_offsets`, which is
made when a group first needs it and replayed, partition by partition, when one of its groups is first asked for
(`shard.py`). What is acknowledged is durable: a commit is answered when its append is, a generation starts when its
assignment is stored.

Members speak the classic protocol here; those of the consumer protocol in `consumer/consumer_coordinator.py`. Share
groups and streams groups are left out: the door tells clients that ask for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from headrace.broker.groups.consumer.consumer_coordinator import ConsumerCoordinator
from headrace.broker.groups.consumer.consumer_group import ConsumerGroup
from headrace.broker.groups.deadline import Deadline
from headrace.broker.groups.group import Group, Stored
from headrace.broker.groups.group_codec import (
    NO_EPOCH,
    NO_EXPIRY,
    Change,
    Committed,
    StoredGroup,
    StoredMember,
    write_group,
    write_group_key,
    write_offset,
    write_offset_key,
)
from headrace.broker.groups.offsets import TopicPartition
from headrace.broker.groups.protocol import (
    NAME_CHARACTERS_MAX,
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
from headrace.broker.groups.shard import AppendWithin, Kept, Shard
from headrace.broker.groups.shards import Shards
from headrace.broker.groups.subscription import CONSUMER
from headrace.broker.topics import Topics
from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.log.interface import Durability, Log, Partition, Topic
from headrace.runtime import Runtime

log = structlog.get_logger("headrace.groups")

EXPIRY_CHECK_SECONDS = 600.0
EXPIRY_STEP_GROUPS = 64


@dataclass(frozen=True, slots=True)
class Commit:
    """One offset to be committed."""

    topic: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


class GroupCoordinator:
    """All groups of this broker."""

    def __init__(self, runtime: Runtime, log: Log, topics: Topics, config: Config) -> None:
        self.max_size = config.group_max_size
        self.initial_delay = config.group_initial_rebalance_delay_ms / 1000
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._runtime = runtime
        self._log = log
        self._config = config
        self.consumers = ConsumerCoordinator(runtime, self.loop, topics, config)
        self._shards = Shards(runtime, log, topics, config, self, self.consumers)
        self.consumers.stand_on(self._shards)
        self._expiring: asyncio.Task[None] | None = None
        self._expiry = Deadline(self.loop, self._expiry_is_due)

    async def start(self) -> None:
        """Begin to look for expired offsets from time to time. Nothing is read yet."""
        self._expiry.set(EXPIRY_CHECK_SECONDS)

    async def stop(self) -> None:
        """Refuse whatever waits and stop all timers. What is stored stays: members go on after the next start."""
        self._expiry.cancel()
        if self._expiring is not None:
            self._expiring.cancel()
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
        kept = shard.groups.get(group_id)
        if kept is None:
            if request.member_id:
                return Joined(problem=Problem.UNKNOWN_MEMBER_ID, member_id=request.member_id)
            kept = shard.groups[group_id] = Kept(Group(group_id, self))
        if isinstance(kept.group, ConsumerGroup):
            return await self._join_other(shard, kept, kept.group, request)
        answer = kept.group.join(request)
        if answer.done():
            self._forget_if_void(shard, kept)
            return answer.result()
        # The member stays when its connection goes: it may come back on another one.
        return await asyncio.shield(answer)

    async def sync(self, group_id: str, request: SyncRequest) -> Synced:
        """SyncGroup: answered when the leader has brought the assignment and it is durable."""
        if not group_id:
            return Synced(problem=Problem.INVALID_GROUP_ID)
        try:
            kept = await self._find(group_id)
        except GroupError as refusal:
            return Synced(problem=refusal.problem)
        if kept is None or isinstance(kept.group, ConsumerGroup):
            return Synced(problem=Problem.UNKNOWN_MEMBER_ID)
        answer = kept.group.sync(request)
        return answer.result() if answer.done() else await asyncio.shield(answer)

    async def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Problem:
        """Heartbeat."""
        if not group_id:
            return Problem.INVALID_GROUP_ID
        try:
            kept = await self._find(group_id)
        except GroupError as refusal:
            # A member must not lose its place because the broker has just started.
            loading = refusal.problem is Problem.COORDINATOR_LOAD_IN_PROGRESS
            return Problem.NONE if loading else refusal.problem
        if kept is None or isinstance(kept.group, ConsumerGroup):
            return Problem.UNKNOWN_MEMBER_ID
        return kept.group.heartbeat(member_id, instance_id, generation)

    async def leave(self, group_id: str, leavers: Sequence[Leaver]) -> tuple[Problem, list[Problem]]:
        """LeaveGroup: the problem of the whole request, and that of each member."""
        if not group_id:
            return Problem.INVALID_GROUP_ID, []
        try:
            kept = await self._find(group_id)
        except GroupError as refusal:
            return refusal.problem, []
        if kept is None:
            return Problem.NONE, [Problem.UNKNOWN_MEMBER_ID] * len(leavers)
        problems = kept.group.leave(leavers)
        return await kept.group.saved(), problems

    async def _join_other(self, shard: Shard, kept: Kept, consumers: ConsumerGroup, request: JoinRequest) -> Joined:
        """A classic member comes to a group of the consumer protocol, which becomes a classic one if it is empty."""
        if not consumers.is_vacant:
            return Joined(problem=Problem.INCONSISTENT_GROUP_PROTOCOL, member_id=request.member_id)
        group = Group(consumers.group_id, self)
        answer = group.join(request)
        if answer.done() and answer.result().problem not in (Problem.NONE, Problem.MEMBER_ID_REQUIRED):
            group.kill()
            return answer.result()
        kept.group = group
        # Where this is not written, the group's next record still says of which protocol it is.
        shard.append(consumers.tombstones(), lambda _: None)
        consumers.kill()
        return answer.result() if answer.done() else await asyncio.shield(answer)

    # --- offsets ------------------------------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        commits: Sequence[Commit],
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
        retention_ms: int = -1,
        knows_epochs: bool = True,
    ) -> list[Problem]:
        """OffsetCommit: the answer to each, once all that are taken are durable. The generation is a member's epoch in
        a group of the consumer protocol, which older clients do not know of."""
        if len(group_id) > NAME_CHARACTERS_MAX:
            return [Problem.INVALID_GROUP_ID] * len(commits)
        try:
            shard = await self._shards.for_change(group_id)
        except GroupError as refusal:
            return [refusal.problem] * len(commits)
        kept = shard.groups.get(group_id)
        if kept is None:
            if generation >= 0:
                return [Problem.GROUP_ID_NOT_FOUND] * len(commits)
            kept = shard.groups[group_id] = Kept(Group(group_id, self))
        problems = _judge_commits(kept, commits, member_id, instance_id, generation, knows_epochs)
        expire_ms = NO_EXPIRY if retention_ms < 0 else self.now_ms() + retention_ms
        answers, taken = self._take(commits, problems, expire_ms)
        if taken:
            problem = await self._append_commits(shard, kept, taken)
            answers = [problem if each is Problem.NONE else each for each in answers]
        self._forget_if_void(shard, kept)
        return answers

    def _take(
        self, commits: Sequence[Commit], problems: Sequence[Problem], expire_ms: int
    ) -> tuple[list[Problem], dict[TopicPartition, Committed]]:
        """The answer to each commit, as far as it alone tells, and those that are to be stored."""
        now, longest = self.now_ms(), self._config.offset_metadata_max_bytes
        answers = []
        taken: dict[TopicPartition, Committed] = {}
        for each, problem in zip(commits, problems, strict=True):
            if problem is Problem.NONE and len(each.metadata) > longest:
                problem = Problem.OFFSET_METADATA_TOO_LARGE
            answers.append(problem)
            if problem is not Problem.NONE:
                continue
            taken[each.topic, each.partition] = Committed(
                each.offset, each.leader_epoch, each.metadata, now, expire_ms, each.topic_id, self._log.epoch
            )
        return answers, taken

    async def _append_commits(self, shard: Shard, kept: Kept, taken: Mapping[TopicPartition, Committed]) -> Problem:
        offsets = kept.offsets
        answer: asyncio.Future[Problem] = self.loop.create_future()
        turn = offsets.turn()

        def durable(problem: Problem) -> None:
            offsets.sent(taken)
            if problem is Problem.NONE:
                for place, committed in taken.items():
                    offsets.outdate(place, turn)
                    offsets.put(*place, committed)
            if not answer.done():
                answer.set_result(problem)

        offsets.sending(taken)
        shard.append(_offset_changes(kept.group.group_id, taken), durable)
        return answer.result() if answer.done() else await asyncio.shield(answer)

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
        producer_id: int,
        epoch: int,
        append: AppendWithin,
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
    ) -> list[Problem]:
        """TxnOffsetCommit: offsets that count once the producer's transaction commits; the answer to each, once all
        that are taken are durable. `append` puts them into the group's partition, or raises why it does not."""
        try:
            shard = await self._shards.for_change(group_id)
        except GroupError as refusal:
            return [refusal.problem] * len(commits)
        kept = shard.groups.get(group_id)
        if kept is None:
            if generation >= 0:
                return [Problem.ILLEGAL_GENERATION] * len(commits)
            kept = shard.groups[group_id] = Kept(Group(group_id, self))
        problems = [Problem.NONE] * len(commits)
        if generation >= 0 or member_id or instance_id is not None:
            problems = [
                Problem.ILLEGAL_GENERATION if problem is Problem.STALE_MEMBER_EPOCH else problem
                for problem in _judge_commits(kept, commits, member_id, instance_id, generation)
            ]
        answers, taken = self._take(commits, problems, NO_EXPIRY)
        if not taken:
            self._forget_if_void(shard, kept)
            return answers
        offsets = kept.offsets
        answer: asyncio.Future[Problem] = self.loop.create_future()

        def undo() -> None:
            offsets.unwait(producer_id, taken)
            if producer_id not in offsets.pending:
                shard.unwait(producer_id, group_id)
            self._forget_if_void(shard, kept)

        def durable(problem: Problem) -> None:
            if problem is Problem.NONE:
                offsets.waits(producer_id, taken)
            else:
                undo()
            if not answer.done():
                answer.set_result(problem)

        offsets.wait(producer_id, taken)
        shard.waiting.setdefault(producer_id, {})[group_id] = None
        try:
            shard.append_within(producer_id, epoch, _offset_changes(group_id, taken), append, durable)
        except HeadraceError:
            undo()
            raise
        problem = answer.result() if answer.done() else await asyncio.shield(answer)
        return [problem if each is Problem.NONE else each for each in answers]

    def end_transaction(self, producer_id: int, commit: bool, indexes: Sequence[int]) -> None:
        """The markers of a producer's transaction are durable in these partitions of the topic."""
        for index in indexes:
            self._shards.all[index].end_transaction(producer_id, commit)

    def unstable(self, group_id: str, topic: str, index: int) -> bool:
        """Whether an open transaction may change an offset of a group that is in memory."""
        shards = self._shards.all
        kept = self._shards.home(group_id).groups.get(group_id) if shards else None
        return kept is not None and kept.offsets.unstable(topic, index)

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
            kept = await self._find(group_id)
        except GroupError as refusal:
            return refusal.problem, {}
        if kept is not None and isinstance(kept.group, ConsumerGroup):
            problem = kept.group.judge_fetch(member_id, member_epoch)
            if problem is not Problem.NONE:
                return problem, {}
        found: dict[str, dict[int, Committed | None]] = {}
        if asked is not None:
            for topic, indexes in asked.items():
                found[topic] = {
                    index: None if kept is None else await self._current(kept, topic, index) for index in indexes
                }
        elif kept is not None:
            for topic, index in [place for place, _ in kept.offsets]:
                committed = await self._current(kept, topic, index)
                if committed is not None:
                    found.setdefault(topic, {})[index] = committed
        return Problem.NONE, found

    async def _current(self, kept: Kept, name: str, index: int) -> Committed | None:
        """A committed offset that still means something: its topic is the same one, and the log still reaches to it."""
        committed = kept.offsets.get(name, index)
        if committed is None:
            return None
        topic = self._log.topics.get(name)
        if committed.topic_id is not None and (topic is None or topic.id != committed.topic_id):
            return None
        epoch = self._log.epoch
        if committed.written_epoch == epoch or topic is None or index >= len(topic.partitions):
            return committed
        # The log has had an unclean start since: what the commit counted as done may have been lost.
        partition = topic.partitions[index]
        if not partition.loaded:
            try:
                await partition.load()
            except HeadraceError as error:
                log.warning("could not check a committed offset", topic=name, partition=index, error=str(error))
                return committed
        if topic.settings.durability is Durability.MEMORY:
            end = partition.start
        else:
            _, end = partition.epoch_end(committed.written_epoch)
            end = partition.end if end < 0 else end
        checked = replace(committed, offset=min(committed.offset, end), written_epoch=epoch)
        if checked.offset != committed.offset:
            log.warning(
                "a committed offset was cut back to the end of the log",
                group=kept.group.group_id,
                topic=name,
                partition=index,
                committed=committed.offset,
                end=end,
            )
        if kept.offsets.get(name, index) is committed:
            kept.offsets.put(name, index, checked)
            return checked
        return await self._current(kept, name, index)

    async def delete_offsets(self, group_id: str, places: Sequence[TopicPartition]) -> tuple[Problem, list[Problem]]:
        """OffsetDelete: the problem of the whole request, and that of each partition."""
        try:
            shard = await self._shards.of(group_id)
        except GroupError as refusal:
            return refusal.problem, []
        kept = shard.groups.get(group_id) if shard else None
        if shard is None or kept is None or kept.group.state is State.DEAD:
            return Problem.GROUP_ID_NOT_FOUND, []
        group = kept.group
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
            return Problem.NON_EMPTY_GROUP, []
        read = {topic for topic in dict.fromkeys(topic for topic, _ in places) if group.reads_topic(topic)}
        problems = [Problem.GROUP_SUBSCRIBED_TO_TOPIC if topic in read else Problem.NONE for topic, _ in places]
        doomed = [place for place in places if place[0] not in read and kept.offsets.has(*place)]
        if doomed:
            problem = await self._drop_offsets(shard, kept, doomed)
            if problem is not Problem.NONE:
                return problem, []
        return Problem.NONE, problems

    def _drop_offsets(self, shard: Shard, kept: Kept, places: Sequence[TopicPartition]) -> asyncio.Future[Problem]:
        answer: asyncio.Future[Problem] = self.loop.create_future()

        def durable(problem: Problem) -> None:
            if problem is Problem.NONE:
                for place in places:
                    kept.offsets.drop(*place)
            if not answer.done():
                answer.set_result(problem)

        shard.append([(write_offset_key(kept.group.group_id, *place), None) for place in places], durable)
        return answer

    # --- administration -----------------------------------------------------------------------------------------------

    async def describe(self, group_id: str) -> tuple[Problem, GroupDescription | None]:
        """DescribeGroups, one of them; None where there is no such classic group."""
        try:
            kept = await self._find(group_id)
        except GroupError as refusal:
            return refusal.problem, None
        classic = None if kept is None or isinstance(kept.group, ConsumerGroup) else kept.group
        return Problem.NONE, None if classic is None else classic.describe()

    async def list_groups(self) -> tuple[Problem, list[GroupListing]]:
        """ListGroups."""
        listings = []
        try:
            async for shard in self._shards.loaded():
                for kept in shard.groups.values():
                    group = kept.group
                    kind = "consumer" if isinstance(group, ConsumerGroup) else "classic"
                    listings.append(GroupListing(group.group_id, group.protocol_type or "", group.state, kind))
        except GroupError as refusal:
            return refusal.problem, []
        return Problem.NONE, listings

    async def delete(self, group_id: str) -> Problem:
        """DeleteGroups, one of them."""
        try:
            shard = await self._shards.of(group_id)
        except GroupError as refusal:
            return refusal.problem
        kept = shard.groups.get(group_id) if shard else None
        if shard is None or kept is None or kept.group.state is State.DEAD:
            return Problem.GROUP_ID_NOT_FOUND
        if kept.group.state is not State.EMPTY or kept.offsets.pending:
            return Problem.NON_EMPTY_GROUP
        return await self._delete_group(shard, kept)

    def _delete_group(self, shard: Shard, kept: Kept) -> asyncio.Future[Problem]:
        """Out of sight at once, so that whoever comes now begins a new group; back if it cannot be written."""
        group_id = kept.group.group_id
        answer: asyncio.Future[Problem] = self.loop.create_future()
        del shard.groups[group_id]

        def durable(problem: Problem) -> None:
            if problem is Problem.NONE:
                kept.group.kill()
            else:
                shard.groups.setdefault(group_id, kept)
            if not answer.done():
                answer.set_result(problem)

        changes: list[Change] = [(write_offset_key(group_id, *place), None) for place in kept.offsets.places()]
        ends = kept.group.tombstones() if isinstance(kept.group, ConsumerGroup) else [(write_group_key(group_id), None)]
        shard.append([*changes, *ends], durable)
        return answer

    def committed_offsets(self) -> Iterator[tuple[str, str, int, int]]:
        """Group, topic, partition and offset of every commit in memory, for metrics; cold groups stay cold."""
        for shard in self._shards.all:
            for group_id, kept in shard.groups.items():
                for (topic, index), committed in kept.offsets:
                    yield group_id, topic, index, committed.offset

    def committed_now(self, group_id: str, topic: Topic) -> dict[int, int]:
        """The offsets that a group has committed of a topic, by partition; of a cold group none are known."""
        shards = self._shards.all
        kept = self._shards.home(group_id).groups.get(group_id) if shards else None
        if kept is None:
            return {}
        offsets = kept.offsets.by_topic.get(topic.name, {})
        return {
            index: committed.offset
            for index, committed in offsets.items()
            if committed.topic_id is None or committed.topic_id == topic.id
        }

    def committed_of(self, topic: str, index: int) -> list[tuple[str, int]]:
        """Group and offset of every commit in memory on one partition."""
        return [
            (group_id, partitions[index].offset)
            for shard in self._shards.all
            for group_id, kept in shard.groups.items()
            if (partitions := kept.offsets.by_topic.get(topic)) is not None and index in partitions
        ]

    # --- expiry -------------------------------------------------------------------------------------------------------

    def _expiry_is_due(self) -> None:
        self._expiring = self.loop.create_task(self._expire_and_rest())

    async def _expire_and_rest(self) -> None:
        try:
            await self.expire()
        except GroupError as refusal:
            log.warning("could not look for expired offsets", problem=refusal.problem.name)
        except Exception:
            log.exception("looking for expired offsets failed")
        self._expiry.set(EXPIRY_CHECK_SECONDS)

    async def expire(self) -> None:
        """Drop the offsets whose time is over or whose topic is gone, and groups that nothing is left of."""
        async for shard in self._shards.loaded():
            for count, kept in enumerate(list(shard.groups.values()), 1):
                if shard.groups.get(kept.group.group_id) is kept:
                    await self._expire_group(shard, kept)
                if count % EXPIRY_STEP_GROUPS == 0:
                    await asyncio.sleep(0)

    async def _expire_group(self, shard: Shard, kept: Kept) -> None:
        group, topics = kept.group, self._log.topics
        now, retention_ms = self.now_ms(), self._config.offsets_retention_ms
        doomed: list[TopicPartition] = []
        if isinstance(group, ConsumerGroup):
            doomed = kept.offsets.expired(now, retention_ms, None, group.reads_topic)
        elif group.state is State.EMPTY:
            # Members came and went: the group's emptiness counts. A group that never had any goes by its commits.
            since = group.state_ms if group.protocol_type and group.state_ms >= 0 else None
            doomed = kept.offsets.expired(now, retention_ms, since, lambda _: False)
        elif group.state is State.STABLE and group.protocol_type == CONSUMER:
            doomed = kept.offsets.expired(now, retention_ms, None, group.reads_topic)
        gone = [
            place
            for place, committed in kept.offsets
            if committed.topic_id is not None
            and ((topic := topics.get(place[0])) is None or topic.id != committed.topic_id)
            and not kept.offsets.changing(*place)
        ]
        doomed = list(dict.fromkeys([*doomed, *gone]))
        if doomed:
            log.info("offsets expired", group=group.group_id, offsets=len(doomed))
            await self._drop_offsets(shard, kept, doomed)
        if group.is_vacant and not kept.offsets and shard.groups.get(group.group_id) is kept:
            log.info("group expired", group=group.group_id)
            await self._delete_group(shard, kept)

    # --- what groups ask (group.Host) ---------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The calendar's time."""
        return self._runtime.clock.now_ms()

    def draw_member_id(self, prefix: str) -> str:
        """A member id that nobody has: what the client calls itself, and random bits."""
        return f"{prefix[:255]}-{UUID(bytes=self._runtime.random.bytes(16), version=4)}"

    def store(self, group: Group, assignments: Mapping[str, bytes], stored: Stored) -> None:
        """Write a group as it is, with these assignments."""
        value = StoredGroup(
            group.protocol_type or "",
            group.generation,
            group.protocol_name,
            group.roster.leader,
            group.state_ms if group.state is State.EMPTY else self.now_ms(),
            tuple(
                StoredMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(group.protocol_name),
                    assignments.get(member.member_id, b""),
                )
                for member in group.roster
            ),
        )
        shard = self._shards.home(group.group_id)
        shard.append([(write_group_key(group.group_id), write_group(value))], stored)

    def vacated(self, group: Group) -> None:
        """Nobody is left in a group."""
        shard = self._shards.home(group.group_id)
        kept = shard.groups.get(group.group_id)
        if kept is not None and kept.group is group:
            self._forget_if_void(shard, kept)

    def _forget_if_void(self, shard: Shard, kept: Kept) -> None:
        """Nothing of the group was ever stored, so that it need not be remembered."""
        group = kept.group
        if isinstance(group, ConsumerGroup):
            return
        if group.is_vacant and group.generation == 0 and not kept.offsets:
            if shard.groups.get(group.group_id) is kept:
                del shard.groups[group.group_id]
            group.kill()

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

    async def _find(self, group_id: str) -> Kept | None:
        shard = await self._shards.of(group_id)
        return None if shard is None else shard.groups.get(group_id)


def _offset_changes(group_id: str, taken: Mapping[TopicPartition, Committed]) -> list[Change]:
    return [
        (write_offset_key(group_id, topic, index), write_offset(committed))
        for (topic, index), committed in taken.items()
    ]


def _judge_commits(
    kept: Kept,
    commits: Sequence[Commit],
    member_id: str,
    instance_id: str | None,
    generation: int,
    knows_epochs: bool = True,
) -> list[Problem]:
    """Whether each may be committed in this name."""
    group = kept.group
    if not isinstance(group, ConsumerGroup):
        return [group.judge_commit(member_id, instance_id, generation)] * len(commits)
    problem = group.judge_commit(member_id, generation, knows_epochs)
    if problem is not Problem.STALE_MEMBER_EPOCH:
        return [problem] * len(commits)
    return [
        Problem.NONE if group.held(member_id, generation, each.topic_id, each.partition) else problem
        for each in commits
    ]
