"""`headrace trace`: the life of messages, told from what a real broker keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.cli.conftest import Cli
from tests.cli.nsq import NsqConsumer
from tests.waiting import SECONDS, wait_until

from headrace.broker.lives.records import Span, TracedRecord
from headrace.cli.trace import search
from headrace.client import Client
from headrace.embedded import Broker
from headrace.format.sampling import is_kept, threshold
from headrace.sdk import App, Message, Reject, retry_topic

pytestmark = pytest.mark.headrace(http="127.0.0.1:0", deliveries_flush_ms=20)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture(autouse=True)
def _door(headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HTTP", headrace_broker.http)


@pytest.fixture
def shop(headrace_broker: Broker) -> Callable[..., None]:
    """A service that takes orders, and one that sends invoices and sometimes cannot."""

    def run(traced: float, *publishes: Callable[[App], Any], waits: int = 1) -> None:
        handled: list[str] = []
        orders, invoices = (App(name, headrace_broker.url, register=False) for name in ("shop.orders", "shop.invoices"))

        @orders.subscribe("orders", traced=traced, attempts=3, ladder=(0.05,))
        async def order(raw: bytes, message: Message) -> None:
            if message.attempt == 1 and raw == b"twice":
                raise RuntimeError("the first time")
            await orders.publish("paid", raw, key="42")

        @invoices.subscribe("paid", traced=traced)
        async def invoice(raw: bytes) -> None:
            handled.append(raw.decode())
            if raw == b"never":
                raise Reject("of no use")

        async def main() -> None:
            async with asyncio.timeout(SECONDS), orders, invoices:
                for each in publishes:
                    await each(orders)
                while len(handled) < waits:
                    await asyncio.sleep(0.01)

        asyncio.run(main())

    return run


def told(cli: Cli, *arguments: object) -> dict[str, Any]:
    """What the command says, to programs."""
    outcome = cli("trace", *arguments, "--json")
    assert outcome.out, outcome.err
    return outcome.json


def steps(told: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(each["message"], each["what"], each.get("who", "")) for each in told["steps"]]


def of(told: dict[str, Any], message: str) -> list[tuple[Any, ...]]:
    return [
        (each["what"], each.get("who", ""), each.get("attempt", 0))
        for each in told["steps"]
        if each["message"] == message
    ]


def test_a_message_through_queues_and_services(cli: Cli, shop: Any) -> None:
    shop(1, lambda app: app.publish("orders", b"twice", key="k", headers={"traceparent": PARENT}))
    want = {
        "orders/0/0": [
            ("published", "", 0),
            ("delivered", "shop.orders", 1),
            ("requeued", "shop.orders", 1),
            ("delivered", "shop.orders", 2),
            ("finished", "shop.orders", 2),
        ],
        "paid/0/0": [("published", "", 0), ("delivered", "shop.invoices", 1), ("finished", "shop.invoices", 1)],
    }

    wait_until(
        lambda: all(of(told(cli, "orders/0/0"), message) == life for message, life in want.items()),
        lambda: str(steps(told(cli, "orders/0/0"))),
    )
    found = told(cli, "orders/0/0")
    assert found["trace"] == TRACE
    assert {each["id"]: each["key"] for each in found["messages"]} == {"orders/0/0": "k", "paid/0/0": "42"}
    assert {each["trace"] for each in found["messages"]} == {TRACE}
    requeued = next(each for each in found["steps"] if each["what"] == "requeued")
    assert requeued["error"] == "RuntimeError: the first time"
    assert requeued["delay_ms"] == 50
    assert "shop.orders" in requeued["consumer"]
    assert [each["after_ms"] for each in found["steps"]] == sorted(each["after_ms"] for each in found["steps"])
    states = {(each["message"], each["name"]): (each["state"], each["kept"]) for each in found["readers"]}
    assert states == {
        ("orders/0/0", "shop.orders"): ("finished", True),
        ("paid/0/0", "shop.invoices"): ("finished", True),
    }
    # The same by its trace, and from the other end.
    for id in (TRACE, PARENT, "paid/0/0"):
        assert steps(told(cli, id)) == steps(found)
    text = cli("trace", TRACE)
    assert text.code == 0
    line = next(each for each in text.lines if "requeued" in each)
    assert "orders/0/0" in line
    assert "attempt 1, again in 50ms: RuntimeError: the first time" in line


def test_a_dead_letter(cli: Cli, shop: Any) -> None:
    shop(1, lambda app: app.publish("orders", b"never"))
    wait_until(lambda: "dead" in [each[1] for each in steps(told(cli, "paid/0/0"))])
    found = told(cli, "paid/0/0")
    assert ("paid/0/0", "put aside", "shop.invoices") in steps(found)
    aside = next(each for each in found["steps"] if each["what"] == "put aside")
    assert (aside["error"], aside["at"], aside["attempt"]) == ("of no use", "paid.shop.invoices.dead/0/0", 1)
    assert next(each for each in found["readers"] if each["name"] == "shop.invoices")["state"] == "dead"
    # From the letter itself.
    letter = told(cli, "paid.shop.invoices.dead/0/0")
    assert ("paid/0/0", "put aside", "shop.invoices") in steps(letter)
    assert ("orders/0/0", "published", "") in steps(letter)


def test_one_of_many(cli: Cli, shop: Any) -> None:
    async def many(app: App) -> None:
        for _ in range(50):
            await app.send("orders", b"x")
        await app.flush()

    shop(1, many, waits=50)
    life = [("published", "", 0), ("delivered", "shop.orders", 1), ("finished", "shop.orders", 1)]
    wait_until(lambda: of(told(cli, "orders/0/23"), "orders/0/23") == life)
    found = told(cli, "orders/0/23")
    assert {each["id"].split("/")[0] for each in found["messages"]} == {"orders", "paid"}
    assert len(found["messages"]) == 2
    cli("queue", "delete", "orders", "shop.orders", "--yes")
    [reader] = [each for each in told(cli, "orders/0/23")["readers"] if each["name"] == "shop.orders"]
    assert (reader["state"], reader["note"]) == ("finished", "the queue is deleted")


def test_batches_that_are_compressed(cli: Cli, headrace_broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": headrace_broker.kafka, "compression.type": "zstd"})
    for number in range(200):
        headers = {"traceparent": PARENT} if number == 150 else {"traceparent": PARENT.replace("4", "5")}
        producer.produce("orders", b"x" * 100, headers=headers)
    assert producer.flush(20) == 0
    found = told(cli, TRACE)
    assert [each["id"] for each in found["messages"]] == ["orders/0/150"]


def test_what_transactions_do_not_commit(cli: Cli, headrace_broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": headrace_broker.kafka, "transactional.id": "t"})
    producer.init_transactions(20)
    for ends in (producer.abort_transaction, producer.commit_transaction, None):
        producer.begin_transaction()
        producer.produce("orders", b"x", headers={"traceparent": PARENT})
        assert producer.flush(20) == 0
        if ends is not None:
            ends(20)
    found = told(cli, TRACE)
    assert [each["id"] for each in found["messages"]] == ["orders/0/2"]
    said = {offset: told(cli, f"orders/0/{offset}")["notes"][0] for offset in (0, 1, 4)}
    assert "aborted" in said[0]
    assert "marks the end of a transaction" in said[1]
    assert "still open" in said[4]
    producer.abort_transaction(20)


@pytest.mark.headrace(http="127.0.0.1:0", deliveries_flush_ms=20, deliveries_runs_max=1)
def test_what_was_dropped_is_said(cli: Cli, shop: Any) -> None:
    async def many(app: App) -> None:
        for _ in range(50):
            await app.send("orders", b"x")
        await app.flush()

    shop(1, many, waits=50)

    def notes() -> list[str]:
        return told(cli, "orders/0/23")["notes"]

    wait_until(lambda: any("has dropped the events of" in note for note in notes()))


@pytest.mark.headrace(http="127.0.0.1:0", deliveries_flush_ms=20, retention_check_ms=50)
def test_events_that_are_deleted_are_missed(cli: Cli, shop: Any) -> None:
    shop(1, lambda app: app.publish("orders", b"once"))
    wait_until(lambda: ("orders/0/0", "finished", "shop.orders") in steps(told(cli, "orders/0/0")))
    cli("topic", "config", "__deliveries", "--set", "retention.ms=1", "--set", "segment.ms=1")
    shop(1, lambda app: app.publish("orders", b"once"))
    gone: dict[str, Any] = {}

    def deleted() -> bool:
        gone.update(told(cli, "orders/0/0"))
        return of(gone, "orders/0/0") == [("published", "", 0)]

    wait_until(deleted, lambda: str(gone))
    # All of it from one answer: what retention takes meanwhile is not in all of several.
    assert any("are deleted, by retention.ms" in note for note in gone["notes"]), gone
    reader = next(each for each in gone["readers"] if each["message"] == "orders/0/0")
    assert (reader["state"], reader["kept"]) == ("settled", True)
    assert "has no events" in reader["note"]


def test_what_is_sampled_out_is_said(cli: Cli, shop: Any) -> None:
    def is_inside(key: int) -> bool:
        return is_kept(0, 0, threshold(0.3), b"%d" % key)

    inside, outside = (next(each for each in range(50) if is_inside(each) == kept) for kept in (True, False))

    async def many(app: App) -> None:
        for key in range(50):
            await app.send("orders", b"x", key=str(key), headers={"traceparent": b""})
        await app.flush()

    shop(0.3, many, waits=50)
    finished = ("finished", "shop.orders", 1)
    wait_until(lambda: finished in of(told(cli, f"orders/0/{inside}"), f"orders/0/{inside}"))
    found = told(cli, f"orders/0/{outside}")
    assert of(found, f"orders/0/{outside}") == [("published", "", 0)]
    reader = next(each for each in found["readers"] if each["name"] == "shop.orders")
    assert (reader["kept"], reader["state"]) == (False, "settled")
    assert "sampled out" in reader["note"]
    assert "0.3 of all messages" in cli("trace", f"orders/0/{outside}").text


def test_a_message_that_failed_is_never_sampled_out(cli: Cli, shop: Any) -> None:
    shop(1e-9, lambda app: app.publish("orders", b"twice"), lambda app: app.publish("paid", b"never"), waits=2)
    want = [
        ("published", "", 0),
        ("requeued", "shop.orders", 1),
        ("delivered", "shop.orders", 2),
        ("finished", "shop.orders", 2),
    ]
    wait_until(
        lambda: of(told(cli, "orders/0/0"), "orders/0/0") == want,
        lambda: str(steps(told(cli, "orders/0/0"))),
    )
    rejected = next(each["id"] for each in told(cli, "paid/0/0")["messages"] if each["id"].startswith("paid/"))
    wait_until(
        lambda: "dead" in [what for what, *_ in of(told(cli, rejected), rejected)], lambda: str(told(cli, rejected))
    )


def test_what_keeps_no_events_and_what_waits(cli: Cli, headrace_broker: Broker) -> None:
    cli("produce", "orders", stdin=b"0\n")
    cli("queue", "create", "orders", "mail", "--from", "earliest")
    cli("queue", "create", "orders", "audit", "--from", "earliest", "--deliveries", 1)
    cli("consume", "orders", "--group", "search")
    found = told(cli, "orders/0/0")
    said = {each["name"]: (each["kind"], each["state"], each["note"]) for each in found["readers"]}
    assert said == {
        "mail": ("queue", "not settled, or out of turn", "the queue keeps no events (deliveries is 0)"),
        "audit": ("queue", "not delivered yet", ""),
        "search": ("group", "past it", "at 1"),
    }
    assert any("has no traceparent" in note for note in found["notes"])
    assert any("does not exist" in note for note in found["notes"])


def test_an_emptied_queue(cli: Cli, headrace_broker: Broker) -> None:
    cli("topic", "create", "orders")
    cli("queue", "create", "orders", "mail")
    cli("queue", "set", "orders", "mail", "--deliveries", "1")
    for number in range(3):
        cli("produce", "orders", stdin=b"%d\n" % number)
    with NsqConsumer(headrace_broker.nsq, "orders", "mail", credit=3) as consumer:
        got = {body: delivery for delivery, body in (consumer.next() for _ in range(3))}
        consumer.say(f"FIN {got[b'1']}")
        wait_until(lambda: ("finished", "mail", 1) in of(told(cli, "orders/0/1"), "orders/0/1"))
        assert cli("queue", "empty", "orders", "mail", "--yes").code == 0
    for offset, end in ((0, "emptied"), (1, "finished"), (2, "emptied")):
        message = f"orders/0/{offset}"

        def last(message: str = message) -> str:
            return str(of(told(cli, message), message)[-1][0])

        # What was in flight is not given back: it is settled.
        wait_until(lambda last=last, end=end: last() == end, last)  # type: ignore[misc]
        assert told(cli, message)["readers"][0]["state"] == end


def test_what_is_gone_is_said(cli: Cli, shop: Any, headrace_broker: Broker) -> None:
    shop(1, lambda app: app.publish("orders", b"once"))
    wait_until(lambda: ("orders/0/0", "finished", "shop.orders") in steps(told(cli, "orders/0/0")))

    async def forget() -> None:
        async with Client(headrace_broker.kafka) as client:
            await client.admin.delete_records({("orders", 0): 1})

    asyncio.run(forget())
    found = told(cli, "orders/0/0")
    assert found["messages"] == []
    assert [each[1] for each in steps(found)] == ["delivered", "finished"]
    assert any("is deleted" in note and "begins at 1" in note for note in found["notes"])
    late = cli("trace", "orders/0/9")
    assert late.code == 1
    assert "is not written yet" in late.text


def test_retries_through_a_topic(cli: Cli, headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    # It waits in one partition, and then in another.
    monkeypatch.setattr(retry_topic, "SLACK_SECONDS", 0.0)
    # Without a trace: the copies are found by what is written on them.
    shop = App("shop.orders", f"kafka://{headrace_broker.kafka}", register=False, traces=0)
    tried: list[int] = []

    @shop.subscribe("orders", attempts=2, ladder=(1.3,))
    async def order(raw: bytes, message: Message) -> None:
        tried.append(message.attempt)
        raise RuntimeError("never works")

    async def main() -> None:
        async with asyncio.timeout(SECONDS), shop:
            await shop.publish("orders", b"x")
            while len(tried) < 2:
                await asyncio.sleep(0.01)

    asyncio.run(main())
    found = told(cli, "orders/0/0")
    assert of(found, "orders/0/0") == [
        ("published", "", 0),
        ("to be tried again", "shop.orders", 2),
        ("put aside", "shop.orders", 2),
    ]
    assert found["steps"][1]["at"] == "orders.shop.orders.retry/1/0"
    assert found["steps"][2]["error"] == "RuntimeError: never works"


def test_what_is_delayed_may_belong_to_it(cli: Cli, shop: Any) -> None:
    async def both(app: App) -> None:
        await app.publish("later", b"x", headers={"traceparent": PARENT}, delay=3_600)
        await app.publish("orders", b"x", headers={"traceparent": PARENT})

    shop(0, both)
    found = told(cli, TRACE)
    assert {each["topic"] for each in found["messages"]} == {"orders", "paid"}
    assert any(note.startswith("1 delayed messages") for note in found["notes"])


def test_where_and_how_many(cli: Cli, shop: Any) -> None:
    async def several(app: App) -> None:
        for _ in range(3):
            await app.publish("orders", b"x", headers={"traceparent": PARENT})

    shop(0, several, waits=3)
    assert len(told(cli, TRACE)["messages"]) == 6
    only = told(cli, TRACE, "--topic", "paid")
    assert {each["topic"] for each in only["messages"]} == {"paid"}
    assert only["looked"]["topics"] == ["paid"]
    few = told(cli, TRACE, "--limit", 2)
    assert len(few["messages"]) == 2
    assert any("--limit" in note for note in few["notes"])
    none = cli("trace", TRACE, "--until", "-1h")
    assert none.code == 1
    assert "nothing is known" in none.err


def test_without_the_http_door_the_rest_is_told(cli: Cli, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shop(1, lambda app: app.publish("orders", b"x"))
    monkeypatch.setenv("HEADRACE_HTTP", "127.0.0.1:1")
    wait_until(lambda: ("orders/0/0", "finished", "shop.orders") in steps(told(cli, "orders/0/0")))
    found = told(cli, "orders/0/0")
    assert any("queues of orders are not known" in note for note in found["notes"])
    assert {each["name"] for each in found["readers"]} >= {"shop.orders"}


def test_what_is_neither(cli: Cli) -> None:
    assert "neither a message" in cli("trace", "orders").err
    assert "there is no topic nowhere" in cli("trace", "nowhere/0/0").err
    cli("produce", "orders", stdin=b"0\n")
    assert "has no partition 7" in cli("trace", "orders/7/0").err
    assert "not a time" in cli("trace", TRACE, "--since", "earliest").err


def test_what_retention_takes_meanwhile_is_not_waited_for(
    cli: Cli, headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "QUIET_SECONDS", 0.2)
    cli("produce", "orders", stdin=b"0\n1\n2\n")

    async def look() -> list[TracedRecord]:
        async with asyncio.timeout(SECONDS), Client(headrace_broker.kafka) as client:
            await client.admin.delete_records({("orders", 0): 3})
            span = Span({("orders", 0): 0}, {("orders", 0): 3})
            return [each async for each in search.scan(client, span, b"", lambda count: None)]

    assert asyncio.run(look()) == []
