"""nan in a world of its own, where time moves when it is told to; and on a real broker."""

from __future__ import annotations

import asyncio

import pytest
from headrace import Broker
from headrace.sdk.testing import Harness, connected

from nan.app import app, config
from nan.config import Config
from nan.events import Event
from nan.work import Work


class Recording(Work):
    """Remembers what was done, after it has failed as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.done: list[Event] = []
        self.came = asyncio.Event()
        self._failures = failures

    async def do(self, event: Event) -> None:
        if self._failures:
            self._failures -= 1
            raise ConnectionError("nobody answers")
        self.done.append(event)
        self.came.set()


def event(thing: str, number: int = 1) -> Event:
    return Event(id=thing, text=f"{number}")


async def test_an_event_is_handled() -> None:
    work = Recording()
    async with Harness(app, given={Work: work}) as harness:
        await harness.publish(config.topic, event("a"), key="a")
        await harness.settled()
    assert work.done == [event("a")]


async def test_an_event_that_makes_no_sense_is_rejected() -> None:
    work = Recording()
    async with Harness(app, given={Work: work}) as harness:
        await harness.publish(config.topic, Event(id=""))
        await harness.settled()
        [handled] = harness.handled
    assert (handled.outcome, handled.reason) == ("reject", "no id")
    assert work.done == []


async def test_what_cannot_be_read_is_rejected() -> None:
    async with Harness(app, given={Work: Recording()}) as harness:
        await harness.publish(config.topic, b"no JSON")
        await harness.settled()
        [handled] = harness.handled
    assert handled.outcome == "reject"
    assert "not a Event" in handled.reason


async def test_what_fails_is_tried_again() -> None:
    work = Recording(failures=1)
    async with Harness(app, given={Work: work}) as harness:
        await harness.publish(config.topic, event("a"), key="a")
        await harness.settled()
        assert work.done == []
        await harness.advance(60)
    assert work.done == [event("a")]


async def test_what_always_fails_is_put_aside() -> None:
    async with Harness(app, given={Work: Recording(failures=100)}) as harness:
        await harness.publish(config.topic, event("a"), key="a")
        await harness.advance(3_600)
        [letter] = harness.dead(config.topic)
    assert letter.reason == "ConnectionError: nobody answers"


async def test_on_a_real_broker(headrace_broker: Broker) -> None:
    work = Recording()
    with connected(app, headrace_broker.url, given={Work: work}):
        async with asyncio.timeout(30), app:
            await app.publish(config.topic, event("a"), key="a")
            await work.came.wait()
    assert work.done == [event("a")]


def test_settings_come_from_the_environment() -> None:
    assert Config.from_environment({}) == Config()
    given = {"HEADRACE_URL": "kafka://broker", "TOPIC": "other", "WORKERS": "3"}
    assert Config.from_environment(given) == Config("kafka://broker", "other", 3)
    with pytest.raises(ValueError, match="WORKERS=many"):
        Config.from_environment({"WORKERS": "many"})
