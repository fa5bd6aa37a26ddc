"""The wheel against a sorted list: whatever is scheduled, cancelled and waited for, the same messages fire at the same
times, and the same ones wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.timer.stage import DAY, HOUR, MINUTE, Life
from tests.longer import examples

from headrace.broker.timer.pending import parse_id
from headrace.runtime import Runtime
from simulation.world import Ending, World

# Late by a flush or two, and by the calendar's step of a millisecond.
LATE_MS = 50

delays = st.one_of(
    st.integers(-10, 100),
    st.integers(0, 5_000),
    st.integers(0, 3 * MINUTE),
    st.integers(55 * MINUTE, 70 * MINUTE),
    st.integers(0, 70 * HOUR),
    st.integers(0, 20 * DAY),
)
steps = st.one_of(
    st.tuples(st.just("schedule"), delays, st.integers(1, 4)),
    st.tuples(st.just("cancel"), st.integers(0, 1_000), st.just(0)),
    st.tuples(st.just("sleep"), st.one_of(st.integers(0, 1_000), st.integers(0, 2 * HOUR)), st.just(0)),
    st.tuples(st.just("restart"), st.integers(0, 3 * HOUR), st.just(0)),
)


@dataclass
class Model:
    """Everything as a plain list."""

    waiting: list[tuple[int, str, bytes]] = field(default_factory=list)
    fired: list[tuple[int, bytes]] = field(default_factory=list)
    made: int = 0

    def pass_time(self, now: int) -> None:
        self.waiting.sort()
        while self.waiting and self.waiting[0][0] <= now:
            due, _, value = self.waiting.pop(0)
            self.fired.append((due, value))


async def do(life: Life, model: Model, step: tuple[str, int, int]) -> None:
    topic = await life.topic()
    what, number, count = step
    if what == "schedule":
        values = [b"%d" % (model.made + index) for index in range(count)]
        model.made += count
        now = life.now()
        ids = await life.schedule(topic, 0, values, now + number)
        if number > 0:
            assert [parse_id(id)[0] for id in ids] == [now + number] * count  # type: ignore[index]
            model.waiting += [(now + number, id, value) for id, value in zip(ids, values, strict=True)]
        else:
            model.fired += [(now, value) for value in values]
    elif what == "cancel":
        # One that is about to be fired may be found or not.
        chosen = [each for each in model.waiting if each[0] > life.now() + 100]
        if chosen:
            due, id, value = chosen[number % len(chosen)]
            assert await life.timer.cancel(id), f"{value!r} waits until {due} and was not found"
            assert not await life.timer.cancel(id)
            model.waiting.remove((due, id, value))
    else:
        await asyncio.sleep(number / 1_000)


async def compare(life: Life, model: Model, restarted_at: int) -> None:
    await asyncio.sleep(LATE_MS * 2 / 1_000)
    now = life.now()
    model.pass_time(now - LATE_MS)
    fired = await life.fired(await life.topic())
    for due, value in model.fired:
        (at,) = fired.pop(value)
        assert due <= at <= max(due, restarted_at) + LATE_MS + (due < restarted_at) * 200
    waiting = {value: due for due, _, value in model.waiting}
    for value, (at,) in fired.items():
        assert waiting[value] <= at, f"{value!r} was early"
    listed = [each.id for each in await life.timer.list(limit=10_000)]
    if life.now() < min(waiting.values(), default=now + 1):
        assert listed == sorted(id for _, id, _ in model.waiting)
        # What was cancelled in an earlier life counts until it is read.
        assert life.timer.pending >= len(model.waiting)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 30), st.lists(steps, max_size=25))
def test_wheel_against_a_list(seed: int, given: list[tuple[str, int, int]]) -> None:
    world = World(seed)
    model = Model()
    todo = list(given)

    async def live(runtime: Runtime) -> None:
        life = Life(runtime)
        started = life.now()
        await life.start()
        # Making the timer's topic takes a moment, once.
        await life.timer.load()
        await asyncio.sleep(0.3)
        while todo:
            step = todo.pop(0)
            if step[0] == "restart":
                pauses.append(step[1])
                break
            await do(life, model, step)
            await compare(life, model, started + 300)
        await compare(life, model, started + 300)
        await life.stop()

    pauses: list[int] = []
    while True:
        assert world.run(live) is Ending.DONE
        if not todo:
            break
        world.time += pauses.pop() / 1_000 if pauses else 0
