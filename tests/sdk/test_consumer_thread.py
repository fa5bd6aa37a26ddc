"""A consumer in a thread: one that breaks is left and replaced, until the subscription or its loop is closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs
from tests.waiting import until

from headrace.sdk import consumer_thread
from headrace.sdk.consumer_thread import ConsumerThread


class FakeConsumer:
    """Notes its end."""

    def __init__(self, life: list[str]) -> None:
        self._life = life

    def close(self) -> None:
        self._life.append("closed")


class FailingThread(ConsumerThread):
    """Breaks as often as is asked for, and then waits for its end."""

    again_seconds = 0.001

    def __init__(self, life: list[str], breaks: int) -> None:
        self.life = life
        self.breaks = breaks
        super().__init__({}, "orders", "consumer under test")

    def start(self) -> None:
        self._thread.start()

    def _consume(self) -> None:
        if self.breaks:
            self.breaks -= 1
            raise KafkaException(KafkaError(KafkaError._FATAL))
        self.life.append("consumes")
        self._closing.wait()

    def _leave(self) -> None:
        self.life.append("leaves")

    def _recover(self) -> None:
        self.life.append("recovers")


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to consumers, in order."""
    events: list[str] = []

    def make(settings: dict[str, Any]) -> FakeConsumer:
        assert settings["partition.assignment.strategy"] == "cooperative-sticky"
        events.append("made")
        return FakeConsumer(events)

    monkeypatch.setattr(consumer_thread, "Consumer", make)
    return events


async def test_one_that_breaks_is_left_and_replaced(life: list[str]) -> None:
    with capture_logs() as lines:
        thread = FailingThread(life, breaks=2)
        thread.start()
        await until(lambda: "consumes" in life)
        await thread.close()
    again = ["leaves", "closed", "recovers", "made"]
    assert life == ["made", *again, *again, "consumes", "leaves", "closed"]
    assert [(line["log_level"], line["topic"]) for line in lines] == [("error", "orders")] * 2


def test_a_closed_loop_ends_it(life: list[str]) -> None:
    async def make() -> FailingThread:
        return FailingThread(life, breaks=1)

    thread = asyncio.run(make())
    thread.start()
    thread._thread.join(20)
    assert not thread._thread.is_alive()
    assert life == ["made", "leaves", "closed"]


class FakeMessage:
    def __init__(self, error: KafkaError | None) -> None:
        self._error = error

    def error(self) -> KafkaError | None:
        return self._error


async def test_errors_among_messages_are_logged_and_left_out(life: list[str]) -> None:
    thread = FailingThread(life, breaks=0)
    good, bad = FakeMessage(None), FakeMessage(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    with capture_logs() as lines:
        assert thread._messages([good, good]) == [good, good]
        assert not lines
        assert thread._messages([good, bad]) == [good]
    [line] = lines
    assert (line["log_level"], line["topic"], len(line["errors"])) == ("warning", "orders", 1)
