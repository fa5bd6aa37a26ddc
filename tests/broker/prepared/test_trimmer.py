from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.broker.prepared.stage import Act, Life, Producer
from tests.broker.prepared.stage import play as play_whole
from tests.broker.timer.stage import read_records
from tests.captured_logs import capture_logs

from headrace.broker.prepared import State, store
from headrace.broker.prepared.entries import HEADER
from headrace.errors import UnknownHalf
from headrace.format import records
from headrace.log.interface import Partition

BODY = 1_000


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(store.TOPIC_CONFIG, "segment.bytes")


def play(*acts: Act, **settings: Any) -> None:
    play_whole(*acts, log_segment_bytes=16_384, **settings)


def log_of(life: Life) -> Partition:
    return life.log.topics["__half"].partitions[0]


async def pass_by(life: Life, count: int) -> list[str]:
    """Messages that come and go."""
    ids = []
    for number in range(count):
        id = await life.prepared.prepare("orders", b"x" * BODY, group="shop", timeout_ms=86_400_000)
        await (life.prepared.commit(id) if number % 2 else life.prepared.rollback(id))
        ids.append(id)
    await life.rest(3)
    return ids


def test_the_log_follows_what_is_remembered() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        ids = await pass_by(life, 300)
        assert log_of(life).start > 400
        assert log_of(life).size() < 100 * 1024
        assert life.prepared.trimmer.moved == 0
        with pytest.raises(UnknownHalf):
            await life.prepared.rollback(ids[0])
        for id in ids[-20::2]:
            await life.prepared.rollback(id)

    async def after(life: Life) -> None:
        assert life.prepared.pending == 0
        await life.prepared.load()
        assert len(life.prepared._store.table.decided) == 20

    play(act, after, half_decided_max=20)


def test_nothing_is_left_where_nothing_is_remembered() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        await pass_by(life, 10)
        assert log_of(life).start == log_of(life).end
        assert log_of(life).size() == 0

    play(act, act, half_decided_max=0)


def test_a_start_tidies_up() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        for _ in range(50):
            await life.prepared.rollback(await life.prepared.prepare("orders", b"x" * BODY, group="shop"))
        assert log_of(life).size() > 0

    async def after(life: Life) -> None:
        await life.rest(2)
        assert log_of(life).size() == 0
        assert log_of(life).start == log_of(life).end > 0

    play(act, after, half_decided_max=0)


def test_stragglers_make_way() -> None:
    ids: list[str] = []

    async def act(life: Life) -> None:
        await life.topic()
        for n in range(5):
            ids.append(await life.prepared.prepare("orders", b"%d" % n, group="shop", key=b"k", headers=[("h", b"1")]))
        await life.rest(7)
        await pass_by(life, 400)
        assert life.prepared.trimmer.moved >= 5
        assert log_of(life).start > 100
        assert log_of(life).size() < 200 * 1024
        listed = await life.prepared.list()
        assert [(each.id, each.checks) for each in listed] == [(id, 1) for id in ids]
        await life.prepared.commit(ids[1])

    async def after(life: Life) -> None:
        listed = await life.prepared.list()
        assert [(each.id, each.checks, each.timeout_ms) for each in listed] == [
            (id, 1, 6_000) for id in ids if id != ids[1]
        ]
        _, message = await life.prepared.show(ids[3])
        assert message is not None
        assert (message.key, message.value, list(message.headers)) == (b"k", b"3", [("h", b"1")])
        shop = Producer(life)
        await life.rest(31)
        assert sorted(shop.ids) == sorted([ids[0], *ids[2:]])
        assert shop.asked[0].checks == 2
        await pass_by(life, 400)
        assert (await life.prepared.commit(ids[1])).offset >= 0 if ids[1] in remembered(life) else True
        await life.prepared.commit(ids[0])
        await life.prepared.rollback(ids[2])

    async def at_last(life: Life) -> None:
        assert [each.id for each in await life.prepared.list()] == ids[3:]
        values = await life.values()
        assert [value for value in values if value != b"x" * BODY] == [b"1", b"0"]

    play(act, after, at_last, half_log_bytes=65_536, half_check_interval_ms=30_000)


def remembered(life: Life) -> list[str]:
    table = life.prepared._store.table
    return [life.prepared._store.id_of(number) for number in table.decided]


def test_parked_ones_stay_parked_when_they_move() -> None:
    ids: list[str] = []

    async def act(life: Life) -> None:
        await life.topic()
        ids.extend([await life.prepared.prepare("orders", b"%d" % n, group="shop") for n in range(3)])
        await life.rest(10)
        assert life.prepared.parked == 3
        await pass_by(life, 300)
        assert life.prepared.trimmer.moved >= 3

    async def after(life: Life) -> None:
        assert [(each.id, each.state) for each in await life.prepared.list()] == [(id, State.PARKED) for id in ids]
        assert life.prepared.parked == 3
        shop = Producer(life)
        await life.rest(100)
        assert shop.asked == []

    play(act, after, half_log_bytes=65_536, half_give_up="park", half_checks_max=0)


def test_undecided_messages_are_not_moved_round_and_round() -> None:
    """A log that is full of what is needed stays as it is."""

    async def act(life: Life) -> None:
        await life.topic()
        for _ in range(300):
            await life.prepared.prepare("orders", b"x" * BODY, group="shop", timeout_ms=86_400_000)
        await pass_by(life, 20)
        await life.rest(10)
        assert life.prepared.trimmer.moved == 0
        await pass_by(life, 1_000)
        # Each was moved at most once for as many bytes as all of them have.
        assert life.prepared.trimmer.moved <= 300 * 1_000 * (BODY + 400) // (300 * BODY + 65_536)
        assert life.prepared.pending == 300

    async def after(life: Life) -> None:
        assert len(await life.prepared.list(limit=1_000)) == 300

    play(act, after, half_log_bytes=65_536)


def test_a_record_that_says_nothing_is_passed_over() -> None:
    async def spoil(life: Life) -> None:
        await life.topic()
        await life.prepared.prepare("orders", b"v", group="shop")
        said: list[list[tuple[str, bytes | None]]] = [
            [],
            [("other", b"{}")],
            [(HEADER, None)],
            [(HEADER, b"{}")],
            [(HEADER, b"[]")],
            [(HEADER, b'{"kind":"unheard of"}')],
            [(HEADER, b'{"kind":"prepared","topic":"t"}')],
            [(HEADER, json.dumps({"kind": "checked", "checks": [1]}).encode())],
        ]
        rows: list[Any] = [(life.now(), None, b"", headers) for headers in said]
        log_of(life).append(records.build(rows))
        await life.prepared.prepare("orders", b"v", group="shop")

    async def after(life: Life) -> None:
        with capture_logs() as lines:
            assert len(await life.prepared.list()) == 2
        assert [each["event"] for each in lines] == ["skipped a record"] * 8
        assert len(await read_records(life.runtime, log_of(life))) == 10

    play(spoil, after)


def test_what_is_being_decided_stays_where_it_is() -> None:
    """Written again behind its outcome, it would come back once that is forgotten."""

    async def act(life: Life) -> None:
        await life.topic()
        for turns in range(30):
            ids = [await life.prepared.prepare("orders", b"v", group="shop") for _ in range(3)]
            moving = asyncio.create_task(life.prepared.trimmer._move())
            for _ in range(turns % 10):
                await asyncio.sleep(0)
            deciding = [
                asyncio.create_task(life.prepared.commit(ids[0])),
                asyncio.create_task(life.prepared.rollback(ids[1])),
            ]
            for _ in range(turns % 7):
                await asyncio.sleep(0)
            again = asyncio.create_task(life.prepared.trimmer._move())
            await asyncio.gather(moving, again, *deciding)
            await life.prepared.rollback(ids[2])
        ended: set[int] = set()
        for _, _, _, headers in await read_records(life.runtime, log_of(life)):
            said = json.loads(headers[0][1] or b"")
            if said["kind"] in ("committed", "rolled-back"):
                ended.add(said["id"])
            assert said["kind"] != "prepared" or said.get("id") not in ended
        assert life.prepared.trimmer.moved > 30

    play(act)
