"""A queue against a model: consumers come and go, settle, send back, time out; the broker stops and starts.

The model is a list of messages, each with its state. It does not say who gets a message next; it says who may, and that
somebody does. Times are chosen so that nothing is due within seconds of a look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.broker.queues.simulated import Stage, play
from tests.longer import examples

from headrace.broker.queues import Consumer, Queue
from headrace.broker.queues.delivery import Claimed

TIMEOUT_MS = 60_000
ATTEMPTS_MAX = 2
PARTITIONS = 2
READY, IN_FLIGHT, DEFERRED, DONE, DEAD = "ready", "in flight", "deferred", "done", "dead"

steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 6), st.integers(0, 5)),
    st.tuples(st.just("publish"), st.integers(1, 6), st.integers(0, 5)),
    st.tuples(st.just("subscribe"), st.integers(0, 6), st.just(0)),
    st.tuples(st.just("credit"), st.integers(0, 9), st.integers(0, 6)),
    st.tuples(st.just("close"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("finish"), st.integers(0, 99), st.just(0)),
    st.tuples(st.just("finish"), st.integers(0, 99), st.just(0)),
    st.tuples(st.just("requeue"), st.integers(0, 99), st.sampled_from((0, 10_000, 40_000))),
    st.tuples(st.just("touch"), st.integers(0, 99), st.just(0)),
    st.tuples(st.just("sleep"), st.sampled_from((25_000, 70_000)), st.just(0)),
    st.tuples(st.just("pause"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("empty"), st.just(0), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
)


@dataclass
class Known:
    """What is known of one message."""

    value: bytes
    key: bytes | None
    lane: int
    offset: int
    state: str = READY
    attempts: int = 0
    at: int = 0
    """When its delivery times out, or its delay ends."""
    consumer: Receiver | None = None

    def give_back(self, now: int, delay: int = 0) -> None:
        self.consumer = None
        if self.attempts >= ATTEMPTS_MAX:
            self.state = DEAD
        else:
            self.state, self.at = (DEFERRED, now + delay) if delay else (READY, 0)


@dataclass
class Model:
    """Everything that was published, and what became of it."""

    ordered: bool
    messages: dict[tuple[int, int], Known] = field(default_factory=dict)
    receivers: list[Receiver] = field(default_factory=list)
    paused: bool = False
    made: int = 0

    def of(self, *states: str) -> list[Known]:
        return [each for each in self.messages.values() if each.state in states]

    def pass_time(self, now: int) -> None:
        for each in self.messages.values():
            if each.state == IN_FLIGHT and each.at <= now:
                each.give_back(now)
            elif each.state == DEFERRED and each.at <= now:
                each.state = READY

    def blocked(self, each: Known) -> bool:
        """An earlier message of its key is not settled."""
        return self.ordered and any(
            other.key == each.key and other.lane == each.lane and other.offset < each.offset
            for other in self.of(READY, IN_FLIGHT, DEFERRED)
            if each.key is not None
        )


class Receiver:
    """A consumer that holds every delivery against the model."""

    consumer: Consumer

    def __init__(self, model: Model, stage: Stage) -> None:
        self.model = model
        self.stage = stage
        self.credit = 0

    @property
    def held(self) -> list[Known]:
        return [each for each in self.model.messages.values() if each.consumer is self]

    def deliver(self, claimed: Claimed) -> None:
        now = self.stage.now()
        self.model.pass_time(now)
        for offset, attempt, _, key, value, _ in claimed.messages():
            known = self.model.messages[claimed.lane, offset]
            assert (known.value, known.key) == (value, key)
            assert known.state == READY, f"{value!r} was delivered while it was {known.state}"
            assert not self.model.blocked(known), f"{value!r} overtook another of its key"
            assert not self.model.paused
            known.attempts += 1
            assert attempt == known.attempts
            known.state, known.at, known.consumer = IN_FLIGHT, now + TIMEOUT_MS, self
        assert len(self.held) <= self.credit

    def gone(self, reason: str) -> None:
        raise AssertionError(reason)


async def do(stage: Stage, queue: Queue, model: Model, step: tuple[str, int, int]) -> None:
    what, number, other = step
    now = stage.now()
    in_flight = model.of(IN_FLIGHT)
    chosen = in_flight[number % len(in_flight)] if in_flight else None
    receiver = model.receivers[number % len(model.receivers)] if model.receivers else None
    if what == "publish":
        lane = other % PARTITIONS
        key = None if other == 5 else b"key %d" % (other // PARTITIONS)
        values = [b"%d" % (model.made + index) for index in range(number)]
        model.made += number
        # Known before anybody can get them.
        start = queue.topic.partitions[lane].end
        for offset, value in enumerate(values, start):
            model.messages[lane, offset] = Known(value, key, lane, offset)
        assert await stage.append(queue.topic.partitions[lane], [(now, key, value, []) for value in values]) == start
    elif what == "subscribe":
        anew = Receiver(model, stage)
        anew.credit = number
        anew.consumer = queue.subscribe(anew)
        model.receivers.append(anew)
        anew.consumer.ready(number)
    elif what == "credit" and receiver is not None:
        receiver.credit = other
        receiver.consumer.ready(other)
    elif what == "close" and receiver is not None:
        leave(model, receiver, now)
    elif what == "pause":
        model.paused = bool(number)
        await stage.queues.pause(queue, model.paused)
    elif what == "empty":
        await stage.queues.empty(queue)
        for each in model.of(READY, IN_FLIGHT, DEFERRED):
            each.state, each.consumer = DONE, None
    elif what == "sleep":
        await stage.rest(number / 1_000)
    elif chosen is not None and chosen.consumer is not None:
        consumer = chosen.consumer.consumer
        named = (chosen.lane, chosen.offset, chosen.attempts)
        assert not consumer.finish(chosen.lane, chosen.offset, chosen.attempts + 1)
        if what == "finish":
            assert consumer.finish(*named)
            chosen.state, chosen.consumer = DONE, None
            assert not consumer.finish(*named)
        elif what == "requeue":
            assert consumer.requeue(*named, other)
            chosen.give_back(now, other)
        elif what == "touch":
            assert consumer.touch(*named)
            chosen.at = now + TIMEOUT_MS


def leave(model: Model, receiver: Receiver, now: int) -> None:
    model.receivers.remove(receiver)
    for each in receiver.held:
        each.give_back(now)
    receiver.consumer.close()


def compare(stage: Stage, queue: Queue, model: Model) -> None:
    """Nothing waits that somebody could have, and the figures are those of the model."""
    model.pass_time(stage.now())
    room = [each for each in model.receivers if each.credit > len(each.held)]
    waiting = [each for each in model.of(READY) if not model.blocked(each)]
    assert model.paused or not room or not waiting, f"{waiting[0].value!r} waits though there is room"
    figures = queue.figures()
    counted = {state: len(model.of(state)) for state in (IN_FLIGHT, DEFERRED, DEAD)}
    assert (figures.in_flight, figures.deferred) == (counted[IN_FLIGHT], counted[DEFERRED])
    assert figures.depth + figures.blocked == len(model.of(READY))
    assert {each: each.consumer.in_flight for each in model.receivers} == {
        each: len(each.held) for each in model.receivers
    }


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.booleans(), st.lists(steps, max_size=40))
# Credit taken back while messages are held stays taken back once they are gone.
@example(False, [("credit", 0, 0), ("empty", 0, 0), ("publish", 1, 0)])
def test_a_queue_does_as_the_model_says(ordered: bool, given: list[tuple[str, int, int]]) -> None:
    model = Model(ordered)
    lives: list[list[tuple[str, int, int]]] = [[("subscribe", 5, 0), ("publish", 4, 0)]]
    for step in given:
        if step[0] == "restart":
            lives.append([("subscribe", 3, 0)])
        else:
            lives[-1].append(step)

    def act(life: list[tuple[str, int, int]], number: int) -> Any:
        async def live(stage: Stage) -> None:
            known = stage.broker.topics.get("t")
            topic = known if known is not None else await stage.topic(partitions=PARTITIONS)
            for partition in topic.partitions:
                await partition.load()
            queue = await stage.queue(topic)
            if number == 0:
                changes = {"timeout_ms": TIMEOUT_MS, "max_attempts": ATTEMPTS_MAX, "order_by_key": ordered}
                await stage.queues.configure(queue, changes)
            await stage.rest(1)
            compare(stage, queue, model)
            for step in life:
                await do(stage, queue, model, step)
                await stage.rest(1)
                compare(stage, queue, model)
            for receiver in list(model.receivers):
                leave(model, receiver, stage.now())
            # A cold dead-letter topic takes a while.
            await stage.rest(30)
            letters = [value for value, _ in await stage.letters()]
            assert sorted(letters) == sorted(each.value for each in model.of(DEAD))

        return live

    play(*(act(life, number) for number, life in enumerate(lives)))
