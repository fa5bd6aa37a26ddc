from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.longer import examples

from headrace.doors.nsq.lookupd.node import Node
from headrace.doors.nsq.lookupd.registry import Producer, Registry, RegistryFull

OWN = Node("h:1", "h", "h", 1, 2, "1.3.0")


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def node(number: int) -> Node:
    return Node(f"10.0.0.{number}:5", f"host{number}", f"b{number}", 4150, 4151, "1.3.0")


def registry(clock: Clock, own: dict[str, list[str]] | None = None, most: int = 1000) -> Registry:
    topics = own or {}
    side: Any = SimpleNamespace(
        node=lambda: OWN if own is not None else None,
        topics=lambda: topics,
        has=lambda topic: topic in topics,
        channels=lambda topic: topics[topic],
    )
    return Registry(side, clock, inactive_ms=300_000, tombstone_ms=45_000, registrations_max=most)


def test_what_a_producer_has_goes_with_it_but_names_stay():
    known = registry(Clock())
    producer = known.join(node(1))
    known.register(producer, "t", "")
    known.register(producer, "t", "c")
    known.register(producer, "t", "e#ephemeral")
    known.register(producer, "x#ephemeral", "")
    assert known.topics() == ["t", "x#ephemeral"]
    assert known.channels("t") == ["c", "e#ephemeral"]
    assert known.producers("t") == [node(1)]
    known.leave(producer)
    assert known.topics() == ["t"]
    assert known.channels("t") == ["c"]
    assert known.producers("t") == []
    assert known.nodes() == []
    known.forget_topic("t")
    assert known.topics() == []
    assert known._registrations == 0


def test_a_producer_that_is_not_heard_of_is_not_told():
    clock = Clock()
    known = registry(clock)
    producer = known.join(node(1))
    known.register(producer, "t", "")
    clock.now += 300_000
    assert known.producers("t")
    clock.now += 1
    assert known.producers("t") == []
    assert known.nodes() == []
    known.heard(producer)
    assert known.producers("t")


def test_a_tombstone_hides_a_topic_for_a_while():
    clock = Clock()
    known = registry(clock, {"t": [], "u": []})
    producer = known.join(node(1))
    known.register(producer, "t", "")
    known.tombstone("t", "b1:4151")
    assert known.producers("t") == [OWN]
    known.tombstone("t", "h:2")
    known.tombstone("nothing", "h:2")
    known.tombstone("t", "elsewhere:2")
    assert known.producers("t") == []
    assert known.nodes() == [(OWN, [("t", True), ("u", False)]), (node(1), [("t", True)])]
    clock.now += 45_000
    assert known.producers("t") == [OWN, node(1)]


def test_a_tombstone_for_an_address_with_colons():
    for written in ("::1:4151", "[::1]:4151"):
        known = registry(Clock())
        producer = known.join(Node("[::1]:5", "h", "::1", 4150, 4151, "1.3.0"))
        known.register(producer, "t", "")
        known.tombstone("t", written)
        assert known.producers("t") == []


def test_own_topics_are_looked_up_and_not_kept():
    own = {"t": ["c"]}
    known = registry(Clock(), own)
    producer = known.join(node(1))
    known.register(producer, "t", "d")
    assert known.topics() == ["t"]
    assert known.channels("t") == ["c", "d"]
    own["u"] = []
    assert known.knows("u")
    assert known.topics() == ["t", "u"]
    known.forget_topic("t")
    assert known.producers("t") == [OWN]


def test_a_broker_that_registers_with_itself_is_told_once():
    known = registry(Clock(), {"t": []})
    producer = known.join(
        Node("127.0.0.1:5", OWN.hostname, OWN.broadcast_address, OWN.tcp_port, OWN.http_port, "1.3.0")
    )
    known.register(producer, "t", "")
    assert known.producers("t") == [OWN]
    assert known.nodes() == [(OWN, [("t", False)])]


def test_without_an_nsq_door_nothing_own_is_told():
    known = registry(Clock())
    assert known.topics() == []
    assert not known.knows("t")


def test_the_bound():
    known = registry(Clock(), most=3)
    producer = known.join(node(1))
    known.register(producer, "t", "")
    known.register(producer, "t", "")
    known.create("u")
    with pytest.raises(RegistryFull, match="lookup_registrations_max"):
        known.create("v")
    with pytest.raises(RegistryFull):
        known.register(producer, "t", "c")
    known.forget_topic("u")
    known.create("v")


TOPICS = st.sampled_from(["a", "b", "c#ephemeral"])
CHANNELS = st.sampled_from(["", "x", "y#ephemeral"])


class Model(RuleBasedStateMachine):
    """Whatever is said in whatever order, the two sides of the registry agree and the count is true."""

    def __init__(self) -> None:
        super().__init__()
        self.known = registry(Clock())
        self.producers: list[Producer] = []

    @rule()
    def join(self) -> None:
        self.producers.append(self.known.join(node(len(self.producers))))

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), topic=TOPICS, channel=CHANNELS)
    def register(self, data: st.DataObject, topic: str, channel: str) -> None:
        producer = data.draw(st.sampled_from(self.producers))
        self.known.register(producer, topic, channel)
        assert producer.node in self.known.producers(topic)

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), topic=TOPICS, channel=CHANNELS)
    def unregister(self, data: st.DataObject, topic: str, channel: str) -> None:
        self.known.unregister(data.draw(st.sampled_from(self.producers)), topic, channel)

    @precondition(lambda self: self.producers)
    @rule()
    def leave(self) -> None:
        self.known.leave(self.producers.pop())

    @rule(topic=TOPICS, channel=CHANNELS)
    def create(self, topic: str, channel: str) -> None:
        self.known.create(topic, channel)

    @rule(topic=TOPICS)
    def forget_topic(self, topic: str) -> None:
        self.known.forget_topic(topic)
        assert topic not in self.known.topics()
        assert self.known.channels(topic) == []

    @rule(topic=TOPICS, channel=CHANNELS)
    def forget_channel(self, topic: str, channel: str) -> None:
        known = channel in self.known.channels(topic)
        assert self.known.forget_channel(topic, channel) == known

    @invariant()
    def both_sides_agree(self) -> None:
        known = self.known
        count = 0
        for topic, channels in known._topics.items():
            assert "" in channels
            for channel, holders in channels.items():
                count += 1 + len(holders)
                assert all((topic, channel) in producer.registered for producer in holders)
        assert count == known._registrations
        for producer in self.producers:
            assert all(producer in known._topics[topic][channel] for topic, channel in producer.registered)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_tombstones_that_are_over_are_forgotten():
    clock = Clock()
    known = registry(clock, {"t": [], "u": []})
    own = f"{OWN.broadcast_address}:{OWN.http_port}"
    known.tombstone("t", own)
    clock.now += 45_000
    known.tombstone("u", own)
    assert list(known._own_tombstones) == ["u"]
