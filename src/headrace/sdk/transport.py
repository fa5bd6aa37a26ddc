"""What the framework asks of a system that carries messages. Kafka's wire and NSQ's are the two that there are.

A transport delivers messages and gets the outcome of each. How it settles them is its own business: NSQ's wire has
commands for it; on Kafka's, a group's offset moves over what is done, and retries go through topics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from headrace.sdk.message import Message, Outgoing, Receipt
from headrace.sdk.scenario import Tuning


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """What a subscription needs of its system."""

    topic: str
    group: str
    tuning: Tuning
    credit: int
    """Messages that may be unsettled at a time, to begin with; 0: it begins paused."""
    batch: int = 1_000
    """The most messages that are delivered together."""


class Delivery(ABC):
    """A message that waits to be settled. Settling twice, or after the consumer has gone, does nothing."""

    __slots__ = ("_settled", "message")

    leased = False
    """Whether another consumer gets the message when its visibility timeout is over."""

    def __init__(self, message: Message) -> None:
        self.message = message
        """As the handler is to see it."""
        self._settled = False

    @property
    def identity(self) -> Hashable:
        """The same for every delivery of the message."""
        return self.message.topic, self.message.partition, self.message.offset

    @abstractmethod
    def ack(self) -> None:
        """Done."""

    def ack_with(self, together: Sequence[Delivery], sent: Sequence[Outgoing]) -> None:
        """All of these are done, which one call of a handler got. With them goes what it sent, where
        that happens exactly once."""
        for each in together:
            each.ack()

    @abstractmethod
    def retry(self, after: float | None, reason: str) -> None:
        """Deliver it again: in so many seconds, or by the retry schedule."""

    @abstractmethod
    def reject(self, reason: str) -> None:
        """To the dead letters."""

    def touch(self) -> bool:
        """Restart its visibility timeout; false where another consumer is known to have it by now."""
        return True

    def hold(self, seconds: float) -> bool:
        """Its handler runs, and is to have it for so many seconds from now; it will be touched meanwhile. False where
        the system allows less."""
        return True


# Called on the loop with what has come.
Deliver = Callable[[Sequence[Delivery]], None]


class Receiver:
    """A subscription that is open."""

    orders = False
    """Whether the system itself holds back a key while a message of it is unsettled."""

    def __init__(self, config: ConsumerConfig, deliver: Deliver) -> None:
        self.config = config
        self._deliver = deliver
        self.on_revoked: Callable[[], None] = lambda: None
        """Called on the loop when partitions have become another consumer's: their deliveries are lost when touched."""
        self.on_late: Callable[[str, str], None] = lambda message, operation: None
        """Called on the loop for a settlement that came too late: the message's id, and ack, retry or reject."""
        self.backlog: Callable[[], int] = lambda: 0
        """How many messages wait for workers; may be called in any thread."""

    def limit(self, credit: int) -> None:
        """How many messages may be unsettled from now on; 0 pauses."""
        raise NotImplementedError

    def check_room(self) -> None:
        """The backlog is shorter now: a receiver that leaves messages where they are may go on."""

    async def set_retries(self, tuning: Tuning) -> None:
        """Retry by these values from now on. Raises Unsuited or OSError where the system cannot be
        configured."""
        self.config = replace(self.config, tuning=tuning)

    async def drain(self) -> None:
        """Take nothing more."""
        self.limit(0)

    async def close(self) -> None:
        """Report what was settled to the system, and leave. What was not settled goes to other consumers."""
        raise NotImplementedError


class Transport:
    """One way to carry messages."""

    async def open(self) -> None:
        """Connect, so that what cannot work fails at once."""

    async def close(self) -> None: ...

    async def publish(self, messages: Sequence[Outgoing], *, receipts: bool = False) -> Sequence[Receipt]:
        """Returns once all of them are as durable as the system makes them: a receipt for each, or nothing where none
        are wanted. Raises PublishFailed."""
        raise NotImplementedError

    async def cancel(self, timer: str) -> bool:
        """Cancel a delayed message; false where it is not waiting any more. Raises Unsuited."""
        raise NotImplementedError

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0 where the system does not have them."""
        return 0

    async def check(self, message: Outgoing) -> None:
        """Raises PublishFailed for a message that its topic, which exists, is known to refuse."""

    async def subscribe(self, config: ConsumerConfig, deliver: Deliver) -> Receiver:
        raise NotImplementedError


class PublishFailed(Exception):
    """Messages could not be sent; nothing is known of those that were on their way."""

    def __init__(self, reason: str, topics: Iterable[str] = (), messages: Iterable[Outgoing] = ()) -> None:
        super().__init__(reason)
        self.topics = frozenset(topics)
        """Those of which messages failed, where all others are known to be there; where both this and `messages` are
        empty, that is not known."""
        self.messages = tuple(messages)
        """These failed, whatever became of others of their topics."""

    def concerns(self, message: Outgoing) -> bool:
        """Whether a message may have failed."""
        if not self.topics and not self.messages:
            return True
        return message.topic in self.topics or any(message is each for each in self.messages)


class UnsupportedPublish(PublishFailed):
    """The system cannot send such a message at all: another attempt is of no use. A handler's message is rejected."""


class TooLarge(PublishFailed):
    """A message is larger than its topic takes."""

    def __init__(self, reason: str, message: Outgoing, size: int) -> None:
        super().__init__(reason, messages=[message])
        self.size = size
        """What it needs, in bytes."""
