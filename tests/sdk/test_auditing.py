"""What an application says that it sent: stamped, counted by minute, reported once and in order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.sdk.in_memory import InMemory, app, wire
from tests.waiting import SECONDS

from headrace.sdk import PublishFailed, Unsuited, auditing
from headrace.sdk.auditing import ID, MINUTE_MS, TIME, TOPIC, Audit
from headrace.sdk.message import Outgoing

__all__ = ["wire"]

NOON = 1_704_110_400_000


class Clock:
    """Stands where the module `time` does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms = NOON
        monkeypatch.setattr(auditing, "time", self)

    def time_ns(self) -> int:
        return self.ms * 1_000_000

    def monotonic(self) -> float:
        return self.ms / 1_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def reports(wire: InMemory) -> list[dict[str, Any]]:
    return [json.loads(each.value) for each in wire.sent if each.topic == TOPIC]


async def test_messages_are_counted_by_topic_and_the_minute_that_they_carry(wire: InMemory, clock: Clock) -> None:
    async with app(audit=True) as shop:
        await shop.publish("orders", b"1")
        clock.ms += 1_000
        await shop.publish("orders", b"2", headers={"h": b"x"})
        await shop.publish("paid", b"3")
        # Counted where it will be found: in the minute in which it is due.
        await shop.publish("orders", b"4", delay=60.0)
        wire.fails = PublishFailed("no")
        with pytest.raises(PublishFailed):
            await shop.publish("orders", b"5")
        wire.fails = None
    sent = [each for each in wire.sent if each.topic != TOPIC]
    assert [int(each.headers[TIME]) - NOON for each in sent] == [0, 1_000, 1_000, 61_000]
    (report,) = reports(wire)
    assert [each.headers[ID].decode() for each in sent] == [f"{report['instance']}-{number}" for number in range(1, 5)]
    assert sent[1].headers["h"] == b"x"
    assert report["counts"] == [
        {"topic": "orders", "minute": NOON, "sent": 2, "failed": 1},
        {"topic": "orders", "minute": NOON + MINUTE_MS, "sent": 1, "failed": 0},
        {"topic": "paid", "minute": NOON, "sent": 1, "failed": 0},
    ]
    assert (report["app"], report["sequence"], report["last"], report["ids"]) == ("shop.orders", 0, True, True)


async def test_a_message_that_is_passed_on_is_a_new_one(wire: InMemory) -> None:
    async with app(audit=True) as shop:
        await shop.publish("orders", b"1")
        await shop.publish("copies", b"1", headers=wire.sent[0].headers)
    first, second = (each.headers[ID] for each in wire.sent[:2])
    assert (first[:-1], second[-2:]) == (second[:-1], b"-2")


async def test_without_an_audit_nothing_is_added(wire: InMemory) -> None:
    async with app(traces=0) as shop:
        await shop.publish("orders", b"1")
    assert [(each.topic, dict(each.headers)) for each in wire.sent] == [("orders", {})]


async def test_nsq_has_no_log_to_compare_with() -> None:
    with pytest.raises(Unsuited, match="keeps no log"):
        app(url="nsq://127.0.0.1?envelope=1", audit=True)


class Line:
    """Where reports go; it can be cut, before or behind the writing."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.cut = ""
        self.came = asyncio.Event()

    async def send(self, report: Outgoing) -> None:
        if self.cut != "before":
            self.written.append(json.loads(report.value))
        self.came.set()
        if self.cut:
            raise PublishFailed("cut")


def send(audit: Audit, topic: str = "t", *, well: bool = True) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    audit.watch(audit.stamp(Outgoing(topic, b"")), done)
    if well:
        done.set_result(None)
    else:
        done.cancel()


async def next_report(line: Line) -> None:
    line.came.clear()
    async with asyncio.timeout(SECONDS):
        await line.came.wait()


async def test_a_report_that_was_not_confirmed_is_written_again_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "LAST_TRY_SECONDS", 0.01)
    line = Line()
    audit = Audit("a", line.send, every=0.01)
    send(audit)
    await next_report(line)
    line.cut = "behind"
    send(audit)
    send(audit, well=False)
    await next_report(line)
    send(audit)
    line.cut = "before"
    await next_report(line)
    line.cut = ""
    await audit.stop()
    numbers = [each["sequence"] for each in line.written]
    assert numbers == sorted(numbers)
    assert numbers.count(1) > 1
    once = {each["sequence"]: each for each in line.written}
    assert list(once) == list(range(len(once)))
    assert all(each == once[each["sequence"]] for each in line.written)
    assert sum(count["sent"] for each in once.values() for count in each["counts"]) == 3
    assert sum(count["failed"] for each in once.values() for count in each["counts"]) == 1
    assert [each["last"] for each in once.values()] == [*[False] * (len(once) - 1), True]


async def test_one_that_has_nothing_to_say_says_so() -> None:
    line = Line()
    audit = Audit("a", line.send, every=0.01, within=0.03)
    send(audit)
    await next_report(line)
    await next_report(line)
    await audit.stop()
    assert [bool(each["counts"]) for each in line.written[:2]] == [True, False]
    assert line.written[0]["within"] == 0.03


async def test_one_that_sent_nothing_reports_nothing() -> None:
    line = Line()
    await Audit("a", line.send).stop()
    assert not line.written
