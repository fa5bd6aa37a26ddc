"""Applications over HTTP: what the framework's own registry has written, live settings that it then reads, history and
undo."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.doors.http.api.conftest import Served

from headrace.client import Client
from headrace.config import Config
from headrace.sdk import registry as sdk
from headrace.sdk.scenario import Tuning
from headrace.server import Server

LIVE = "/v1/apps/shop/live"


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[tuple[Served, sdk.Registry]]:
    """A broker with an application in its registry, one instance of which runs and one does not."""
    config = Config(
        data=str(tmp_path), kafka="127.0.0.1:0", http="127.0.0.1:0", nsq="off", nsq_http="off", lookup="off",
        lookup_http="off", rocketmq="off", rocketmq_namesrv="off", rocketmq_grpc="off", durability="async",
    )  # fmt: skip
    served = Served(Server(config))
    await served.server.start()
    async with Client(served.server.addresses["kafka"]) as client:
        registry = sdk.Registry(client)
        await registry.open()
        reads = sdk.SubscriptionEntry("orders", "shop", "task", "kafka", "app:pay", Tuning())
        app = sdk.Registration("shop", "team", "takes orders", ("a@example.org",), (reads,), version="1")
        await registry.write(
            {
                (sdk.APP, "shop"): app,
                (sdk.SENDS, "shop", "paid"): sdk.SendEntry(1),
                (sdk.INSTANCE, "shop", "i1"): sdk.Instance("shop", "i1", "h", 7, 1, applied=1 << 40),
            }
        )
        yield served, registry
        await registry.close()
    await served.server.stop()


async def set_live(served: Served, **body: Any) -> list[dict[str, Any]]:
    status, answer = await served.ask("PATCH", LIVE, body)
    assert status == 200, answer
    return list(answer["changed"])


async def live(registry: sdk.Registry) -> dict[tuple[str, str], Any]:
    """The live settings as an instance reads them."""
    await registry.open()
    return {place: each.value for place, each in registry.directory.settings.get("shop", {}).items()}


async def test_what_there_is(shop: tuple[Served, sdk.Registry]):
    served, _ = shop
    _, answer = await served.ask("GET", "/v1/apps?search=SH")
    (found,) = answer["apps"]
    assert (found["app"], found["owner"], found["reads"], found["sends"]) == ("shop", "team", ["orders"], ["paid"])
    assert (found["instances"], found["lost"]) == (1, 0)
    _, one = await served.ask("GET", "/v1/apps/shop")
    assert one["instance_list"][0]["follows"] is True
    assert one["live"] == []
    assert (await served.ask("GET", "/v1/apps/none"))[1]["error"] == "UnknownApp"


async def test_without_a_registry(served: Served):
    assert (await served.ask("GET", "/v1/apps"))[1]["total"] == 0


async def test_a_change_reaches_instances_and_is_undone(shop: tuple[Served, sdk.Registry]):
    served, registry = shop
    assert await set_live(served, settings={"workers": 8}, dry_run=True)
    assert await live(registry) == {}
    await set_live(served, settings={"workers": 8, "pause": True})
    await set_live(served, settings={"workers": 16})
    await set_live(served, subscription="orders/shop", settings={"rate": 0.5, "ladder": [1, 5]})
    assert await set_live(served, settings={"workers": 16}) == [], "what is so already is no change"
    assert await live(registry) == {
        ("", "workers"): 16, ("", "pause"): True, ("orders/shop", "rate"): 0.5, ("orders/shop", "ladder"): [1, 5]
    }  # fmt: skip
    _, answer = await served.ask("GET", "/v1/apps/shop/history")
    changes = [each for each in answer["changes"] if each["setting"] == "workers"]
    assert [(each["before"], each["after"]) for each in changes] == [(8, 16), (None, 8)]
    newest, oldest = changes
    path = "/v1/apps/shop/undo"
    assert (await served.ask("POST", path, {"offset": oldest["offset"]}))[1]["error"] == "ChangedSince"
    status, undone = await served.ask("POST", path, {"offset": newest["offset"]})
    assert (status, undone["changed"]) == (
        200, [{"subscription": "", "setting": "workers", "before": 16, "after": 8}]
    )  # fmt: skip
    assert (await live(registry))["", "workers"] == 8
    await set_live(served, settings={"workers": None})
    assert ("", "workers") not in await live(registry)
    assert (await served.ask("POST", path, {"offset": 1 << 40}))[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"settings": {"x": 1}},
        {"settings": {"workers": 0}},
        {"settings": {"workers": True}},
        {"settings": {"rate": -1}},
        {"settings": {"pause": "yes"}},
        {"settings": {"ladder": 5}},
        {"settings": {"log_level": 1}},
        {"settings": {"workers": 1}, "subscription": "none/none"},
    ],
)
async def test_what_is_no_change(shop: tuple[Served, sdk.Registry], body: dict[str, Any]):
    served, _ = shop
    status, answer = await served.ask("PATCH", LIVE, body)
    assert (status, answer["error"]) == (400, "BadRequest")
