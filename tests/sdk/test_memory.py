"""The system in memory, driven at random: nothing is lost, nothing done twice, keys keep their order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.in_memory import consumer_config

from headrace.sdk.memory import ManualClock, MemoryBroker, MemoryDelivery, MemoryReceiver
from headrace.sdk.message import Outgoing
from headrace.sdk.scenario import KAFKA, NSQ
from headrace.sdk.transport import ConsumerConfig

ATTEMPTS = 3
PARTITIONS = 3

PUBLISH = st.tuples(st.just("publish"), st.sampled_from([b"a", b"b", None]), st.sampled_from([0.0, 0.0, 20.0]))
SETTLE = st.tuples(st.just("settle"), st.integers(0, 20), st.sampled_from(["ack", "retry", "later", "reject"]))
STEPS = st.lists(
    st.one_of(
        PUBLISH,
        PUBLISH,
        SETTLE,
        SETTLE,
        st.tuples(st.just("pass"), st.sampled_from([1.0, 10.0, 31.0]), st.none()),
        st.tuples(st.just("open"), st.sampled_from([1, 2, 5]), st.none()),
        st.tuples(st.just("close"), st.integers(0, 5), st.none()),
        st.tuples(st.just("limit"), st.integers(0, 5), st.sampled_from([0, 1, 4])),
    ),
    min_size=20,
    max_size=60,
)


@dataclass
class Play:
    """One run: a broker, who reads, and what is known of each message."""

    config: ConsumerConfig
    wire: str
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_000.0))
    receivers: list[MemoryReceiver] = field(default_factory=list)
    held: list[MemoryDelivery] = field(default_factory=list)
    published: int = 0
    done: list[tuple[bytes | None, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broker = MemoryBroker(self.clock)
        self.broker.topic("orders", PARTITIONS)
        self.broker.watch = self._saw

    def _saw(self, group: str, message: Any, word: str, reason: str) -> None:
        if word == "ack":
            self.done.append((message.key, message.partition, message.offset))

    async def step(self, action: str, one: Any, two: Any) -> None:
        match action:
            case "publish":
                value = b"%d" % self.published
                self.broker.publish([Outgoing("orders", value, one, delay=two)], "test", PARTITIONS)
                self.published += 1
            case "settle" if self.held:
                # Late ones too: what is over must not count.
                self.settle(self.held[one % len(self.held)], two)
            case "pass":
                self.clock.now += one
                self.broker.turn()
            case "open" if len(self.receivers) < 4:
                receiver = MemoryReceiver(self.broker, self.config, self.held.extend, self.wire, "test", PARTITIONS)
                receiver.credit = one
                self.broker.join(receiver)
                self.receivers.append(receiver)
            case "close" if self.receivers:
                await self.receivers.pop(one % len(self.receivers)).close()
            case "limit" if self.receivers:
                self.receivers[one % len(self.receivers)].limit(two)
        # What was handed out arrives.
        await asyncio.sleep(0)
        self.check()

    def settle(self, delivery: MemoryDelivery, how: str) -> None:
        match how:
            case "ack":
                delivery.ack()
            case "retry":
                delivery.retry(None, "by the ladder")
            case "later":
                delivery.retry(25.0, "later")
            case "reject":
                delivery.reject("of no use")

    def check(self) -> None:
        unsettled = self.broker.unsettled
        assert all(message.attempt <= ATTEMPTS for message in unsettled)
        if self.config.tuning.ordered:
            keys = [message.key for message in unsettled if message.key is not None]
            assert len(keys) == len(set(keys))
        for receiver in self.receivers:
            assert receiver.unsettled >= 0
        assert len(unsettled) == sum(receiver.unsettled for receiver in self.receivers)

    async def finish(self) -> None:
        """Let everything be settled."""
        await self.step("open", 5, None)
        for receiver in self.receivers:
            receiver.limit(5)
        for _ in range(2_000):
            await asyncio.sleep(0)
            if self.held:
                self.held.pop().ack()
            elif (due := self.broker.next_due()) is not None:
                self.clock.now = max(due, self.clock.now)
                self.broker.turn()
            else:
                break
            self.check()


async def played(config: ConsumerConfig, wire: str, steps: list[tuple[str, Any, Any]]) -> None:
    play = Play(config, wire)
    for action, one, two in steps:
        await play.step(action, one, two)
    await play.finish()
    dead = [
        (each.key, int(each.headers["headrace-origin-partition"]), int(each.headers["headrace-origin-offset"]))
        for each, _ in play.broker.messages("orders.shop.dead")
    ]
    ended = play.done + dead
    assert len(ended) == play.published
    assert len(set(ended)) == play.published
    if config.tuning.ordered:
        for key in (b"a", b"b"):
            offsets = [offset for each, _, offset in play.done if each == key]
            assert offsets == sorted(offsets)
    for receiver in play.receivers:
        await receiver.close()


@pytest.mark.parametrize("wire", [NSQ, KAFKA])
@pytest.mark.parametrize("ordered", [True, False])
@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_every_message_ends_once_and_keys_keep_their_order(
    steps: list[tuple[str, Any, Any]], ordered: bool, wire: str
) -> None:
    config = consumer_config(
        "orders", "shop", ordered=ordered, timeout=30.0, attempts=ATTEMPTS, ladder=(5.0, 15.0), credit=1
    )
    asyncio.run(played(config, wire, steps))
