"""Any history of adding, dying and beginning again: what was committed is in the log once, and in order."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, event
from tests.longer import examples
from tests.outbox.standin import Log, StandIn

from headrace.outbox import Outbox
from headrace.outbox.errors import Unavailable
from headrace.outbox.relay import Relay, Settings
from headrace.outbox.store import Store


class Killed(BaseException):
    """Ends a relay where it stands."""


# What ends a run: the n-th statement before or after it is carried out, the n-th publish before or after its commit.
places = st.tuples(st.sampled_from(["statement", "carried out", "publish", "published"]), st.integers(0, 12))
runs = st.tuples(places, st.sampled_from([Killed, Unavailable]))
steps = st.one_of(st.integers(1, 7), st.none(), runs)


class Fate:
    """Strikes once, at its place."""

    def __init__(self, place: str, number: int, blow: type[BaseException]) -> None:
        self._place = place
        self._left = number
        self._blow = blow

    def at(self, place: str) -> None:
        if place == self._place:
            self._left -= 1
            if self._left == -1:
                raise self._blow("fate")


def opened(url: str) -> Engine:
    engine = create_engine(url)
    # Only relays die here, not machines: nothing needs to reach the disk.
    event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
    return engine


def drain(url: str, log: Log, fate: Fate) -> None:
    """Run a relay until the outbox is empty, or it dies."""
    engine = opened(url)
    event.listen(engine, "before_cursor_execute", lambda *_: fate.at("statement"))
    event.listen(engine, "after_cursor_execute", lambda *_: fate.at("carried out"))
    publisher = StandIn(log)
    publisher.before = lambda: fate.at("publish")
    publisher.after = lambda: fate.at("published")
    publisher.refuses = lambda message: (message.value or b"").endswith(b"3")
    store = Store(engine, Outbox().tables)

    async def run() -> None:
        relay = Relay(store, publisher, "shop", Settings(messages_max=4, poll=0.002, park=True))
        work = asyncio.create_task(relay._work())
        looking = Store(opened(url), Outbox().tables)
        while not work.done() and looking.status().waiting:
            await asyncio.sleep(0.001)
        relay.stop()
        try:
            await work
        except Killed:
            pass

    asyncio.run(run())
    engine.dispose()
    # The dead keep no locks: what died in the middle of a statement is still there until its last trace is gone.
    gc.collect()


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=12))
def test_each_message_once_and_in_order(history: list[Any]):
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'application.db'}"
        engine = opened(url)
        outbox = Outbox()
        outbox.create_all(engine)
        log = Log()
        expected: list[bytes] = []
        for step in [*history, None]:
            if isinstance(step, int):
                with engine.begin() as connection:
                    for _ in range(step):
                        expected.append(b"%d" % len(expected))
                        outbox.add(connection, "orders", expected[-1])
            elif step is None:
                drain(url, log, Fate("", 0, Killed))
            else:
                (place, number), blow = step
                drain(url, log, Fate(place, number, blow))
        engine.dispose()
        assert log.values == [value for value in expected if not value.endswith(b"3")]
        status = Store(opened(url), outbox.tables).status()
        assert status.refused == sum(value.endswith(b"3") for value in expected)
        assert (status.waiting, status.position) == (0, len(log.values))
