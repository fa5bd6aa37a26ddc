"""Half messages against a plain dictionary: whatever is prepared, decided, waited for and restarted, the same messages
are undecided, the same ones are seen, and the same answers given."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.prepared.stage import Life
from tests.broker.timer.stage import read_records
from tests.longer import examples

from headrace.broker.prepared import State, store
from headrace.errors import HalfDecided, UnknownHalf
from headrace.runtime import Runtime
from simulation.faults import PowerCut
from simulation.world import Ending, World

TIMEOUT, INTERVAL, ROUNDS = 2_000, 1_000, 3
# The longest that a message stays undecided while the broker runs; downtime comes on top.
LONGEST = TIMEOUT + (ROUNDS + 1) * INTERVAL + 500
PARTITIONS = 2
OUTCOMES = {"rollback": State.ROLLED_BACK, "commit": State.COMMITTED, "park": State.PARKED}

steps = st.one_of(
    st.tuples(st.just("prepare"), st.integers(0, 3)),
    st.tuples(st.just("prepare"), st.integers(0, 3)),
    st.tuples(st.just("commit"), st.integers(0, 1_000)),
    st.tuples(st.just("rollback"), st.integers(0, 1_000)),
    st.tuples(st.just("sleep"), st.integers(0, 2 * TIMEOUT)),
    st.tuples(st.just("pass by"), st.integers(1, 60)),
    st.tuples(st.just("restart"), st.integers(0, 10_000)),
    st.tuples(st.just("cut"), st.integers(0, 10_000)),
)


@dataclass
class Half:
    """What must be true of one message."""

    id: str
    value: bytes
    partition: int
    prepared_ms: int
    state: State = State.PREPARED
    offset: int = -1
    forgotten: bool = False


@dataclass
class Model:
    """Everything as a plain list."""

    give_up: str
    halves: list[Half] = field(default_factory=list)
    made: int = 0

    def learn(self, half: Half, state: State, offset: int, now: int) -> None:
        """A message may have been given up since it was last looked at, but not before its time."""
        if state is not half.state:
            assert half.state is State.PREPARED, f"{half.id} was {half.state} and is {state}"
            assert state is OUTCOMES[self.give_up]
            assert now >= half.prepared_ms + TIMEOUT + ROUNDS * INTERVAL, f"{half.id} was given up too early"
            half.state, half.offset = state, offset


async def do(life: Life, model: Model, what: str, number: int) -> None:
    if what == "prepare":
        model.made += 1
        value, partition = b"%d" % model.made, number % PARTITIONS
        key = b"k" if number > 1 else None
        before = life.now()
        id = await life.prepared.prepare("orders", value, group="shop", key=key, partition=partition)
        model.halves.append(Half(id, value, partition, before))
    elif what == "pass by":
        for _ in range(number):
            await life.prepared.rollback(await life.prepared.prepare("orders", b"x" * 1_000, group="others"))
    elif what == "sleep":
        await asyncio.sleep(number / 1_000)
    elif model.halves:
        half = model.halves[number % len(model.halves)]
        wanted = State.COMMITTED if what == "commit" else State.ROLLED_BACK
        await look(life, model, half)
        if half.forgotten:
            with pytest.raises(UnknownHalf):
                await getattr(life.prepared, what)(half.id)
        elif half.state in (State.PREPARED, State.PARKED, wanted):
            decided = await getattr(life.prepared, what)(half.id)
            assert decided.state is wanted
            if half.state is wanted:
                assert decided.offset == half.offset
            half.state, half.offset = wanted, decided.offset
        else:
            with pytest.raises(HalfDecided):
                await getattr(life.prepared, what)(half.id)


async def look(life: Life, model: Model, half: Half) -> None:
    try:
        standing, message = await life.prepared.show(half.id)
    except UnknownHalf:
        half.forgotten = True
        if half.state is State.PREPARED:
            # It was given up, and the outcome forgotten, since somebody looked.
            seen = await read_records(life.runtime, life.log.topics["orders"].partitions[half.partition])
            offset = next((offset for offset, each in enumerate(seen) if each[2] == half.value), -1)
            model.learn(half, State.ROLLED_BACK if offset < 0 else State.COMMITTED, offset, life.now())
        assert half.state in (State.COMMITTED, State.ROLLED_BACK), f"{half.id} is gone"
        return
    model.learn(half, standing.state, standing.offset, life.now())
    if half.state in (State.PREPARED, State.PARKED):
        assert message is not None
        assert message.value == half.value
        if half.state is State.PREPARED:
            assert standing.next_check_ms < life.now() + TIMEOUT + INTERVAL


async def compare(life: Life, model: Model) -> None:
    while True:
        before = life.prepared.resolver.given_up
        try:
            await compare_once(life, model)
            return
        except AssertionError:
            # A message may be given up between two looks.
            if life.prepared.resolver.given_up == before:
                raise


async def compare_once(life: Life, model: Model) -> None:
    for half in model.halves:
        await look(life, model, half)
    undecided = [half for half in model.halves if half.state in (State.PREPARED, State.PARKED)]
    assert [each.id for each in await life.prepared.list(group="shop", limit=1_000)] == [half.id for half in undecided]
    assert life.prepared.pending == len(undecided)
    assert life.prepared.parked == sum(half.state is State.PARKED for half in undecided)
    topic = life.log.topics["orders"]
    for partition in topic.partitions:
        seen = [value for _, _, value, _ in await read_records(life.runtime, partition)]
        expected = {
            half.offset: half.value
            for half in model.halves
            if half.state is State.COMMITTED and half.partition == partition.index
        }
        assert dict(enumerate(seen)) == expected


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 30), st.sampled_from(sorted(OUTCOMES)), st.lists(steps, max_size=25))
def test_against_a_dictionary(seed: int, give_up: str, given: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(store.TOPIC_CONFIG, "segment.bytes")
        run(World(seed), Model(give_up), list(given))


def run(world: World, model: Model, todo: list[tuple[str, int]]) -> None:
    pauses: list[int] = []

    async def live(runtime: Runtime) -> None:
        life = Life(
            runtime,
            half_timeout_ms=TIMEOUT,
            half_check_interval_ms=INTERVAL,
            half_checks_max=ROUNDS,
            half_give_up=model.give_up,
            half_log_bytes=1,
            log_segment_bytes=16_384,
        )
        await life.start()
        await life.topic(partitions=PARTITIONS)
        await compare(life, model)
        while todo:
            what, number = todo.pop(0)
            if what in ("restart", "cut"):
                pauses.append(number)
                if what == "cut":
                    world.machine.disk.die(PowerCut("here"))
                await life.stop()
                return
            await do(life, model, what, number)
            await compare(life, model)
        await asyncio.sleep(LONGEST / 1_000)
        await compare(life, model)
        assert not any(half.state is State.PREPARED for half in model.halves), "not given up"
        await life.stop()

    while True:
        ending = world.run(live)
        if not todo and not pauses:
            assert ending is Ending.DONE
            break
        world.time += pauses.pop() / 1_000
