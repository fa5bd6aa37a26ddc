from __future__ import annotations

import asyncio

import pytest
from tests.broker.prepared.stage import Life, Producer, play
from tests.captured_logs import capture_logs

from headrace.broker.prepared import Check, State
from headrace.errors import HalfDecided
from simulation.world import World

TIMEOUT, INTERVAL, ROUNDS = 6_000, 30_000, 15
# Late by the shortest sleep and a flush.
LATE = 100


def test_the_group_is_asked_when_the_time_has_passed() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        shop, bank = Producer(life), Producer(life, "bank")
        began = life.now()
        id = await life.prepared.prepare("orders", b"v", group="shop", key=b"k", headers=[("h", b"1")])
        quick = await life.prepared.prepare("orders", b"v", group="bank", timeout_ms=1_000)
        done = await life.prepared.prepare("orders", b"v", group="shop")
        await life.prepared.commit(done)
        await life.rest(5.5)
        assert shop.asked == []
        assert bank.ids == [quick]
        assert bank.times[0] - began in range(1_000, 1_000 + LATE)
        await life.rest(1)
        assert shop.ids == [id]
        assert shop.times[0] - began in range(TIMEOUT, TIMEOUT + LATE)
        check = shop.asked[0]
        assert (check.checks, check.message.key, check.message.value) == (1, b"k", b"v")
        assert list(check.message.headers) == [("h", b"1")]
        await life.prepared.commit(id)
        await life.prepared.rollback(quick)
        await life.rest(1_000)
        assert (shop.ids, bank.ids) == ([id], [quick])
        assert life.prepared.check_back.asked == 2

    play(act)


def test_again_each_interval_and_then_no_more() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        shop = Producer(life)
        began = life.now()
        id = await life.prepared.prepare("orders", b"v", group="shop")
        await life.rest((TIMEOUT + ROUNDS * INTERVAL) / 1_000 - 1)
        assert [check.checks for check in shop.asked] == list(range(1, ROUNDS + 1))
        for number, at in enumerate(shop.times):
            # Each interval begins when the last round did.
            assert at - began - TIMEOUT - number * INTERVAL in range((number + 1) * LATE)
        assert life.prepared.pending == 1
        await life.rest(3)
        standing, _ = await life.prepared.show(id)
        assert (standing.state, standing.given_up) == (State.ROLLED_BACK, True)
        with pytest.raises(HalfDecided, match="asked in vain"):
            await life.prepared.commit(id)
        assert (life.prepared.resolver.given_up, life.prepared.resolver.rolled_back) == (1, 1)
        assert await life.values() == []

    play(act)


def test_giving_up_with_a_commit() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        await life.topic("gone")
        id = await life.prepared.prepare("orders", b"v", group="shop")
        void = await life.prepared.prepare("gone", b"v", group="shop")
        await life.broker.topics.delete("gone")
        await life.rest(20)
        assert await life.values() == [b"v"]
        assert (await life.prepared.show(id))[0].offset == 0
        # Where it cannot be committed it is kept.
        assert (await life.prepared.show(void))[0].state is State.PARKED
        assert life.prepared.resolver.given_up == 2

    play(act, half_give_up="commit", half_checks_max=2, half_check_interval_ms=1_000)


def test_giving_up_and_keeping() -> None:
    ids: list[str] = []

    async def act(life: Life) -> None:
        await life.topic()
        shop = Producer(life)
        ids.extend([await life.prepared.prepare("orders", b"%d" % n, group="shop") for n in range(3)])
        await life.rest(20)
        assert len(shop.asked) == 6
        await parked(life)

    async def parked(life: Life) -> None:
        listed = await life.prepared.list()
        assert [(each.id, each.state, each.next_check_ms) for each in listed] == [(id, State.PARKED, -1) for id in ids]
        assert (life.prepared.pending, life.prepared.parked) == (3, 3)

    async def later(life: Life) -> None:
        shop = Producer(life)
        await life.rest(100)
        await parked(life)
        assert (shop.asked, life.prepared.resolver.given_up) == ([], 0)
        await life.prepared.commit(ids[0])
        await life.prepared.rollback(ids[1])
        assert (life.prepared.pending, life.prepared.parked) == (1, 1)
        assert await life.values() == [b"0"]

    play(act, later, half_give_up="park", half_checks_max=2, half_check_interval_ms=1_000)


def test_one_member_at_a_time_in_turn() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        members = [Producer(life) for _ in range(3)]
        ids = [await life.prepared.prepare("orders", b"v", group="shop") for _ in range(9)]
        await life.rest(7)
        assert [len(each.asked) for each in members] == [3, 3, 3]
        assert sorted(id for each in members for id in each.ids) == ids
        # Another one is asked in the next round.
        members[0].listener.close()
        members[0].listener.close()
        await life.rest(31)
        assert len(members[0].asked) == 3
        assert len(members[1].asked) + len(members[2].asked) == 15

    play(act)


def test_no_more_questions_than_a_listener_takes() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        ids = [await life.prepared.prepare("orders", b"v", group="shop") for _ in range(10)]
        few = Producer(life, limit=2)
        await life.rest(7)
        assert few.ids == ids[:2]
        await life.prepared.rollback(ids[0])
        await life.rest()
        assert few.ids == ids[:3]
        more = Producer(life, limit=4)
        await life.rest()
        assert more.ids == ids[3:7]
        # What nobody was asked about is decided all the same.
        await life.prepared.commit(ids[9])
        few.listener.close()
        for id in ids[:8]:
            await life.prepared.rollback(id) if id != ids[0] else None
        await life.rest()
        assert more.ids == [*ids[3:7], ids[7], ids[8]][: len(more.ids)]
        assert ids[9] not in more.ids

    play(act)


def test_whoever_comes_later_is_asked_at_once() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        id = await life.prepared.prepare("orders", b"v", group="shop")
        await life.rest(20)
        shop = Producer(life)
        await life.rest()
        assert shop.ids == [id]
        assert shop.asked[0].checks == 1

    play(act)


def test_rounds_go_on_without_anybody() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        await life.prepared.prepare("orders", b"v", group="shop")
        await life.rest(6 + 15 * 30 + 5)
        assert life.prepared.pending == 0
        assert (life.prepared.check_back.asked, life.prepared.resolver.given_up) == (0, 1)

    play(act)


def test_a_restart_goes_on_counting() -> None:
    seen: list[int] = []

    async def act(life: Life) -> None:
        await life.topic()
        shop = Producer(life)
        if not seen:
            await life.prepared.prepare("orders", b"v", group="shop")
        await life.rest(70)
        seen.extend(check.checks for check in shop.asked)

    world = play(act, act, act, act, act, act)
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) in range(12, 16)
    assert isinstance(world, World)


def test_what_came_due_while_the_broker_was_down() -> None:
    ids: list[str] = []

    async def before(life: Life) -> None:
        await life.topic()
        ids.append(await life.prepared.prepare("orders", b"v", group="shop", timeout_ms=500))

    async def after(life: Life) -> None:
        shop = Producer(life)
        await life.rest(0.2)
        assert shop.ids == ids

    play(before, after)


def test_a_listener_that_fails() -> None:
    async def act(life: Life) -> None:
        await life.topic()

        def fails(check: Check) -> None:
            raise RuntimeError("no")

        life.prepared.check_back.listen("shop", fails)
        await life.prepared.prepare("orders", b"v", group="shop")
        shop = Producer(life)
        with capture_logs() as lines:
            await life.rest(7)
        assert [each["event"] for each in lines] == ["a listener could not be asked"]
        await life.rest(31)
        assert len(shop.asked) == 1

    play(act)


def test_polls() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        began = life.now()
        assert await life.prepared.poll("shop", 2) == []
        assert life.now() - began in range(2_000, 2_050)
        ids = [await life.prepared.prepare("orders", b"v", group="shop") for _ in range(5)]
        first = asyncio.create_task(life.prepared.poll("shop", 10, 3))
        await life.rest(7)
        assert [check.id for check in await first] == ids[:3]
        assert [check.id for check in await life.prepared.poll("shop", 10, 3)] == ids[3:]
        assert await life.prepared.poll("shop", 1) == []
        waiting = asyncio.create_task(life.prepared.poll("bank", 1_000))
        await life.rest()
        before = life.now()
        await life.prepared.end_polls()
        assert await waiting == []
        assert life.now() - before < 1_000
        assert life.prepared.check_back._listeners == {}

    play(act)


def test_the_calendar_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(life: Life) -> None:
        await life.topic()
        shop = Producer(life)
        id = await life.prepared.prepare("orders", b"v", group="shop")
        now = life.runtime.clock.now_ms
        monkeypatch.setattr(type(life.runtime.clock), "now_ms", lambda clock: now() - 3_600_000)
        await life.rest(60)
        assert shop.ids[:1] == [id]

    play(act)


def test_the_calendar_was_set_back_while_the_broker_was_down() -> None:
    ids: list[str] = []

    async def before(life: Life) -> None:
        await life.topic()
        ids.extend([await life.prepared.prepare("orders", b"v", group="shop", timeout_ms=1_000) for _ in range(2)])
        await life.rest(2)

    async def after(life: Life) -> None:
        shop = Producer(life)
        await life.rest(31)
        assert sorted(shop.ids) == ids

    world = play(before)
    world.machine.clock.jumped -= 3_600
    play(after, world=world)
