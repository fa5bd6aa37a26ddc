"""`headrace app`: the registry through the command line, with applications that run in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.cli.conftest import Cli

from headrace.client import Client
from headrace.embedded import Broker
from headrace.sdk import App
from headrace.sdk.blocking import Blocking
from headrace.sdk.registry import INSTANCE, Instance, Registry

NAME = "shop.orders"


@pytest.fixture
def shop(headrace_broker: Broker) -> App:
    shop = App(NAME, f"kafka://{headrace_broker.kafka}", owner="team-a", description="pays", contacts=["a@example.org"])
    shop.topic("paid", description="what was paid")

    @shop.subscribe("orders", workers=2, description="each once")
    async def pay(raw: bytes) -> None: ...

    @shop.subscribe("refunds", scenario="stream")
    async def refund(raw: bytes) -> None: ...

    return shop


@pytest.fixture
def running(shop: App) -> Iterator[Blocking]:
    with shop.blocking() as running:
        yield running


def test_where_nothing_is_registered(cli: Cli) -> None:
    assert cli("app", "list", "--format", "json").json == []
    asked = cli("app", "show", NAME)
    assert (asked.code, "no application 'shop.orders' is registered. Registered: none." in asked.err) == (1, True)


def test_listed_and_shown(cli: Cli, running: Blocking) -> None:
    running.publish("mail", b"x")
    [row] = cli("app", "list", "--format", "json").json
    assert (row["app"], row["owner"], row["instances"], row["reads"]) == (NAME, "team-a", 1, ["orders", "refunds"])
    line = cli("app", "list").lines[1]
    assert "team-a" in line
    assert "orders, refunds" in line
    assert cli("app", "list", "--topic", "paid", "--json").json[0]["app"] == NAME
    assert cli("app", "list", "--topic", "other", "--json").json == []
    shown = cli("app", "show", NAME, "--format", "json").json
    assert (shown["description"], shown["contacts"]) == ("pays", ["a@example.org"])
    orders, refunds = shown["subscriptions"]
    assert (orders["subscription"], orders["scenario"], orders["description"]) == (
        f"orders/{NAME}",
        "task",
        "each once",
    )
    assert orders["settings"]["workers"] == {"code": 2}
    assert refunds["settings"]["batch"] == {"code": 500}
    assert shown["topics"][-1] == {
        "topic": "paid",
        "owner": "team-a",
        "description": "what was paid",
        "contacts": ["a@example.org"],
        "sent": False,
    }
    [instance] = shown["instances"]
    assert (instance["state"], instance["follows"], instance["refused"]) == ("running", True, {})
    text = cli("app", "show", NAME).text
    assert "owner: team-a" in text
    assert f"subscription orders/{NAME}: task by kafka" in text


def test_set_and_set_back(cli: Cli, shop: App, running: Blocking) -> None:
    told = cli("app", "set", NAME, "workers=16", "rate=500", "ladder=1,5,30", "--format", "json")
    assert told.code == 0, told.err
    assert [each["follows"] for each in told.json["instances"]] == [True]
    orders, refunds = shop.running
    assert (orders.tuning.workers, orders.tuning.rate, refunds.tuning.ladder) == (16, 500.0, (1.0, 5.0, 30.0))
    assert cli("app", "set", NAME, "--subscription", "orders", "workers=4", "pause=true").code == 0
    assert (orders.tuning.workers, orders.paused, refunds.tuning.workers, refunds.paused) == (4, True, 16, False)
    shown = cli("app", "show", NAME, "--json").json["subscriptions"][0]["settings"]
    assert (shown["workers"]["code"], shown["workers"]["live"], shown["rate"]["live"]) == (2, 4, 500.0)
    assert "@" in shown["workers"]["by"]
    line = next(line for line in cli("app", "show", NAME).lines if line.startswith("workers"))
    assert line.split()[:3] == ["workers", "2", "4"]
    said = cli("app", "set", NAME, "--subscription", f"orders/{NAME}", "workers=")
    assert (said.code, "1 of 1 instances follow" in said.text) == (0, True)
    assert orders.tuning.workers == 16
    assert cli("app", "set", NAME, "--subscription", "orders", "--reset").code == 0
    assert (orders.paused, orders.tuning.workers) == (False, 16)
    assert cli("app", "set", NAME, "--reset").code == 0
    assert [each.tuning for each in shop.running] == [each.tuning for each in shop.subscriptions]
    assert cli("app", "list", "--json").json[0]["settings"] == 0


REFUSED: list[tuple[list[str], list[str]]] = [
    (["speed=3"], ["there is no setting 'speed'", "workers: handlers that run at a time", "pause:", "ladder:"]),
    (["workers=many"], ["workers=many: it is handlers that run"]),
    (["workers=0"], ["workers must be 1 or more (got 0)"]),
    (["workers"], ["must be NAME=VALUE (got 'workers')"]),
    ([], ["no setting is given", "workers"]),
    (["--subscription", "nowhere", "workers=3"], [f"there are orders/{NAME}, refunds/{NAME}"]),
    (["--subscription", "orders", "log_level=debug"], ["a setting of the whole application"]),
]


def test_what_is_refused(cli: Cli, shop: App, running: Blocking) -> None:
    for arguments, said in REFUSED:
        asked = cli("app", "set", NAME, *arguments)
        assert asked.code == 1
        assert all(each in asked.err for each in said), asked.err
    assert cli("app", "list", "--json").json[0]["settings"] == 0


def test_nobody_runs(cli: Cli, headrace_broker: Broker) -> None:
    shop = App(NAME, f"kafka://{headrace_broker.kafka}", log_level="warning")
    with shop.blocking():
        assert "runs at" in cli("app", "forget", NAME, "--yes").err
    assert "no instance runs. Instances that start will apply it." in cli("app", "set", NAME, "log_level=error").text
    assert cli("app", "show", NAME, "--json").json["settings"]["log_level"]["live"] == "error"
    with shop.blocking():
        assert shop.logs.level == "error"
    assert cli("app", "set", NAME, "workers=8", "--no-wait", "--json").json["instances"] == []
    assert cli("app", "forget", NAME, "--yes").code == 0
    assert cli("app", "list", "--json").json == []
    with shop.blocking():
        assert shop.logs.level == "warning"
        assert cli("app", "show", NAME, "--json").json["settings"]["log_level"] == {"code": "warning"}


def test_an_instance_that_does_not_follow_is_named(cli: Cli, running: Blocking, headrace_broker: Broker) -> None:
    async def stuck() -> None:
        async with Client(headrace_broker.kafka) as client:
            registry = Registry(client)
            await registry.open()
            other = Instance(NAME, "stuck", "host", 1, 0, refused={"* workers": "no such setting"})
            await registry.write({(INSTANCE, NAME, "stuck"): other})
            await registry.close()

    asyncio.run(stuck())
    late = cli("app", "set", NAME, "workers=3", "--timeout", "0.5", "--json")
    assert late.code == 1
    assert "instances of shop.orders did not apply the settings within 0.5 s: stuck" in late.err
    assert [each["follows"] for each in late.json["instances"]] == [False, True]
    assert "no such setting" in cli("app", "show", NAME).text
