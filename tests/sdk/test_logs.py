"""What an application writes about messages: every failure, and of the rest the same share that the broker watches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog.testing
from tests.sdk.in_memory import InMemory, app, wire
from tests.waiting import until

from headrace.format.sampling import is_kept, seed_of, threshold
from headrace.sdk import Message, PublishFailed, Reject, Retry

__all__ = ["wire"]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """What is logged."""
    with structlog.testing.capture_logs() as found:
        yield found


async def test_logging_may_be_set_up_after_the_application_is_made(wire: InMemory) -> None:
    shop = app()
    wire.fails = PublishFailed("gone")
    with structlog.testing.capture_logs() as found, pytest.raises(PublishFailed):
        await shop.publish("orders", b"x")
    assert [each["event"] for each in found] == ["not sent"]


def handled(lines: list[Any]) -> list[Any]:
    return [each for each in lines if each["event"] == "handled"]


async def test_what_fails_has_a_line_with_its_coordinates(wire: InMemory, lines: list[Any]) -> None:
    shop = app(log_sample=0)

    @shop.subscribe("orders", group="payments", attempts=3)
    async def pay(text: str) -> Any:
        match text:
            case "later":
                return Retry("closed", after=1)
            case "never":
                raise Reject("of no use")
            case "fails":
                raise RuntimeError("broken")

    async with shop:
        brought = wire.receivers[0].bring(
            Message("orders", b"good", b"k", partition=2, offset=7),
            Message("orders", b"later", b"\xff", {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01".encode()}, 2, 8),
            Message("orders", b"never", None, partition=2, offset=9, attempt=2),
            Message("orders", b"fails", None, partition=2, offset=10, attempt=3),
            Message("orders", b"\xff", None, partition=2, offset=11),
        )
        await until(lambda: all(each.settled for each in brought))
    found = {each["offset"]: each for each in handled(lines)}
    assert set(found) == {8, 9, 10, 11}
    later = dict(found[8])
    assert 0 <= later.pop("seconds") < 20
    assert later.pop("handler").endswith("pay")
    assert later == {
        "event": "handled",
        "log_level": "warning",
        "app": "shop.orders",
        "topic": "orders",
        "partition": 2,
        "offset": 8,
        "id": "orders/2/8",
        "key": "\\xff",
        "group": "payments",
        "attempt": 1,
        "result": "retry",
        "reason": "closed",
        "trace": TRACE,
    }
    said = {offset: (each["attempt"], each["result"], each["reason"]) for offset, each in found.items()}
    assert said[9] == (2, "reject", "of no use")
    # The last of its attempts: nobody tries it again.
    assert said[10] == (3, "reject", "RuntimeError: broken")
    assert said[11][1] == "reject"
    assert "not UTF-8" in said[11][2]
    assert [offset for offset, each in found.items() if "exception" in each] == [10]
    assert found[10]["exception"].endswith("RuntimeError: broken\n")


async def test_what_goes_well_is_sampled_as_the_broker_samples(wire: InMemory, lines: list[Any]) -> None:
    shop = app(log_sample=0.1)

    @shop.subscribe("orders")
    async def pay(raw: bytes) -> None: ...

    async with shop:
        brought = wire.receivers[0].bring(*[Message("orders", b"x", partition=1, offset=each) for each in range(500)])
        await until(lambda: all(each.settled for each in brought))
    watched = [each for each in range(500) if is_kept(each, seed_of("orders", 1), threshold(0.1))]
    assert 20 < len(watched) < 90
    assert sorted(each["offset"] for each in handled(lines)) == watched
    assert {each["result"] for each in handled(lines)} == {"ack"}


async def test_level_and_sample_are_changed_while_it_runs(wire: InMemory, lines: list[Any]) -> None:
    shop = app(log_sample=0)

    @shop.subscribe("orders")
    async def pay(raw: bytes) -> Any:
        return Reject("bad") if raw == b"bad" else None

    async def count(*values: bytes) -> list[str]:
        before = len(handled(lines))
        brought = wire.receivers[0].bring(*values)
        await until(lambda: all(each.settled for each in brought))
        return [each["log_level"] for each in handled(lines)[before:]]

    async with shop:
        assert await count(b"good", b"bad") == ["warning"]
        shop.logs.level = "debug"
        assert sorted(await count(b"good", b"bad")) == ["debug", "warning"]
        shop.logs.sample = 1
        assert sorted(await count(b"good", b"bad")) == ["debug", "warning"]
        shop.logs.level = "info"
        assert sorted(await count(b"good", b"bad")) == ["info", "warning"]
        shop.logs.level = "error"
        assert await count(b"good", b"bad") == []
    with pytest.raises(ValueError, match="'loud'"):
        shop.logs.level = "loud"
    with pytest.raises(ValueError, match="0 to 1"):
        shop.logs.sample = 1.5
    assert (shop.logs.level, shop.logs.sample) == ("error", 1)


async def test_a_log_that_fails_harms_no_message(wire: InMemory, capfd: pytest.CaptureFixture[str]) -> None:
    def full(*_: Any) -> Any:
        raise OSError("no space left")

    shop = app(log_sample=1)

    @shop.subscribe("orders", workers=1)
    async def pay(raw: bytes) -> Any:
        return Reject("bad") if raw == b"bad" else None

    async with shop:
        before = structlog.get_config()["processors"]
        structlog.configure(processors=[full])
        try:
            brought = wire.receivers[0].bring(b"good", b"bad", b"good")
            await until(lambda: all(each.settled for each in brought))
            wire.fails = PublishFailed("gone")
            with pytest.raises(PublishFailed):
                await shop.publish("orders", b"x")
        finally:
            structlog.configure(processors=before)
    assert [each.settled for each in brought] == [[("ack",)], [("reject", "bad")], [("ack",)]]
    assert "no space left" in capfd.readouterr().err


async def test_each_try_in_its_place_is_counted(wire: InMemory, lines: list[Any]) -> None:
    shop = app()

    @shop.subscribe("orders", scenario="ordered", attempts=3, ladder=(0.0,))
    async def pay(raw: bytes) -> None:
        raise RuntimeError("broken")

    async with shop:
        [held] = wire.receivers[0].bring(Message("orders", b"x", b"k", offset=0))
        await until(lambda: held.settled)
    assert [(each["attempt"], each["result"]) for each in handled(lines)] == [(1, "retry"), (2, "retry"), (3, "reject")]


async def test_a_batch_that_fails_tells_its_story_once(wire: InMemory, lines: list[Any]) -> None:
    shop = app()

    @shop.subscribe("orders", batch=3)
    async def pay(raws: list[bytes]) -> None:
        raise RuntimeError("broken")

    async with shop:
        brought = wire.receivers[0].bring(b"1", b"2", b"3")
        await until(lambda: all(each.settled for each in brought))
    assert [each["offset"] for each in handled(lines)] == [0, 1, 2]
    assert ["exception" in each for each in handled(lines)] == [True, False, False]


async def test_every_send_that_fails_has_a_line(wire: InMemory, lines: list[Any]) -> None:
    async with app() as shop:
        await shop.publish("orders", b"good")
        wire.fails = PublishFailed("the broker is gone")
        sent = [await shop.send("orders", b"x", key=f"k{number}") for number in range(3)]
        await shop.flush()
        for each in sent:
            with pytest.raises(PublishFailed):
                await each
    found = [each for each in lines if each["event"] == "not sent"]
    assert [(each["topic"], each["key"], each["result"]) for each in found] == [
        ("orders", f"k{number}", "failed") for number in range(3)
    ]
    assert {each["reason"] for each in found} == {"PublishFailed: the broker is gone"}
    assert all(len(each["trace"]) == 32 for each in found)


async def test_also_one_that_does_not_come_into_the_line(
    wire: InMemory, lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def closed() -> None:
        raise PublishFailed("nobody answers")

    monkeypatch.setattr(wire, "open", closed)
    shop = app()
    with pytest.raises(PublishFailed):
        await shop.publish("orders", b"x", key="k")
    [found] = [each for each in lines if each["event"] == "not sent"]
    assert (found["topic"], found["key"], found["log_level"]) == ("orders", "k", "error")
