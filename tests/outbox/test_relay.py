"""The relay against a log in memory: what is in the table gets into the log once, in order, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, select, update
from tests.captured_logs import capture_logs
from tests.outbox.standin import Log, StandIn, away
from tests.waiting import SECONDS, until

from headrace.outbox import Outbox, OutboxError
from headrace.outbox import relay as relay_module
from headrace.outbox.errors import InDoubt, NoOutbox, RelayFenced
from headrace.outbox.relay import Relay, Settings
from headrace.outbox.store import Store


class Bench:
    """An outbox, a log, and as many relays between them as a test wants."""

    def __init__(self, engine: Engine, outbox: Outbox) -> None:
        self.engine = engine
        self.outbox = outbox
        self.log = Log()
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, *values: bytes, topic: str = "orders") -> None:
        with self.engine.begin() as connection:
            for value in values:
                self.outbox.add(connection, topic, value)

    def store(self, keep: bool = False) -> Store:
        return Store(self.engine, self.outbox.tables, keep=keep)

    def left(self) -> list[bytes]:
        messages = self.outbox.tables.messages
        with self.engine.connect() as connection:
            return [row.value for row in connection.execute(select(messages.c.value).order_by(messages.c.id))]

    @asynccontextmanager
    async def relaying(
        self, publisher: StandIn | None = None, *, name: str = "shop", keep: bool = False, **settings: object
    ) -> AsyncIterator[Relay]:
        made = Settings(**{"poll": 0.01, **settings})  # type: ignore[arg-type]
        relay = Relay(self.store(keep), publisher or StandIn(self.log), name, made)
        task = asyncio.create_task(relay.run())
        self._tasks.append(task)
        try:
            yield relay
            relay.stop()
            await asyncio.wait_for(task, SECONDS)
        finally:
            self._tasks.remove(task)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait while the relays run: what ends one of them fails the test."""

        def held() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return true()

        await until(held)

    async def drained(self) -> None:
        await self.until(lambda: not self.left())


@pytest.fixture
def bench(engine: Engine, outbox: Outbox) -> Bench:
    return Bench(engine, outbox)


class Killed(BaseException):
    """Ends a relay where it stands."""


def die() -> None:
    raise Killed


async def killed(bench: Bench, publisher: StandIn) -> None:
    """Run a relay until it dies by the publisher's doing."""
    relay = Relay(bench.store(), publisher, "shop", Settings(poll=0.01))
    with pytest.raises(Killed):
        await asyncio.wait_for(relay._work(), SECONDS)
    relay._store.close()


async def test_in_order_and_then_the_table_is_empty(bench: Bench):
    values = [b"%d" % each for each in range(25)]
    bench.add(*values)
    async with bench.relaying(messages_max=10) as relay:
        await bench.drained()
        bench.add(b"later")
        await bench.until(lambda: len(bench.log.messages) == 26)
    assert bench.log.values == [*values, b"later"]
    assert max(bench.log.transactions) == 10
    assert relay.published == 26
    assert bench.left() == []


async def test_a_transaction_has_bounded_bytes(bench: Bench):
    bench.add(*(b"x" * 400 for _ in range(5)), b"y" * 5_000, b"z")
    async with bench.relaying(bytes_max=1_000):
        await bench.drained()
    assert bench.log.transactions == [2, 2, 1, 1, 1]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_around_the_commit(bench: Bench, moment: str):
    bench.add(b"1", b"2", b"3")
    publisher = StandIn(bench.log)
    setattr(publisher, moment, die)
    await killed(bench, publisher)
    assert len(bench.left()) == 3
    bench.add(b"4")
    async with bench.relaying():
        await bench.drained()
    assert bench.log.values == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_the_broker_is_away_around_the_commit(bench: Bench, moment: str):
    publisher = StandIn(bench.log)
    setattr(publisher, moment, away)
    with capture_logs() as lines:
        async with bench.relaying(publisher):
            bench.add(b"1", b"2")
            await bench.until(lambda: any(line["log_level"] == "warning" for line in lines))
            setattr(publisher, moment, lambda: None)
            await bench.drained()
    assert bench.log.values == [b"1", b"2"]
    assert next(line["why"] for line in lines if line["log_level"] == "warning") == "the broker cannot answer"


async def test_without_the_position_a_message_comes_twice(bench: Bench):
    """What the position is for: without it, the same kill as above sends everything again."""
    bench.add(b"1", b"2", b"3")
    publisher = StandIn(bench.log)
    publisher.after = die
    await killed(bench, publisher)
    bench.log.committed = None
    async with bench.relaying():
        await bench.drained()
    assert bench.log.values == [b"1", b"2", b"3"] * 2


async def test_a_row_that_appears_behind_the_relay(bench: Bench):
    """A transaction that took its id early and commits late, behind one that began after it."""
    if bench.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time, so ids are in the order of commits")
    early = bench.engine.connect()
    bench.outbox.add(early, "orders", b"early id, late commit")
    async with bench.relaying():
        bench.add(b"late id, early commit", b"and another")
        await bench.drained()
        early.commit()
        early.close()
        await bench.until(lambda: len(bench.log.messages) == 3)
        await bench.drained()
    assert bench.log.values == [b"late id, early commit", b"and another", b"early id, late commit"]
    assert [each.id for each in bench.log.messages] == [2, 3, 1]


@pytest.mark.parametrize("dies", [False, True])
async def test_a_gap_that_is_filled_while_its_neighbours_are_under_way(bench: Bench, dies: bool):
    """What is deleted is what was published, and not a range of ids that a late commit may have got into."""
    if bench.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time, so ids are in the order of commits")
    early = bench.engine.connect()
    bench.add(b"1")
    bench.outbox.add(early, "orders", b"2")
    bench.add(b"3")
    publisher = StandIn(bench.log)
    publisher.before = early.commit
    if dies:
        publisher.after = die
        await killed(bench, publisher)
        publisher = StandIn(bench.log)
    async with bench.relaying(publisher):
        await bench.until(lambda: len(bench.log.messages) == 3)
    early.close()
    assert bench.log.values == [b"1", b"3", b"2"]


@pytest.mark.parametrize("exact", [False, True])
async def test_what_is_refused_ends_the_relay(bench: Bench, exact: bool):
    bench.add(*(b"%d" % each for each in range(10)))
    publisher = StandIn(bench.log)
    publisher.exact = exact
    publisher.refuses = lambda message: message.value == b"6"
    with pytest.raises(OutboxError, match=r"message 7 .*orders.*too large"):
        await asyncio.wait_for(Relay(bench.store(), publisher, "shop").run(), SECONDS)
    assert bench.log.values == ([] if exact else [b"%d" % each for each in range(6)])


@pytest.mark.parametrize("exact", [False, True])
async def test_or_is_parked(bench: Bench, exact: bool):
    bench.add(*(b"%d" % each for each in range(40)))
    publisher = StandIn(bench.log)
    publisher.exact = exact
    publisher.refuses = lambda message: message.value in (b"6", b"7", b"39")
    async with bench.relaying(publisher, park=True):
        await bench.until(lambda: len(bench.left()) == 3)
    assert bench.log.values == [b"%d" % each for each in range(40) if each not in (6, 7, 39)]
    status = bench.store().status()
    assert (status.waiting, status.refused, status.position) == (0, 3, 37)
    [(message, reason), *_] = bench.store().refused(1)
    assert (message.value, reason) == (b"6", "too large")


async def test_what_is_out_can_be_kept(bench: Bench):
    bench.add(b"1", b"2")
    async with bench.relaying(keep=True):
        await bench.until(lambda: bench.store().status().kept == 2)
    assert bench.left() == [b"1", b"2"]
    async with bench.relaying(keep=True):
        bench.add(b"3")
        await bench.until(lambda: bench.store().status().kept == 3)
    assert bench.log.values == [b"1", b"2", b"3"]


async def test_a_zombie_can_do_nothing(bench: Bench):
    """A relay that was given up for dead, and wakes up between its commit and its word to the database."""
    bench.add(b"1")
    first, second = bench.store(), bench.store()
    publisher = StandIn(bench.log)
    zombie = Relay(first, publisher, "shop")
    claim = first.advance(await zombie._begin(), 10, 1_000)
    await publisher.publish(first.messages(claim), claim.position, "")

    heir = StandIn(bench.log)
    out = await Relay(second, heir, "shop")._begin()
    assert out.ids == [1]
    bench.add(b"2")
    with pytest.raises(RelayFenced):
        first.advance(claim, 10, 1_000)
    claim = second.advance(out, 10, 1_000)
    with pytest.raises(RelayFenced):
        await publisher.publish(first.messages(claim), claim.position, "")
    await heir.publish(second.messages(claim), claim.position, "")
    assert bench.log.values == [b"1", b"2"]


async def test_a_second_relay_stands_by(bench: Bench):
    if bench.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no locks that go with a connection")
    values = [b"%d" % each for each in range(60)]
    async with bench.relaying(messages_max=3) as first:
        bench.add(*values[:20])
        await bench.drained()
        async with bench.relaying(messages_max=3) as second:
            bench.add(*values[20:40])
            await bench.drained()
            assert second.published == 0
            first.stop()
            bench.add(*values[40:])
            await bench.drained()
            assert second.published > 0
    assert bench.log.values == values


async def test_the_one_that_was_shut_out_ends_where_there_are_no_turns(bench: Bench):
    if bench.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL has locks that go with a connection")
    first = Relay(bench.store(), StandIn(bench.log), "shop", Settings(poll=0.01))
    task = asyncio.create_task(first.run())
    added = [b"1"]
    bench.add(*added)
    await bench.drained()
    async with bench.relaying() as second, asyncio.timeout(SECONDS):
        # Not merely fenced at the broker: until the second has its row in the database, the first finds no other relay
        # there, begins again, and it is the second that ends.
        await bench.until(lambda: bool(second._identity))
        # The second empties the table quickly: it may take several before the first sees one there.
        while not task.done():
            added.append(b"%d" % (len(added) + 1))
            bench.add(added[-1])
            await bench.drained()
        with pytest.raises(RelayFenced):
            await task
    assert bench.log.values == added


async def test_a_broker_that_shuts_out_a_silent_relay(bench: Bench):
    """No other relay is there: the transaction took too long. It begins again."""
    async with bench.relaying():
        bench.add(b"1")
        await bench.drained()
        bench.log.epoch += 1
        bench.add(b"2")
        await bench.drained()
    assert bench.log.values == [b"1", b"2"]


@pytest.mark.parametrize("position", [0, 5, None])
async def test_a_position_that_fits_nothing(bench: Bench, position: int | None):
    bench.add(b"1")
    async with bench.relaying():
        await bench.drained()
    bench.add(b"2", b"3")
    publisher = StandIn(bench.log)
    publisher.before = die
    await killed(bench, publisher)
    bench.log.committed = None if position is None else (position, "")
    with pytest.raises(InDoubt, match="begin anew"):
        await asyncio.wait_for(Relay(bench.store(), StandIn(bench.log), "shop").run(), SECONDS)
    async with bench.relaying(begin_anew=True):
        await bench.drained()
    assert bench.log.values == [b"1", b"2", b"3"]
    assert bench.log.committed is not None
    assert bench.log.committed[0] == (position or 0) + 2


async def test_a_forgotten_position_is_no_matter_while_nothing_is_under_way(bench: Bench):
    bench.add(b"1")
    async with bench.relaying():
        await bench.drained()
    bench.log.committed = None
    bench.add(b"2")
    with capture_logs() as lines:
        async with bench.relaying():
            await bench.drained()
    assert bench.log.values == [b"1", b"2"]
    assert any("lost the position" in line["event"] for line in lines)


async def test_another_name(bench: Bench):
    bench.add(b"1")
    async with bench.relaying():
        await bench.drained()
    with pytest.raises(InDoubt, match="'shop'"):
        await asyncio.wait_for(Relay(bench.store(), StandIn(Log()), "store").run(), 20)
    async with bench.relaying(name="store", begin_anew=True):
        bench.add(b"2")
        await bench.drained()
    assert bench.store().status().name == "store"


async def test_a_database_that_fails_at_any_step(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Every statement fails once, and every commit, each in a run of its own, before or after it was carried out."""
    bench.add(b"0")
    async with bench.relaying():
        await bench.drained()
    expected = [b"0"]
    for step in range(12):
        for moment in ("before", "after", "commit"):
            values = [f"{step} {moment} {each}".encode() for each in range(3)]
            bench.add(*values)
            expected += values
            failing = create_engine(bench.engine.url)
            count = [0]

            def fail(*arguments: object, engine: Engine = failing, count: list[int] = count, step: int = step) -> None:
                count[0] += 1
                if count[0] == step + 1:
                    raise engine.dialect.loaded_dbapi.OperationalError("the connection is gone")

            if moment == "commit":
                commit = failing.dialect.do_commit

                def carried_out(connection: Any, commit: Any = commit, fail: Any = fail) -> None:
                    commit(connection)
                    fail()

                monkeypatch.setattr(failing.dialect, "do_commit", carried_out)
            else:
                event.listen(failing, f"{moment}_cursor_execute", fail)
            relay = Relay(
                Store(failing, bench.outbox.tables), StandIn(bench.log), "shop", Settings(messages_max=2, poll=0.01)
            )
            task = asyncio.create_task(relay.run())
            await bench.drained()
            relay.stop()
            await asyncio.wait_for(task, SECONDS)
            failing.dispose()
            assert bench.log.values == expected, (step, moment)
            assert count[0] > step or moment == "commit"


async def test_the_broker_is_reminded(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """It forgets a position that it was not told for long."""
    monkeypatch.setattr(relay_module, "REMIND_SECONDS", 0.01)
    bench.add(b"1", b"2")
    async with bench.relaying():
        await bench.drained()
        bench.log.committed = None
        await bench.until(lambda: bench.log.committed is not None)
    assert bench.log.committed is not None
    assert bench.log.committed[0] == 2
    assert bench.log.values == [b"1", b"2"]


def test_a_name_must_fit(bench: Bench):
    async def make(name: str) -> None:
        Relay(bench.store(), StandIn(bench.log), name)

    for name in ("", "x" * 201):
        with pytest.raises(OutboxError, match="200"):
            asyncio.run(make(name))


async def test_no_table(engine: Engine):
    with pytest.raises(NoOutbox, match="headrace_outbox"):
        await asyncio.wait_for(Relay(Store(engine, Outbox().tables), StandIn(Log()), "shop").run(), 20)


async def test_rows_that_somebody_deletes_hold_nothing_up(bench: Bench):
    bench.add(b"1", b"2")
    publisher = StandIn(bench.log)
    publisher.before = die
    await killed(bench, publisher)
    with bench.engine.begin() as connection:
        connection.execute(bench.outbox.tables.messages.delete())
    bench.add(b"3")
    async with bench.relaying():
        await bench.drained()
    assert bench.log.values == [b"3"]


async def test_status(bench: Bench):
    store = bench.store()
    assert store.status().name is None
    bench.add(b"1", b"2")
    with bench.engine.begin() as connection:
        connection.execute(update(bench.outbox.tables.messages).values(added_ms=1_000))
    status = store.status()
    assert (status.waiting, status.oldest_ms, status.refused, status.kept) == (2, 1_000, 0, 0)
