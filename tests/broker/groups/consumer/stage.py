"""A stage for groups of the consumer protocol: time that stands still, a catalogue, and storage that may fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid5

from tests.broker.groups.stage import StillLoop

from headrace.broker.groups.consumer.consumer_codec import ConsumerKey, StoredConsumerGroup
from headrace.broker.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupDescription
from headrace.broker.groups.consumer.heartbeat import Answer, Heartbeat
from headrace.broker.groups.consumer.places import Places
from headrace.broker.groups.consumer.settings import GroupSettings
from headrace.broker.groups.group_codec import read_key
from headrace.broker.groups.protocol import GroupError, Problem
from headrace.broker.store import Change

NAMES = UUID(int=848)
GROUP = "g"


class ConsumerStage:
    """A host that writes to a list; `failing` says why it does not, `hold` makes it answer later."""

    def __init__(self, **topics: int) -> None:
        self.loop = StillLoop()
        self.max_size = 1_000
        self.settings = GroupSettings(session_ms=45_000, heartbeat_ms=5_000)
        self.catalogue: Any = {}
        self.catalogue_turn = 0
        self.is_guarded = False
        self.failing = Problem.NONE
        self.hold = False
        self.waiting: list[Callable[[], None]] = []
        self.written: list[Change] = []
        self.sizes: list[int] = []
        for name, partitions in topics.items():
            self.make(name, partitions)
        self.group = ConsumerGroup(GROUP, self)

    def settings_of(self, group_id: str) -> GroupSettings:
        return self.settings

    def make(self, name: str, partitions: int) -> UUID:
        """A topic, or more partitions for one."""
        topic_id = uuid5(NAMES, name)
        self.catalogue[name] = SimpleNamespace(id=topic_id, partitions=range(partitions))
        self.catalogue_turn += 1
        return topic_id

    def delete(self, name: str) -> None:
        del self.catalogue[name]
        self.catalogue_turn += 1

    def write(self, group_id: str, changes: Sequence[Change], stored: Callable[[Problem], None]) -> None:
        problem = self.failing
        self.sizes.append(sum(len(key) + len(value or b"") for key, value in changes))
        if problem is Problem.NONE:
            self.written += changes
        if self.hold:
            self.waiting.append(lambda: stored(problem))
        else:
            stored(problem)

    def release(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()

    def replayed(self) -> ConsumerGroup:
        """The group as the next start finds it."""
        stored = StoredConsumerGroup()
        for raw, value in self.written:
            key = read_key(raw)
            assert isinstance(key, ConsumerKey)
            stored.take(key, value)
        group = ConsumerGroup(GROUP, self)
        group.restore(stored)
        return group


class Client:
    """A member that does what it is told."""

    def __init__(self, stage: ConsumerStage, member_id: str, **wishes: Any) -> None:
        self.stage = stage
        self.member_id = member_id
        self.epoch = 0
        self.has: Places = {}
        self.told: Places = {}
        self.unheard = False
        """The last answer was lost: as real clients do, it then says everything again."""
        self.instance_id: str | None = wishes.pop("instance_id", None)
        self.wishes: dict[str, Any] = {"topics": ("t",), "rebalance_timeout_ms": 60_000} | wishes

    def join(self) -> Answer:
        """Join, or join again, with nothing in hand."""
        self.has = {}
        return self._beat(epoch=0, owned={}, **self.wishes)

    def beat(self, *, tells: bool = True, **changes: Any) -> Answer:
        """A heartbeat; it tells what the member owns, or leaves that out."""
        self.wishes |= {name: value for name, value in changes.items() if value is not None}
        if self.unheard:
            return self._beat(epoch=self.epoch, owned=self.has, **self.wishes)
        return self._beat(epoch=self.epoch, owned=self.has if tells else None, **changes)

    def obey(self) -> None:
        """Give back and take up what the last answer said."""
        self.has = self.told

    def leave(self, epoch: int = -1) -> Answer:
        return self._beat(epoch=epoch)

    def _beat(self, **said: Any) -> Answer:
        answer = self.stage.group.heartbeat(Heartbeat(member_id=self.member_id, instance_id=self.instance_id, **said))
        if not self.stage.failing:
            self.stage.group.answered(answer)
        self.epoch, self.unheard = answer.epoch, False
        if answer.assignment is not None:
            self.told = answer.assignment
        return answer


def settle(*clients: Client) -> None:
    """Heartbeats until nobody has anything to do."""
    for _ in range(2 * len(clients) + 2):
        for client in clients:
            client.beat()
            client.obey()


def refusal(call: Callable[[], object]) -> Problem:
    """Why a heartbeat is refused."""
    try:
        call()
    except GroupError as refused:
        return refused.problem
    return Problem.NONE


def shown(group: ConsumerGroup) -> ConsumerGroupDescription:
    return group.describe()
