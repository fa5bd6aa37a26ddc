"""The consumer protocol's side of the coordinator: finds the group of a heartbeat, and is what its groups stand on.

Groups of both protocols live side by side in the same shards. A group that nobody is in becomes one of the other
protocol when a member of that comes, and keeps its offsets; a group that somebody is in does not (Kafka calls this the
migration policy `disabled`).
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.groups.consumer.assignors import ASSIGNORS
from headrace.broker.groups.consumer.group import ConsumerGroup
from headrace.broker.groups.consumer.protocol import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    Answer,
    Beat,
    ConsumerGroupDescription,
    Refused,
)
from headrace.broker.groups.protocol import NAME_CHARACTERS_MAX, Problem
from headrace.broker.groups.records import Change, write_group_key
from headrace.broker.groups.shard import Kept, Shard
from headrace.broker.groups.shards import NotNow
from headrace.broker.topics import Topics
from headrace.config import Config
from headrace.ground import Ground
from headrace.log.interface import Topic

if TYPE_CHECKING:
    from headrace.broker.groups.shards import Shards


class ConsumerCoordinator:
    """All groups of the consumer protocol of this broker."""

    def __init__(self, ground: Ground, loop: AbstractEventLoop, topics: Topics, config: Config) -> None:
        self.loop = loop
        self.max_size = config.group_max_size
        self.session_ms = config.group_consumer_session_timeout_ms
        self.heartbeat_ms = config.group_consumer_heartbeat_interval_ms
        self.catalogue_turn = 0
        self._ground = ground
        self._topics = topics
        topics.changed.append(self._catalogue_changes)

    def stand_on(self, shards: Shards) -> None:
        """Where groups are kept; they are kept there by this, so it comes second."""
        self._shards = shards

    # --- what members and administrators ask --------------------------------------------------------------------------

    async def heartbeat(self, group_id: str, beat: Beat, *, draws_id: bool = False) -> Answer:
        """ConsumerGroupHeartbeat: answered once what it changes is durable. An older client's member `draws_id`."""
        try:
            _judge(group_id, beat, draws_id)
            if not beat.member_id:
                beat = replace(beat, member_id=str(UUID(bytes=self._ground.random.bytes(16), version=4)))
            group = await self._find(group_id) if beat.epoch != JOINING else await self._find_or_make(group_id)
            try:
                answer = group.heartbeat(beat)
            except Refused:
                self._forget_if_void(group)
                raise
            problem = await group.saved()
        except Refused as refusal:
            return Answer(problem=refusal.problem, message=str(refusal))
        except NotNow as refusal:
            return Answer(problem=refusal.problem)
        return answer if problem is Problem.NONE else Answer(problem=problem)

    async def describe(self, group_id: str) -> tuple[Problem, str | None, ConsumerGroupDescription | None]:
        """ConsumerGroupDescribe, one of them, or why not."""
        try:
            shard = await self._shards.of(group_id)
        except NotNow as refusal:
            return refusal.problem, None, None
        kept = shard.groups.get(group_id) if shard else None
        if kept is None:
            return Problem.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.", None
        if not isinstance(kept.group, ConsumerGroup):
            return Problem.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.", None
        return Problem.NONE, None, kept.group.describe()

    # --- finding ------------------------------------------------------------------------------------------------------

    async def _find(self, group_id: str) -> ConsumerGroup:
        shard = await self._shards.of(group_id)
        kept = shard.groups.get(group_id) if shard else None
        if kept is None:
            raise Refused(Problem.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if not isinstance(kept.group, ConsumerGroup):
            raise _is_classic(group_id)
        return kept.group

    async def _find_or_make(self, group_id: str) -> ConsumerGroup:
        shard = await self._shards.for_change(group_id)
        kept = shard.groups.get(group_id)
        if kept is None:
            group = ConsumerGroup(group_id, self)
            shard.groups[group_id] = Kept(group)
            return group
        return kept.group if isinstance(kept.group, ConsumerGroup) else self._convert(shard, kept)

    def _forget_if_void(self, group: ConsumerGroup) -> None:
        """Nothing of the group was ever stored, so that it need not be remembered."""
        groups = self._shards.home(group.group_id).groups
        kept = groups.get(group.group_id)
        if kept is not None and kept.group is group and group.epoch == 0 and not kept.offsets:
            del groups[group.group_id]

    def _convert(self, shard: Shard, kept: Kept) -> ConsumerGroup:
        """Make an empty classic group one of the consumer protocol."""
        classic = kept.group
        if not classic.is_vacant:
            raise _is_classic(classic.group_id)
        classic.kill()
        group = kept.group = ConsumerGroup(classic.group_id, self)
        # Where this is not written, the group's next record still says of which protocol it is.
        shard.append([(write_group_key(classic.group_id), None)], lambda _: None)
        return group

    # --- what groups ask (consumer.group.ConsumerHost) ----------------------------------------------------------------

    @property
    def catalogue(self) -> Mapping[str, Topic]:
        """Every topic, by name."""
        return self._topics.all

    def write(self, group_id: str, changes: Sequence[Change], stored: Callable[[Problem], None]) -> None:
        """Write changes of a group."""
        self._shards.home(group_id).append(changes, stored)

    def _catalogue_changes(self, topic: Topic) -> None:
        self.catalogue_turn += 1


def _judge(group_id: str, beat: Beat, draws_id: bool) -> None:
    """Refuse what no group could take."""

    def refuse_if(wrong: bool, message: str) -> None:
        if wrong:
            raise Refused(Problem.INVALID_REQUEST, message)

    joining = beat.epoch == JOINING
    refuse_if(not beat.member_id and not (joining and draws_id), "MemberId can't be empty.")
    refuse_if(not group_id, "GroupId can't be empty.")
    refuse_if(beat.instance_id == "", "InstanceId can't be empty.")
    refuse_if(beat.rack_id == "", "RackId can't be empty.")
    for name in (group_id, beat.member_id, beat.instance_id, beat.rack_id, beat.client_id):
        too_long = f"A name of a group or member has at most {NAME_CHARACTERS_MAX} characters."
        refuse_if(len(name or "") > NAME_CHARACTERS_MAX, too_long)
    if joining:
        refuse_if(beat.rebalance_timeout_ms == -1, "RebalanceTimeoutMs must be provided in first request.")
        refuse_if(beat.owned is None or bool(beat.owned), "TopicPartitions must be empty when (re-)joining.")
        refuse_if(
            beat.topics is None and beat.pattern is None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )
    refuse_if(beat.epoch == LEAVING_FOR_A_WHILE and beat.instance_id is None, "InstanceId can't be null.")
    refuse_if(beat.epoch < LEAVING_FOR_A_WHILE, "MemberEpoch is invalid.")
    if beat.assignor is not None and beat.assignor not in ASSIGNORS:
        raise Refused(
            Problem.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {beat.assignor[:200]} is not supported. Supported assignors: {', '.join(ASSIGNORS)}.",
        )


def _is_classic(group_id: str) -> Refused:
    return Refused(Problem.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
