"""What a subscription may be declared with, and what is refused in words where it stands."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import structlog
from tests.sdk.in_memory import InMemory, app, wire
from tests.waiting import until

from headrace.sdk import Ack, App, Message, Reject, Retry, Tuning
from headrace.sdk.scenario import Options

__all__ = ["wire"]


# --- what a handler returns -------------------------------------------------------------------------------------------


async def test_a_returned_value_is_ignored_and_logged_once(wire: InMemory) -> None:
    shop = app()

    @shop.subscribe("orders", workers=1)
    async def total(raw: bytes) -> int:
        return len(raw)

    with structlog.testing.capture_logs() as lines:
        async with shop:
            held = wire.receivers[0].bring(b"a", b"bb", b"ccc")
            await until(lambda: all(each.settled for each in held))
    assert [each.settled for each in held] == [[("ack",)]] * 3
    [line] = [each for each in lines if "returns is ignored" in each["event"]]
    assert (line["log_level"], line["returned"]) == ("warning", "int")
    assert line["handler"].endswith("total")


@pytest.mark.parametrize(
    ("said", "settled"),
    [
        (Ack, ("ack",)),
        (Ack(), ("ack",)),
        (Retry, ("retry", None, "")),
        (Retry("later", after=timedelta(minutes=2)), ("retry", 120.0, "later")),
        (Reject, ("reject", "")),
        (Reject("bad"), ("reject", "bad")),
    ],
)
async def test_an_outcome_may_be_returned_as_it_may_be_raised(
    wire: InMemory, said: Any, settled: tuple[Any, ...]
) -> None:
    shop = app()

    @shop.subscribe("orders")
    def decide(raw: bytes) -> Any:
        if raw == b"raise":
            raise said
        return said

    async with shop:
        held = wire.receivers[0].bring(b"return", b"raise")
        await until(lambda: all(each.settled for each in held))
    assert [each.settled for each in held] == [[settled], [settled]]


# --- two handlers on one topic ----------------------------------------------------------------------------------------


def test_two_handlers_of_one_queue_are_refused_by_name() -> None:
    shop = App("shop")

    @shop.subscribe("orders")
    async def pay(raw: bytes) -> None: ...

    async def ship(raw: bytes) -> None: ...

    words = r"pay and .*ship read the topic .orders. as the same group, .shop.: .* group="
    with pytest.raises(ValueError, match=words) as error:
        shop.subscribe("orders", attempts=1)(ship)
    assert "each message would go to one of them" in str(error.value)
    # With a group of its own it has a queue of its own.
    shop.subscribe("orders", group="shop.shipping")(ship)
    shop.subscribe("returns")(ship)
    assert [each.name for each in shop.subscriptions] == ["orders/shop", "orders/shop.shipping", "returns/shop"]


def test_partitions_by_hand_may_be_shared_out_among_handlers() -> None:
    shop = App("shop")

    async def handle(raw: bytes) -> None: ...

    shop.subscribe("orders", scenario="stream", partitions=[0, 2])(handle)
    shop.subscribe("orders", scenario="stream", partitions=(1,))(handle)
    for partitions in ([2, 3], []):
        with pytest.raises(ValueError, match="as the same group"):
            shop.subscribe("orders", scenario="stream", partitions=partitions)(handle)


# --- what is given ----------------------------------------------------------------------------------------------------


def test_durations_are_seconds_or_timedeltas_and_lists_are_any_sequence() -> None:
    given = Tuning().changed(
        {
            "timeout": timedelta(minutes=2),
            "timeout_max": 30,
            "batch_wait": timedelta(milliseconds=5),
            "ladder": [1, timedelta(seconds=5), 0.5],
            "partitions": range(2),
        }
    )
    assert (given.timeout, given.timeout_max, given.batch_wait) == (120.0, 30.0, 0.005)
    assert (given.ladder, given.partitions) == ((1.0, 5.0, 0.5), (0, 1))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"attempts": "3"}, TypeError, r"attempts must be an integer \(got '3'\)"),
        ({"workers": 2.0}, TypeError, r"workers must be an integer \(got 2.0\)"),
        ({"credit": True}, TypeError, r"credit must be an integer \(got True\)"),
        ({"batch": timedelta(1)}, TypeError, "batch must be an integer"),
        ({"workers": 0}, ValueError, r"workers must be 1 or more \(got 0\)"),
        ({"timeout": "60"}, TypeError, r"timeout must be seconds or a timedelta \(got '60'\)"),
        ({"timeout": -1}, ValueError, r"timeout must be 0 or more seconds \(got -1\)"),
        ({"timeout_max": float("nan")}, ValueError, "timeout_max must be 0 or more seconds"),
        ({"batch_wait": timedelta(seconds=-1)}, ValueError, "batch_wait must be 0 or more seconds"),
        ({"rate": "fast"}, TypeError, r"rate must be a number \(got 'fast'\)"),
        ({"rate": -1}, ValueError, r"rate must be 0 or more \(got -1\)"),
        ({"ladder": 5}, TypeError, r"ladder must be a list \(got 5\)"),
        ({"ladder": "1,5"}, TypeError, r"ladder must be a list \(got '1,5'\)"),
        ({"ladder": [1, "5"]}, TypeError, r"a step of the ladder must be seconds or a timedelta \(got '5'\)"),
        ({"ladder": [1, -5]}, ValueError, r"a step of the ladder must be 0 or more seconds \(got -5\)"),
        ({"partitions": 3}, TypeError, r"partitions must be a list \(got 3\)"),
        ({"partitions": ["0"]}, TypeError, r"partitions must be integers \(got '0'\)"),
        ({"ordered": 1}, TypeError, r"ordered must be True or False \(got 1\)"),
        ({"traced": "all"}, TypeError, r"traced must be a number \(got 'all'\)"),
        ({"atempts": 3}, TypeError, "a subscription has no atempts; it has"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_stands(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        App("shop").subscribe("orders", **options)


def test_a_topic_is_a_name() -> None:
    with pytest.raises(TypeError, match=r"topic must be a name, as text \(got 5\)"):
        App("shop").subscribe(5)  # type: ignore[arg-type]


async def test_keys_and_headers_are_text_bytes_or_integers(wire: InMemory) -> None:
    async with app() as shop:
        await shop.publish("orders", b"x", key=42, headers={"a": "1", "b": b"2", "c": 3})
        await shop.publish("orders", b"x", key=bytearray(b"k"))
        await shop.publish_batch("orders", [b"x", b"y"], keys=[7, None])
    assert [each.key for each in wire.sent] == [b"42", b"k", b"7", None]
    sent = {name: value for name, value in wire.sent[0].headers.items() if name in "abc"}
    assert sent == {"a": b"1", "b": b"2", "c": b"3"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": 4.2}, r"key must be bytes, text or an integer \(got 4.2\)"),
        ({"key": True}, r"key must be bytes, text or an integer \(got True\)"),
        ({"headers": {"a": None}}, r"the header 'a' must be bytes, text or an integer \(got None\)"),
        ({"headers": {b"a": "1"}}, r"the name of a header must be text \(got b'a'\)"),
        ({"headers": [("a", "1")]}, "headers must be a mapping of names to values"),
        ({"partition": "0"}, r"partition must be an integer \(got '0'\)"),
        ({"delay": "5s"}, r"delay must be seconds or a timedelta \(got '5s'\)"),
        ({"topic": None}, r"topic must be a name, as text \(got None\)"),
    ],
)
async def test_what_cannot_be_sent_is_refused_in_words(wire: InMemory, options: dict[str, Any], words: str) -> None:
    async with app() as shop:
        with pytest.raises(TypeError, match=words):
            await shop.publish(**{"topic": "orders", "payload": b"x", **options})
        with pytest.raises(TypeError, match="keys must be a list"):
            await shop.publish_batch("orders", [b"x"], keys="k")
        with pytest.raises(ValueError, match=r"delay must be 0 or more seconds \(got -1\)"):
            await shop.publish("orders", b"x", delay=-1)
    assert wire.sent == []


def test_other_durations() -> None:
    assert Retry(after=timedelta(minutes=1)).after == 60.0
    with pytest.raises(TypeError, match="after must be seconds or a timedelta"):
        Retry(after="60")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="grace must be seconds or a timedelta"):
        App("shop", grace="5s")  # type: ignore[arg-type]


# --- what a type checker sees -----------------------------------------------------------------------------------------


def test_the_options_are_those_of_a_tuning() -> None:
    assert list(get_type_hints(Options)) == [each.name for each in fields(Tuning)]
    assert "Unpack" in str(inspect.signature(App.subscribe).parameters["options"].annotation)


@pytest.mark.long
def test_a_type_checker_finds_slips(tmp_path: Path) -> None:
    code = tmp_path / "shop.py"
    code.write_text(
        "from datetime import timedelta\n"
        "from headrace.sdk import App\n"
        "app = App('shop')\n"
        "app.subscribe('orders', attempts=3, timeout=timedelta(minutes=1), ladder=[1, 5])\n"
        "app.subscribe('orders', atempts=3)\n"
        "app.subscribe('orders', attempts='3')\n"
    )
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", str(code)], capture_output=True, text=True)
    wrong = [line for line in done.stdout.splitlines() if line.startswith(str(code))]
    assert [line.split(":")[1] for line in wrong if "error" in line] == ["5", "6"]


# --- the back-off -----------------------------------------------------------------------------------------------------


def test_each_attempt_has_its_step_and_the_last_holds_for_all_beyond() -> None:
    steps = (1.0, 5.0, 30.0)
    assert [Tuning(ladder=steps).backoff(attempt) for attempt in (1, 2, 3, 4, 99)] == [1.0, 5.0, 30.0, 30.0, 30.0]
    assert Tuning(ladder=()).backoff(1) == 0.0


async def test_in_its_place_a_message_waits_by_the_step_of_its_attempt(
    wire: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = app()
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        # The steps are told from all other waits by what they are.
        if 0.001 < seconds < 0.01:
            waits.append(seconds)
        await sleep(seconds)

    @shop.subscribe("events", scenario="ordered", attempts=5, ladder=(0.002, 0.003, 0.004))
    async def handle(raw: bytes, message: Message) -> None:
        raise RuntimeError("again")

    async with shop:
        monkeypatch.setattr("headrace.sdk.runner.asyncio.sleep", noted)
        one = wire.receivers[0].bring(Message("events", b"x", key=b"k"))[0]
        await until(lambda: one.settled)
    assert waits == [0.002, 0.003, 0.004, 0.004]
