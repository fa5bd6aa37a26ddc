"""Half messages through power cuts and kills: what was prepared is decided once, one way, and seen accordingly.

Producers prepare messages and decide them; after each life they decide again what they have no answer for. One test
ends the power at operations of the disk, the other runs through many short lives. Whatever the moment, a message whose
commit was acknowledged lies in its topic once, where the answer said; one that was rolled back never does; and one that
was never committed does not either.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.broker.prepared.stage import Life
from tests.broker.timer.stage import read_records
from tests.longer import seeds

from headrace.broker.prepared import Check, State, store
from headrace.broker.prepared import prepared as half
from headrace.errors import HalfDecided, HeadraceError
from headrace.runtime import Runtime
from simulation.faults import PHASES, Plan
from simulation.world import Ending, World

PARTITIONS = 2
Living = Callable[[Runtime], Coroutine[Any, Any, None]]


@dataclass
class Promises:
    """What the producers know, over all lives."""

    made: int = 0
    ids: dict[bytes, str] = field(default_factory=dict)
    """By value, of all that was acknowledged as prepared."""
    wanted: dict[bytes, str] = field(default_factory=dict)
    """What the local transactions came to, `commit` or `rollback`, where they came to anything."""
    committed: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Partition and offset of all whose commit was acknowledged."""
    rolled_back: set[bytes] = field(default_factory=set)

    def check(self, seen: dict[bytes, list[tuple[int, int]]]) -> None:
        for value, places in seen.items():
            assert len(places) == 1, f"{value!r} is seen {len(places)} times"
            assert self.wanted.get(value) == "commit", f"{value!r} is seen, and was never committed"
            assert value not in self.rolled_back
        for value, place in self.committed.items():
            assert seen.get(value) == [place], f"{value!r} was committed to {place}, and is seen at {seen.get(value)}"


class Producers:
    """One life of all producers."""

    def __init__(self, life: Life, promises: Promises, rng: random.Random) -> None:
        self.life = life
        self.promises = promises
        self.rng = rng
        self.answers: list[asyncio.Task[None]] = []

    def listen(self) -> None:
        self.life.prepared.check_back.listen("shop", self._asked)

    def _asked(self, check: Check) -> None:
        value = check.message.value or b""
        # What its producer never heard of has no transaction.
        self.promises.ids.setdefault(value, check.id)
        self.promises.wanted.setdefault(value, "rollback")
        self.answers.append(asyncio.create_task(self.decide(value)))

    async def work(self, steps: int, pause: float) -> None:
        await asyncio.gather(*(self._one(steps, pause) for _ in range(3)))

    async def _one(self, steps: int, pause: float) -> None:
        for _ in range(steps):
            promises = self.promises
            promises.made += 1
            value = b"%d" % promises.made
            size = self.rng.choice((0, 10, 3_000))
            key = self.rng.choice((None, b"a", b"b"))
            headers = [("pad", b"x" * size)]
            try:
                promises.ids[value] = await self.life.prepared.prepare(
                    "orders", value, group="shop", key=key, headers=headers
                )
                await asyncio.sleep(self.rng.uniform(0, pause))
                outcome = self.rng.choice(("commit", "commit", "rollback", ""))
                if outcome:
                    promises.wanted[value] = outcome
                    await self.decide(value)
            except HeadraceError:
                await asyncio.sleep(0.01)

    async def decide(self, value: bytes) -> None:
        for _ in range(10):
            try:
                await self._decide(value)
                return
            except HalfDecided:
                raise AssertionError(f"{value!r} was decided the other way") from None
            except HeadraceError:
                await asyncio.sleep(0.05)

    async def _decide(self, value: bytes) -> None:
        promises = self.promises
        if promises.wanted[value] == "commit":
            standing = await self.life.prepared.commit(promises.ids[value])
            promises.committed[value] = standing.partition, standing.offset
        else:
            await self.life.prepared.rollback(promises.ids[value])
            promises.rolled_back.add(value)

    async def decide_again(self) -> None:
        """As producers do that have no answer, and some of those that have one."""
        promises, known = self.promises, self._known()
        told = {*promises.committed, *promises.rolled_back}
        unanswered = [each for each in promises.wanted if each not in told]
        answered = [each for each in promises.wanted if promises.ids[each] in known]
        for value in unanswered + answered[-20:]:
            await self.decide(value)

    def _known(self) -> set[str]:
        """The ids of outcomes that are not forgotten."""
        store = self.life.prepared._store
        return {store.id_of(number) for number in store.table.decided}


def life_of(promises: Promises, rng: random.Random, steps: int, pause: float, **settings: Any) -> Living:
    async def live(runtime: Runtime) -> None:
        life = Life(runtime, journal_bytes=16_384, checkpoint_ms=50, log_segment_bytes=8_192, **settings)
        await life.start()
        await life.topic(partitions=PARTITIONS)
        await life.prepared.load()
        producers = Producers(life, promises, rng)
        await producers.decide_again()
        if rng.random() < 0.5:
            producers.listen()
        await producers.work(steps, pause)
        await life.stop()

    return live


def check(world: World, promises: Promises, **settings: Any) -> None:
    """One more life, in which every message is asked about."""

    async def live(runtime: Runtime) -> None:
        life = Life(runtime, log_segment_bytes=8_192, **settings)
        await life.start()
        topic = await life.topic(partitions=PARTITIONS)
        await life.prepared.load()
        for value, id in promises.ids.items():
            if value not in promises.wanted:
                standing, _ = await life.prepared.show(id)
                assert standing.state in (State.PREPARED, State.ROLLED_BACK), f"{value!r} is {standing.state}"
        producers = Producers(life, promises, random.Random(0))
        producers.listen()
        await producers.decide_again()
        await asyncio.sleep(20)
        await asyncio.gather(*producers.answers)
        assert await life.prepared.list() == []
        seen: dict[bytes, list[tuple[int, int]]] = {}
        for partition in topic.partitions:
            for offset, (_, _, value, _) in enumerate(await read_records(runtime, partition)):
                seen.setdefault(value or b"", []).append((partition.index, offset))
        promises.check(seen)
        # Whatever was to be committed is.
        assert Counter(promises.wanted[value] for value in seen) == Counter(
            outcome for outcome in promises.wanted.values() if outcome == "commit"
        )
        await life.stop()

    assert world.run(live) is Ending.DONE


@pytest.fixture(autouse=True)
def _short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(store.TOPIC_CONFIG, "segment.bytes")
    # In lives of less than a second, too, the log is trimmed and messages are moved.
    monkeypatch.setattr(half, "TEND_SECONDS", 0.02)


# Nothing is given up while these tests run: what became of a message is the producers' to say.
SETTINGS: dict[str, Any] = {"half_timeout_ms": 300, "half_check_interval_ms": 500, "half_checks_max": 1_000_000}


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_power_cut_at_some_operation(seed: int, durability: str) -> None:
    settings = {**SETTINGS, "durability": durability, "half_log_bytes": 1}
    whole, promises = World(seed), Promises()
    assert whole.run(life_of(promises, whole.stream("life"), 12, 0.05, **settings)) is Ending.DONE
    assert len(promises.committed) > 5
    rng = random.Random(seed)
    for at in sorted(rng.sample(range(1, whole.machine.disk.operations), 15)):
        world, promises = World(seed), Promises()
        plan = Plan(crash_at=at, phase=rng.choice(PHASES))
        world.run(life_of(promises, world.stream("life"), 12, 0.05, **settings), plan)
        check(world, promises, **settings)


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_many_short_lives(seed: int, kill: bool) -> None:
    world, promises = World(seed), Promises()
    rng = world.stream("lives")
    settings = {**SETTINGS, "half_log_bytes": rng.choice((1, 1 << 20))}
    for number in range(8):
        live = life_of(promises, world.stream(f"life {number}"), 1_000, rng.choice((0.001, 0.05)), **settings)
        world.run(live, Plan(kill=kill, crash_after=rng.uniform(0.01, 0.6)))
    assert len(promises.committed) > 50
    check(world, promises, **settings)


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_failing_syncs(seed: int) -> None:
    world, promises = World(seed), Promises()
    # The topics are made while the disk is well.
    assert world.run(life_of(promises, world.stream("first"), 1, 0.01, **SETTINGS)) is Ending.DONE
    live = life_of(promises, world.stream("life"), 200, 0.01, **SETTINGS)
    world.run(live, Plan(sync_error_chance=0.05, crash_after=10))
    check(world, promises, **SETTINGS)
