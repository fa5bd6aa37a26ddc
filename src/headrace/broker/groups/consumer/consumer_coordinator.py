"""The consumer protocol's side of the coordinator: finds the group of a heartbeat, and is what its groups stand on.

Groups of both protocols live side by side in the same shards. An empty group becomes one of the other
protocol when a member of that comes, and keeps its offsets; a group with members does not (Kafka calls this the
migration policy `disabled`).
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.groups.consumer.assignors import ASSIGNORS
from headrace.broker.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupDescription
from headrace.broker.groups.consumer.heartbeat import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    Answer,
    Heartbeat,
)
from headrace.broker.groups.consumer.settings import GroupSettings, group_settings
from headrace.broker.groups.protocol import NAME_CHARACTERS_MAX, GroupError, Problem, State
from headrace.broker.groups.shard import Shard
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import Change
from headrace.broker.topics import NAME_MAX, Topics
from headrace.log.interface import Topic
from headrace.runtime import Runtime

if TYPE_CHECKING:
    from headrace.broker.groups.shards import Shards

# They stand in the key of every record of a member.
ID_CHARACTERS_MAX = 255
TOPICS_MAX = 10_000


class ConsumerCoordinator:
    """All groups of the consumer protocol of this broker."""

    def __init__(self, runtime: Runtime, loop: AbstractEventLoop, topics: Topics, config: BrokerSettings) -> None:
        self.loop = loop
        self.max_size = config.group_max_size
        self._config = config
        self.own_settings: Callable[[str], Mapping[str, str]] = lambda group_id: {}
        """What is set for one group, by Kafka's names."""
        self.catalogue_turn = 0
        self.is_guarded = config.authorization != "off"
        self._runtime = runtime
        self._topics = topics
        topics.changed.append(self._catalogue_changes)

    def stand_on(self, shards: Shards) -> None:
        """Where groups are kept; they are kept there by this, so it comes second."""
        self._shards = shards

    # --- what members and administrators ask --------------------------------------------------------------------------

    async def heartbeat(self, group_id: str, beat: Heartbeat, *, draws_id: bool = False) -> Answer:
        """ConsumerGroupHeartbeat: answered once what it changes is durable. An older client's member `draws_id`."""
        try:
            _judge(group_id, beat, draws_id)
            if not beat.member_id:
                beat = replace(beat, member_id=str(UUID(bytes=self._runtime.random.bytes(16), version=4)))
            joining = beat.epoch == JOINING
            shard = await (self._shards.for_change(group_id) if joining else self._shards.of(group_id))
            group = self._group(shard, group_id, joining)
            answer = group.heartbeat(beat)
            if joining and shard is not None:
                self._attach(shard, group)
            problem = await group.saved()
        except GroupError as refusal:
            return Answer(problem=refusal.problem, message=refusal.message)
        if problem is not Problem.NONE:
            return Answer(problem=problem)
        group.answered(answer)
        return answer

    async def describe(self, group_id: str) -> tuple[Problem, str | None, ConsumerGroupDescription | None]:
        """ConsumerGroupDescribe, one of them, or why not."""
        try:
            shard = await self._shards.of(group_id)
        except GroupError as refusal:
            return refusal.problem, None, None
        group = shard.groups.get(group_id) if shard else None
        if isinstance(group, ConsumerGroup):
            return Problem.NONE, None, group.describe()
        return Problem.GROUP_ID_NOT_FOUND, _not_found(group_id, group), None

    # --- finding ------------------------------------------------------------------------------------------------------

    def _group(self, shard: Shard | None, group_id: str, joining: bool) -> ConsumerGroup:
        """The group of a heartbeat; for who joins, a new one where there is none that could be joined."""
        group = None if shard is None else shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        # A client that was given an id and has yet to come back with it is in no group: it may be gone.
        if not joining or (group is not None and group.state is not State.EMPTY):
            raise GroupError(Problem.GROUP_ID_NOT_FOUND, _not_found(group_id, group))
        return ConsumerGroup(group_id, self)

    def _attach(self, shard: Shard, group: ConsumerGroup) -> None:
        """Remember a group that a member has joined, in the place of an empty classic one."""
        before = shard.groups.get(group.group_id)
        if before is None:
            shard.groups[group.group_id] = group
        elif before is not group:
            shard.replace(before, group)

    # --- what groups ask (consumer.group.ConsumerHost) ----------------------------------------------------------------

    def settings_of(self, group_id: str) -> GroupSettings:
        """What counts for a group."""
        return group_settings(self.own_settings(group_id), self._config)

    @property
    def catalogue(self) -> Mapping[str, Topic]:
        """Every topic, by name."""
        return self._topics.all

    def write(self, group_id: str, changes: Sequence[Change], stored: Callable[[Problem], None]) -> None:
        """Write changes of a group."""
        self._shards.home(group_id).append(changes, stored)

    def on_rights_changed(self, users: Collection[str] | None) -> None:
        """Patterns may mean other topics: each group looks again with its next heartbeat."""
        self.catalogue_turn += 1

    def _catalogue_changes(self, topic: Topic) -> None:
        self.catalogue_turn += 1


def _not_found(group_id: str, group: object | None) -> str:
    return f"Group {group_id} {'not found' if group is None else 'is not a consumer group'}."


def _judge(group_id: str, beat: Heartbeat, draws_id: bool) -> None:
    """Refuse what no group could take."""

    def refuse_if(wrong: bool, message: str) -> None:
        if wrong:
            raise GroupError(Problem.INVALID_REQUEST, message)

    joining = beat.epoch == JOINING
    refuse_if(not beat.member_id and not (joining and draws_id), "MemberId can't be empty.")
    refuse_if(not group_id, "GroupId can't be empty.")
    refuse_if(beat.instance_id == "", "InstanceId can't be empty.")
    refuse_if(beat.rack_id == "", "RackId can't be empty.")
    for name in (group_id, beat.member_id, beat.instance_id, beat.rack_id):
        longer = f"Ids of groups, members, instances and racks have at most {ID_CHARACTERS_MAX} characters."
        refuse_if(len(name or "") > ID_CHARACTERS_MAX, longer)
    refuse_if(len(beat.client_id) > NAME_CHARACTERS_MAX, f"A client's id has at most {NAME_CHARACTERS_MAX} characters.")
    refuse_if(
        len(beat.topics or ()) > TOPICS_MAX, f"A member subscribes to at most {TOPICS_MAX} topics: use a pattern."
    )
    refuse_if(any(len(topic) > NAME_MAX for topic in beat.topics or ()), f"Topics have at most {NAME_MAX} characters.")
    refuse_if(beat.rebalance_timeout_ms < -1, "RebalanceTimeoutMs is invalid.")
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
        raise GroupError(
            Problem.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {beat.assignor[:200]} is not supported. Supported assignors: {', '.join(ASSIGNORS)}.",
        )
