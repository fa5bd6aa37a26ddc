"""`memory://NAME`: a whole small messaging system inside the process, for tests.

It has what handlers see of a Headrace: topics with partitions, queues and groups, credit, attempts, retry schedules,
visibility timeouts, order by key, dead letters, delays; no ports, no threads, no files. Everything happens in
`MemoryBroker.turn`, which runs after each change and delivers what can be delivered, so between changes nothing is left
to do: that is how a test can know that all is settled. Its clock may be one that only the test moves.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

from headrace.format.partitioning import partition_of
from headrace.sdk.dead_letter import topic_of
from headrace.sdk.memory_group import Entry, Group
from headrace.sdk.message import Message, Outgoing, Receipt
from headrace.sdk.names import QUEUE_MAX, check_name
from headrace.sdk.outcome import ACK, REJECT, RETRY
from headrace.sdk.scenario import NSQ, Tuning
from headrace.sdk.system import Address, Unsuited
from headrace.sdk.transport import ConsumerConfig, Deliver, Delivery, PublishFailed, Receiver, Transport

if TYPE_CHECKING:
    # What became of a delivery: its group, its message, the word for it, and the reason.
    Watch = Callable[[str, Message, str, str], None]

log = structlog.get_logger("headrace.sdk")


class ManualClock:
    """A clock that the test moves."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True, order=True)
class Delayed:
    """A message that waits for its time."""

    due: float
    number: int
    message: Outgoing
    sender: str
    partitions: int


class MemoryBroker:
    """The topics and groups of one name."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.watch: Watch | None = None
        self.refused: dict[str, str] = {}
        """Topics that take nothing, and why: for tests of what happens then."""
        self.topics: dict[str, list[list[Message]]] = {}
        self._arrived: dict[str, list[tuple[Message, str]]] = {}
        self._delayed: list[Delayed] = []
        self._groups: dict[tuple[str, str, str], Group] = {}
        self._numbers = itertools.count()
        # Applications may run on loops of several threads.
        self._lock = threading.RLock()

    # --- topics ---

    def topic(self, name: str, partitions: int = 1) -> list[list[Message]]:
        """The partitions of a topic, made now if it is not there."""
        with self._lock:
            return self.topics.setdefault(name, [[] for _ in range(partitions)])

    def messages(self, topic: str) -> list[tuple[Message, str]]:
        """The messages of a topic, in the order in which they came, each with its sender."""
        with self._lock:
            self.turn()
            return list(self._arrived.get(topic, ()))

    def delayed(self, topic: str) -> list[Delayed]:
        """What waits for its time, the next first."""
        with self._lock:
            return sorted(each for each in self._delayed if each.message.topic == topic)

    def publish(self, messages: Sequence[Outgoing], sender: str, partitions: int) -> list[Receipt]:
        """Take all of them, or none. Raises PublishFailed."""
        receipts = []
        with self._changing():
            for each in messages:
                self._check(each, partitions)
            for each in messages:
                if each.delay > 0:
                    due, number = self.clock() + each.delay, next(self._numbers)
                    heapq.heappush(self._delayed, Delayed(due, number, each, sender, partitions))
                    receipts.append(Receipt(each.topic, timer=str(number)))
                else:
                    kept = self.append(each, sender, partitions)
                    receipts.append(Receipt(each.topic, kept.partition, kept.offset))
        return receipts

    def cancel(self, timer: str) -> bool:
        """Drop a message that waits for its time; false where none does."""
        with self._lock:
            left = [each for each in self._delayed if str(each.number) != timer]
            found = len(left) < len(self._delayed)
            heapq.heapify(left)
            self._delayed = left
            return found

    def _check(self, message: Outgoing, partitions: int) -> None:
        try:
            check_name("topic", message.topic)
        except ValueError as error:
            raise PublishFailed(str(error)) from None
        if message.topic in self.refused:
            raise PublishFailed(f"{message.topic}: {self.refused[message.topic]}")
        if message.partition is None:
            return
        if message.delay > 0:
            raise PublishFailed(f"{message.topic}: what is delayed cannot choose the partition {message.partition}")
        count = len(self.topic(message.topic, partitions))
        if not 0 <= message.partition < count:
            raise PublishFailed(f"{message.topic} has no partition {message.partition}: it has {count}")

    def append(self, message: Outgoing, sender: str = "", partitions: int = 1) -> Message:
        """Put a message at the end of its partition: by its key as Kafka's clients do, without one in turn."""
        log = self.topic(message.topic, partitions)
        index = message.partition
        if index is None:
            if message.key is not None:
                index = partition_of(message.key, len(log))
            else:
                index = sum(map(len, log)) % len(log)
        stamp = int(self.clock() * 1_000)
        kept = Message(message.topic, message.value, message.key, dict(message.headers), index, len(log[index]), stamp)
        log[index].append(kept)
        self._arrived.setdefault(message.topic, []).append((kept, sender))
        return kept

    # --- groups ---

    def join(self, receiver: MemoryReceiver) -> None:
        """A subscription opens. What it asks for holds for its whole group from now on."""
        config = receiver.config
        with self._changing():
            log = self.topic(config.topic, receiver.partitions)
            key = (receiver.wire, config.topic, receiver.group_name)
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = Group(self, config, divided=receiver.wire != NSQ)
                group.cursors = [0 if config.tuning.replay and not config.tuning.private else len(each) for each in log]
            group.config = config
            group.receivers.append(receiver)
            receiver.group = group

    def leave(self, receiver: MemoryReceiver) -> None:
        """A subscription has gone: what it had is others' now."""
        with self._changing():
            group = receiver.group
            if receiver not in group.receivers:
                return
            group.receivers.remove(receiver)
            group.release(receiver)
            if group.config.tuning.private:
                del self._groups[receiver.wire, receiver.config.topic, receiver.group_name]

    def settle(self, delivery: MemoryDelivery, outcome: str, after: float | None = None, reason: str = "") -> bool:
        """Settle a message as its handler decided; false where it was not in flight any more."""
        with self._changing():
            group = delivery.receiver.group
            if not delivery.in_flight:
                return False
            if self.watch is not None:
                self.watch(group.config.group, delivery.message, outcome, reason)
            if outcome == ACK:
                group.finish(delivery.entry)
            elif outcome == RETRY:
                group.give_back(delivery.entry, after, reason)
            else:
                group.bury(delivery.entry, reason)
            return True

    def touch(self, delivery: MemoryDelivery, seconds: float | None = None) -> bool:
        """Restart a delivery's visibility timeout, or extend its lease for so long: the framework does that by touching
        it again and again, but this clock may stand still. False where it is not in flight any more."""
        with self._lock:
            held = delivery.in_flight
            if held and seconds is None:
                delivery.receiver.group.touch(delivery.entry)
            elif held and seconds is not None:
                delivery.entry.held_until = max(delivery.entry.held_until, self.clock() + seconds)
            return held

    def finish(self, delivery: MemoryDelivery, sent: Sequence[Outgoing]) -> None:
        """A message is done, and what its handler sent goes out with it; or neither."""
        with self._lock:
            if delivery.in_flight:
                self.publish(sent, delivery.receiver.sender, delivery.receiver.partitions)
                self.settle(delivery, ACK)

    def undo(self, receiver: MemoryReceiver) -> None:
        """What a receiver has not settled is to be handled anew."""
        with self._changing():
            receiver.group.release(receiver)

    @property
    def unsettled(self) -> list[Message]:
        """What handlers have and have not settled."""
        with self._lock:
            return [group.message(entry) for group in self._groups.values() for entry in group.flying.values()]

    # --- time ---

    def next_due(self) -> float | None:
        """When something happens by itself: a delay, a retry or a visibility timeout ends."""
        with self._lock:
            moments = [self._delayed[0].due] if self._delayed else []
            moments += (due for group in self._groups.values() if (due := group.next_due()) is not None)
            return min(moments, default=None)

    def turn(self) -> None:
        """Do what is due, and hand out what there is to hand out."""
        with self._lock:
            now = self.clock()
            while self._delayed and self._delayed[0].due <= now:
                each = heapq.heappop(self._delayed)
                self.append(msgspec.structs.replace(each.message, delay=0.0), each.sender, each.partitions)
            # Letters of one group may be the messages of another.
            while any(group.turn(now) for group in list(self._groups.values())):
                pass
            due = None if isinstance(self.clock, ManualClock) else self.next_due()
            if due is not None:
                for group in self._groups.values():
                    for receiver in group.receivers:
                        receiver.wake(due, due - now)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            yield
            self.turn()


class MemoryTransport(Transport):
    """One application's way into a broker."""

    def __init__(self, address: Address, client_id: str, wire: str) -> None:
        self._broker = get_broker(address.memory)
        self._partitions = address.partitions
        self._client_id = client_id
        self._wire = wire

    async def partitions(self, topic: str) -> int:
        return 0 if self._wire == NSQ else len(self._broker.topic(topic, self._partitions))

    async def publish(self, messages: Sequence[Outgoing], *, receipts: bool = False) -> Sequence[Receipt]:
        return self._broker.publish(messages, self._client_id, self._partitions)

    async def cancel(self, timer: str) -> bool:
        return self._broker.cancel(timer)

    async def subscribe(self, config: ConsumerConfig, deliver: Deliver) -> MemoryReceiver:
        try:
            # A queue's letters go to a topic whose name is made of both.
            most = {"most": QUEUE_MAX} if self._wire == NSQ else {}
            check_name("topic", config.topic, **most)
            check_name("group", config.group, **most)
            if not config.tuning.private:
                check_name("topic", topic_of(config.topic, config.group))
        except ValueError as error:
            raise Unsuited(f"{config.topic}/{config.group} cannot be subscribed to: {error}") from None
        count = len(self._broker.topic(config.topic, self._partitions))
        if missing := [each for each in config.tuning.partitions if each >= count]:
            raise Unsuited(f"the topic {config.topic!r} has {count} partitions, and not {missing[0]}")
        receiver = MemoryReceiver(self._broker, config, deliver, self._wire, self._client_id, self._partitions)
        self._broker.join(receiver)
        return receiver


class MemoryReceiver(Receiver):
    orders = True

    def __init__(
        self, broker: MemoryBroker, config: ConsumerConfig, deliver: Deliver, wire: str, sender: str, partitions: int
    ) -> None:
        super().__init__(config, deliver)
        self.wire = wire
        self.sender = sender
        self.partitions = partitions
        self.credit = config.credit
        self.unsettled = 0
        self.group: Group
        self.group_name = f"{config.group}-{id(self):x}#ephemeral" if config.tuning.private else config.group
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes = math.inf
        self._closed = False

    @property
    def alive(self) -> bool:
        """Whether it can be given anything: the loop of a test that failed is gone without a word."""
        return not self._loop.is_closed()

    def limit(self, credit: int) -> None:
        self.credit = credit
        self._broker.turn()

    async def set_retries(self, tuning: Tuning) -> None:
        await super().set_retries(tuning)
        self.group.config = self.config

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._broker.leave(self)

    def hand(self, entries: Sequence[Entry]) -> None:
        """Deliver messages, on the receiver's own loop."""
        deliveries = [MemoryDelivery(self._broker, self, entry) for entry in entries]
        self._loop.call_soon_threadsafe(self._take, deliveries)

    def _take(self, deliveries: list[MemoryDelivery]) -> None:
        if not self._closed:
            self._deliver(deliveries)

    def wake(self, due: float, seconds: float) -> None:
        """Look again at a time, in so many seconds, unless it is looked earlier anyway."""
        if due < self._wakes:
            self._wakes = due
            self._loop.call_soon_threadsafe(self._set, seconds)

    def _set(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            self._timer = self._loop.call_later(max(seconds, 0.0), self._look)

    def _look(self) -> None:
        self._wakes = math.inf
        self._broker.turn()


class MemoryDelivery(Delivery):
    """A message in flight."""

    __slots__ = ("_broker", "entry", "receiver")

    leased = True

    def __init__(self, broker: MemoryBroker, receiver: MemoryReceiver, entry: Entry) -> None:
        super().__init__(receiver.group.message(entry))
        self._broker = broker
        self.receiver = receiver
        self.entry = entry

    @property
    def in_flight(self) -> bool:
        return self.receiver.group.holds(self.entry, self.receiver, self.message.attempt)

    def touch(self) -> bool:
        return self._broker.touch(self)

    def hold(self, seconds: float) -> bool:
        return self._broker.touch(self, seconds)

    def ack(self) -> None:
        self._settle(ACK)

    def ack_with(self, together: Sequence[Delivery], sent: Sequence[Outgoing]) -> None:
        if sent:
            try:
                self._broker.finish(self, sent)
            except PublishFailed as error:
                # Nothing of it counts: everything that was under way comes again.
                log.warning("what was done is undone", message=self.message.id, error=str(error))
                self._broker.undo(self.receiver)
            together = [each for each in together if each is not self]
        super().ack_with(together, ())

    def retry(self, after: float | None, reason: str) -> None:
        self._settle(RETRY, after, reason)

    def reject(self, reason: str) -> None:
        self._settle(REJECT, None, reason)

    def _settle(self, outcome: str, after: float | None = None, reason: str = "") -> None:
        if self._settled:
            return
        self._settled = True
        if not self._broker.settle(self, outcome, after, reason):
            self.receiver.on_late(self.message.id, outcome)


# --- the brokers of this process --------------------------------------------------------------------------------------

_brokers: dict[str, MemoryBroker] = {}


def get_broker(name: str = "") -> MemoryBroker:
    """The broker of that name, created if there is none."""
    return _brokers.setdefault(name, MemoryBroker())


def register_broker(name: str, made: MemoryBroker) -> None:
    """Give a broker a name."""
    _brokers[name] = made


def remove_broker(name: str = "") -> None:
    """Drop a broker, with everything in it."""
    _brokers.pop(name, None)
