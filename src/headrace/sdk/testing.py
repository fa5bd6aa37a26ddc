"""For users' tests: applications on a broker in memory, without a port, with a clock that the test moves.

    async with Harness(app) as harness:
        await harness.publish("orders", Order(7))
        await harness.settled()
        assert harness.sent("paid", Order) == [Order(7)]

The application is the one that runs in production: for the length of the test it is connected to `memory://`, whatever
URL it was declared with. A retry or a delay never comes by waiting, only by `await harness.advance(seconds)`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack, overload

import msgspec

from headrace.format.headers import (
    ATTEMPTS,
    ERROR,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_QUEUE,
    ORIGIN_TOPIC,
)
from headrace.sdk.app import App
from headrace.sdk.blocking import Facade, blocking
from headrace.sdk.memory import ManualClock, MemoryBroker, register_broker, remove_broker
from headrace.sdk.message import Message, Receipt
from headrace.sdk.payload import decoder
from headrace.sdk.values import SendOptions

Payload = TypeVar("Payload")

TIMEOUT_SECONDS = 5.0
POLL_SECONDS = 0.001
# The sender of what the test itself publishes; no application has this name.
OUTSIDE = "#test"
ADDED = "headrace-"

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Handled:
    """The outcome of one delivery."""

    group: str
    message: Message
    outcome: str
    """ack, retry or reject."""
    reason: str


@dataclass(frozen=True, slots=True)
class Dead:
    """A dead letter."""

    group: str
    message: Message
    """As it was delivered the last time."""
    reason: str


@dataclass(frozen=True, slots=True)
class Later:
    """A message that is delayed."""

    message: Message
    seconds: float
    """Until it is due."""


@contextmanager
def connected(app: App, url: str, *, given: Mapping[type, Any] | None = None) -> Iterator[App]:
    """Let an application run on another system for a while, such as that of a broker which a test has started; `given`
    takes the place of what it provides."""
    before, factories = app.url, dict(app._factories)
    app.connect(url)
    for kind, value in (given or {}).items():
        app.provide(kind, _make_factory(value))
    try:
        yield app
    finally:
        app.connect(before)
        app._factories.clear()
        app._factories.update(factories)


class Inspection:
    """What a test sees of the applications, and what it lets fail."""

    def __init__(self, broker: MemoryBroker, clock: ManualClock, handled: list[Handled]) -> None:
        self.handled = handled
        """The outcome of each delivery, in order."""
        self._broker = broker
        self._clock = clock

    def refuse(self, topic: str, reason: str = "the test wants it so") -> None:
        """Let every publish to a topic fail with PublishFailed."""
        self._broker.refused[topic] = reason

    def accept(self, topic: str) -> None:
        """Let it succeed again."""
        self._broker.refused.pop(topic, None)

    @property
    def now(self) -> float:
        """The time of this broker, in seconds since 1970."""
        return self._clock.now

    @overload
    def sent(self, topic: str) -> list[Message]: ...

    @overload
    def sent(self, topic: str, kind: type[Payload]) -> list[Payload]: ...

    def sent(self, topic: str, kind: type[Payload] | None = None) -> list[Message] | list[Payload]:
        """What the applications have sent to a topic, in order: messages, or their payloads as a `kind`."""
        messages = [each for each, sender in self._broker.messages(topic) if sender and sender != OUTSIDE]
        if kind is None:
            return messages
        decode = decoder(kind)
        return [decode(each.value) for each in messages]

    def delayed(self, topic: str) -> list[Later]:
        """What was sent to a topic and is not due yet, the next first."""
        return [
            Later(Message(topic, each.message.value, each.message.key, each.message.headers), each.due - self.now)
            for each in self._broker.delayed(topic)
        ]

    def dead(self, topic: str, group: str = "") -> list[Dead]:
        """The dead letters of a topic: of one group, or of all."""
        letters = [
            _dead(message)
            for name in list(self._broker.topics)
            if name.startswith(f"{topic}.") and name.endswith(".dead")
            for message, _ in self._broker.messages(name)
        ]
        return [each for each in letters if each.message.topic == topic and group in ("", each.group)]


class Harness(Inspection):
    """One or several applications in a broker of their own."""

    def __init__(self, *apps: App, partitions: int = 1, given: Mapping[type, Any] | None = None) -> None:
        """Topics have so many partitions; `given` takes the place of what the applications provide."""
        if not apps:
            raise ValueError("a harness needs an application to test")
        clock = ManualClock(time.time())
        super().__init__(MemoryBroker(clock), clock, [])
        self._broker.watch = lambda *outcome: self.handled.append(Handled(*outcome))
        self._apps = apps
        self._given = dict(given or {})
        self._name = f"harness-{next(_numbers)}"
        self._url = f"memory://{self._name}?partitions={partitions}"
        self._outside = App(OUTSIDE, self._url)
        self._life = AsyncExitStack()

    async def __aenter__(self) -> Harness:
        register_broker(self._name, self._broker)
        async with AsyncExitStack() as life:
            life.callback(remove_broker, self._name)
            for app in self._apps:
                life.enter_context(connected(app, self._url, given=self._given))
                for topic, plan in app.topics.items():
                    self._outside._topics.setdefault(topic, plan)
                await app.start()
                life.push_async_callback(app.stop)
                for running in app.running:
                    # A limit is for the system behind: here it would only make the test wait.
                    running.change(running.tuning.changed({"rate": 0.0}))
            self._life = life.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._life.aclose()

    def blocking(self) -> BlockingHarness:
        """The harness for tests that are not async."""
        return BlockingHarness(self)

    # --- doing --------------------------------------------------------------------------------------------------------

    async def publish(self, topic: str, payload: Any, **options: Unpack[SendOptions]) -> Receipt:
        """Send a message from outside the applications; the key is taken from the payload where one of them declares
        so."""
        return await self._outside.publish(topic, payload, **options)

    async def settled(self, timeout: float = TIMEOUT_SECONDS) -> None:
        """Wait until handlers have nothing left to do, unless time moves. Raises TimeoutError."""
        try:
            async with asyncio.timeout(timeout):
                # Nothing tells when the handler of a message that is settled already has ended.
                while not await self._idle():  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            left = self._broker.unsettled
            named = ", ".join(f"{each.id} (delivery {each.attempt})" for each in left[:5])
            raise TimeoutError(f"{len(left)} messages are not settled after {timeout} s: {named}") from None

    async def advance(self, seconds: float, *, settle: bool = True, timeout: float = TIMEOUT_SECONDS) -> None:
        """Let time pass: what comes due meanwhile is delivered, each at its time. Without `settle` handlers are not
        waited for, so that what they hold can time out."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        end = self._clock.now + seconds
        while True:
            if settle:
                await self.settled(timeout)
            due = self._broker.next_due()
            if due is None or due > end:
                break
            self._clock.now = max(due, self._clock.now)
            self._broker.turn()
        self._clock.now = end

    async def _idle(self) -> bool:
        for app in self._apps:
            await app.flush()
        at_work = any(running.waiting for app in self._apps for running in app.running)
        return not at_work and not self._broker.unsettled


class BlockingHarness(Facade[Harness], Inspection):
    """The same, for tests that are not async: `with Harness(app).blocking() as harness:`."""

    def __init__(self, harness: Harness) -> None:
        Facade.__init__(self, harness, "harness")
        Inspection.__init__(self, harness._broker, harness._clock, harness.handled)

    publish = blocking(Harness.publish)
    settled = blocking(Harness.settled)
    advance = blocking(Harness.advance)


def _make_factory(value: Any) -> Callable[[], Awaitable[Any]]:
    """A factory whose value is taken as it is, even where it is a context manager, as mocks are."""

    async def factory() -> Any:
        return value

    return factory


def _dead(letter: Message) -> Dead:
    added = {name: value.decode(errors="replace") for name, value in letter.headers.items() if name.startswith(ADDED)}
    own = {name: value for name, value in letter.headers.items() if name not in added}
    message = msgspec.structs.replace(
        letter,
        topic=added[ORIGIN_TOPIC],
        partition=int(added[ORIGIN_PARTITION]),
        offset=int(added[ORIGIN_OFFSET]),
        attempt=int(added[ATTEMPTS]),
        headers=own,
    )
    return Dead(added[ORIGIN_QUEUE], message, added[ERROR])
