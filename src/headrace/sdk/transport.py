"""What the framework asks of a system that carries messages. Kafka's wire and NSQ's are the two that there are.

A transport hands over messages as they come and is told what became of each. How it keeps to that is its own business:
NSQ's wire has words for it; on Kafka's, a group's offset moves over what is done, and retries go through topics.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headrace.sdk.message import Message, Outgoing, Receipt


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """What a subscription needs."""

    topic: str
    group: str
    ordered: bool = False
    """Messages of one key one after the other."""
    replay: bool = False
    """A group that is new begins with what is there already."""
    private: bool = False
    """Each instance gets everything, and leaves nothing behind."""
    timeout: float = 60.0
    """Seconds that a message may stay unsettled before another consumer gets it."""
    attempts: int = 0
    """Deliveries before a message is dead; 0: no limit."""
    ladder: tuple[float, ...] = ()
    """Seconds before each further delivery; the last holds for all beyond."""
    credit: int = 100
    """Messages that may be unsettled at a time."""
    exactly_once: bool = False
    """What a handler sends, and that its message is done, become known together or not at all."""
    partitions: tuple[int, ...] = ()
    """Only these, chosen by hand."""
    batch: int = 1_000
    """The most messages that are handed over together."""
    traced: float = 0.0
    """The share of messages whose deliveries the system keeps, where it can."""


class Delivery(Protocol):
    """A message that waits to be settled. Settling twice, or after the consumer has gone, does nothing."""

    @property
    def message(self) -> Message: ...

    def ack(self, sent: Sequence[Outgoing] = ()) -> None:
        """Done; with it goes what the handler sent, where the config was for exactly once."""

    def retry(self, after: float | None, reason: str) -> None:
        """Deliver it again: in so many seconds, or by the ladder."""

    def reject(self, reason: str) -> None:
        """To the dead letters."""


@runtime_checkable
class Joint(Protocol):
    """A delivery that is to know which others one call of a handler got: what was sent is of all of them."""

    def ack_with(self, together: Sequence[Delivery], sent: Sequence[Outgoing]) -> None:
        """All of these are done, itself among them; with them goes what the handler sent."""


@runtime_checkable
class Timed(Protocol):
    """A delivery, or several together, that may become another consumer's: when its time is up, or its partition is."""

    def touch(self) -> bool:
        """Let its time begin anew; false where it is known not to be this consumer's any more, and is let go."""


class Leased(Timed, Protocol):
    """A delivery with a lease: when its visibility timeout is over, another consumer gets the message."""

    @property
    def message(self) -> Message: ...

    @property
    def identity(self) -> Hashable:
        """The same for every delivery of the message."""

    def hold(self, seconds: float) -> bool:
        """Its handler runs, and is to have it for so many seconds from now; it will be touched meanwhile. False where
        the system allows less."""


@runtime_checkable
class Late(Protocol):
    """A receiver that hears of settlements that came too late."""

    on_late: Callable[[str, str], None]
    """Called on the loop with the message's id and how it was settled: ack, retry or reject."""


# Called on the loop with what has come.
Deliver = Callable[[Sequence[Delivery]], None]


class Receiver(Protocol):
    """A subscription that is open."""

    @property
    def orders(self) -> bool:
        """Whether the system itself holds back a key while a message of it is unsettled."""

    def limit(self, credit: int) -> None:
        """How many messages may be unsettled from now on; 0 pauses."""

    async def drain(self) -> None:
        """Take nothing more."""

    async def close(self) -> None:
        """Let what was settled be known to the system, and go. What was not settled is others' now."""


@runtime_checkable
class Shared(Protocol):
    """A receiver of which a part may become another consumer's while it is open."""

    on_revoked: Callable[[], None]
    """Called on the loop when that has happened: deliveries of that part say so when they are touched."""


@runtime_checkable
class Ahead(Protocol):
    """A receiver that leaves messages where they are as long as enough of them wait for workers here."""

    backlog: Callable[[], int]
    """How many do; it is asked in other threads too."""

    def check_room(self) -> None:
        """They are fewer now."""


@runtime_checkable
class Retrying(Protocol):
    """A receiver by which messages are tried again, and not in their place."""

    async def set_retries(self, attempts: int, ladder: tuple[float, ...]) -> None:
        """Other retries from now on. Raises Unsuited or OSError where the system cannot be told."""


class Transport(Protocol):
    """One way to carry messages."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, messages: Sequence[Outgoing], *, receipts: bool = False) -> Sequence[Receipt]:
        """Returns once all of them are as durable as the system makes them: a receipt for each, or nothing where none
        are wanted. Raises PublishFailed."""

    async def cancel(self, timer: str) -> bool:
        """Cancel a delayed message; false where it is not waiting any more. Raises Unsuited."""

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0 where the system does not have them."""

    async def check(self, message: Outgoing) -> None:
        """Raises PublishFailed for a message that its topic, which is there, is known not to take."""

    async def subscribe(self, config: ConsumerConfig, deliver: Deliver) -> Receiver: ...


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
