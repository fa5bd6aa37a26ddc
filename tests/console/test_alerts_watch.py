"""Alerts from a real broker to a real webhook: fired, told once by two consoles, over, and remembered."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.serve_process import ServeProcess
from tests.waiting import until

from headrace.console.alerts.channels import Deliveries, Mail
from headrace.console.alerts.store import AlertStore
from headrace.console.alerts.watch import AlertWatch
from headrace.console.client.api import Api
from headrace.console.client.transport import ApiError, BrokerAway, Transport
from headrace.console.figures.history import History
from headrace.console.figures.sampler import Sampler

SECRET = "a secret of some length"


class Hook:
    """A webhook, and what it was told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.status = 200

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.status == 200:
            wanted = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
            assert request.headers["Headrace-Signature"] == wanted
            self.told.append(json.loads(body))
        return web.Response(status=self.status)

    def states(self, rule: str) -> list[str]:
        return [each["state"] for each in self.told if each["rule"] == rule]


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Hook, str]]:
    hook = Hook()
    app = web.Application()
    app.router.add_post("/hook", hook.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield hook, f"http://{host}:{port}/hook"
    await runner.cleanup()


class Watcher:
    """What a console does with one broker, by a clock that the test moves."""

    def __init__(self, folder: Path, address: str, holder: str) -> None:
        self.now = 1_795_000_000.0
        self.history = History(folder / "history.db")
        self.store = AlertStore(folder / "alerts.db")
        self.deliveries = Deliveries(Mail())
        self.transport = Transport([f"http://{address}"])
        self.watch = AlertWatch(self.store, self.history, self.deliveries, holder, self.clock)
        self.sampler = Sampler("b", Api(self.transport), self.history, self.watch.on_sample, self.clock)

    def clock(self) -> float:
        return self.now

    async def __aenter__(self) -> Watcher:
        await self.history.open()
        await self.store.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.watch.close()
        await self.transport.close()
        await self.deliveries.close()
        await self.store.close()
        await self.history.close()

    async def look(self, seconds: float = 11.0) -> None:
        self.now += seconds
        await self.sampler.sample()
        # A delivery goes on by itself.
        await asyncio.sleep(0.02)


def rule(threshold: float) -> dict[str, Any]:
    return {
        "name": "Mail waits",
        "figure": "queue_depth",
        "compare": ">",
        "threshold": threshold,
        "for_ms": 0,
        "severity": "critical",
        "scope": {"queue": "ma*"},
    }


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    with ServeProcess(tmp_path / "data", "--http", "127.0.0.1:0", "--figures-interval-ms", "1") as it:
        yield it


async def prepared(api: Api, url: str) -> None:
    await api.create_topic("orders", 1, {})
    await api.create_queue("orders", "mail")
    await api.put_channel("hook", {"kind": "webhook", "url": url, "secret": SECRET})
    await api.put_rule("mail-waits", rule(2))


async def test_two_consoles_tell_once_and_tell_when_it_is_over(broker: ServeProcess, tmp_path: Path) -> None:
    address = broker.addresses["http"]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with (
        listening() as (hook, url),
        Watcher(tmp_path / "one", address, "one") as one,
        Watcher(tmp_path / "two", address, "two") as two,
    ):
        api = one.sampler.api
        await prepared(api, url)
        assert (await api.channels()).channels[0].secret_set
        for _ in range(5):
            await api.produce("orders", {"value": "x"})

        async def both(seconds: float = 11.0) -> bool:
            for each in (one, two):
                await each.look(seconds)
            return bool(one.watch.firing and two.watch.firing)

        await until(both, pause=0.05)
        assert {each.about for each in one.watch.firing if each.rule == "mail-waits"} == {"topic orders, queue mail"}
        for _ in range(4):
            await both()
        assert hook.states("mail-waits") == ["firing"]

        await api.act_on_queue("orders", "mail", "empty")

        async def over() -> bool:
            await both()
            return hook.states("mail-waits") == ["firing", "resolved"]

        await until(over, pause=0.05)
        for _ in range(3):
            await both()
        assert hook.states("mail-waits") == ["firing", "resolved"]
        kinds = [each.kind for each in reversed(await one.watch.history("b", 50)) if each.rule == "mail-waits"]
        assert kinds == ["fired", "notified", "resolved", "notified"]
        assert "notified" not in [each.kind for each in await two.watch.history("b", 50) if each.rule == "mail-waits"]


@pytest.mark.parametrize("has_told", [True, False])
async def test_one_that_is_killed_is_taken_over_from_and_nothing_is_told_twice(
    broker: ServeProcess, tmp_path: Path, has_told: bool
) -> None:
    """Killed after it has told, or between that it fires and that it tells: then the other one does."""
    address = broker.addresses["http"]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with (
        listening() as (hook, url),
        Watcher(tmp_path / "one", address, "one") as one,
        Watcher(tmp_path / "two", address, "two") as two,
    ):
        api = one.sampler.api
        await prepared(api, url)
        # It takes the lease before there is anything to tell.
        await one.look()
        await two.look()
        assert (one.watch._leads, two.watch._leads) == (True, False)
        for _ in range(5):
            await api.produce("orders", {"value": "x"})

        async def fires() -> bool:
            await one.look(1.0)
            await two.look(1.0)
            return all(any(a.rule == "mail-waits" for a in each.watch.firing) for each in (one, two))

        await until(fires, pause=0.05)
        assert hook.states("mail-waits") == []
        if has_told:
            for _ in range(12):
                await one.look()
                await two.look()
            assert hook.states("mail-waits") == ["firing"]
        # The lease of one that is gone runs out.
        await api.ask("POST", "/v1/alerts/lease", body={"holder": "one", "ttl_ms": 0})

        async def takes_over() -> bool:
            await two.look()
            return two.watch._leads

        await until(takes_over, pause=0.05)
        for _ in range(5):
            await two.look()
        assert hook.states("mail-waits") == ["firing"]
        await api.act_on_queue("orders", "mail", "empty")

        async def over() -> bool:
            await two.look()
            return hook.states("mail-waits") == ["firing", "resolved"]

        await until(over, pause=0.05)


async def test_a_console_that_starts_again_tells_nothing_twice_and_retries_what_failed(
    broker: ServeProcess, tmp_path: Path
) -> None:
    address = broker.addresses["http"]
    async with listening() as (hook, url):
        hook.status = 500
        async with Watcher(tmp_path, address, "one") as first:
            await prepared(first.sampler.api, url)
            for _ in range(5):
                await first.sampler.api.produce("orders", {"value": "x"})

            async def fails() -> bool:
                await first.look()
                return any(each.kind == "failed" for each in await first.watch.history("b", 50))

            await until(fails, pause=0.05)
            hook.status = 200

            async def told() -> bool:
                await first.look(61)
                return hook.states("mail-waits") == ["firing"]

            await until(told, pause=0.05)
            (alert,) = [each for each in first.watch.firing if each.rule == "mail-waits"]
            await first.watch.acknowledge("b", alert.key, "ann")
            now = first.now
        async with Watcher(tmp_path, address, "one") as again:
            again.now = now
            for _ in range(3):
                await again.look()
            (alert,) = [each for each in again.watch.firing if each.rule == "mail-waits"]
            assert alert.acknowledged_by == "ann"
            assert hook.states("mail-waits") == ["firing"]


async def test_a_channel_that_hangs_delays_neither_figures_nor_others(broker: ServeProcess, tmp_path: Path) -> None:
    address = broker.addresses["http"]
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()[:2]
    async with listening() as (hook, url), Watcher(tmp_path, address, "one") as console:
        api = console.sampler.api
        await api.put_channel("a-silent-one", {"kind": "webhook", "url": f"http://{host}:{port}/", "secret": SECRET})
        await prepared(api, url)
        for number in range(4):
            await api.put_rule(f"more-{number}", rule(2))
        for _ in range(5):
            await api.produce("orders", {"value": "x"})

        async def told() -> bool:
            async with asyncio.timeout(5):
                await console.look()
            return all(hook.states(each) == ["firing"] for each in ("mail-waits", "more-0", "more-3"))

        await until(told, pause=0.05)
        assert list(console.watch._delivering) == ["a-silent-one"], "one delivery at a time"
        await console.watch.close()
    silent.close()


async def test_a_broker_that_is_away_is_an_alert_until_it_is_back(broker: ServeProcess, tmp_path: Path) -> None:
    address = broker.addresses["http"]
    async with listening() as (hook, url), Watcher(tmp_path, address, "one") as console:
        await prepared(console.sampler.api, url)
        await console.look()
        broker.stop()
        with pytest.raises(BrokerAway):
            await console.sampler.api.cluster()
        for _ in range(8):
            await console.look()
        assert console.sampler.away is not None
        (alert,) = console.watch.firing
        assert alert.figure == "broker_away_seconds"
        assert hook.states(alert.rule) == ["firing"]
        assert hook.told[-1]["severity"] == "critical"
        with ServeProcess(broker.data, "--http", address, "--figures-interval-ms", "1"):

            async def is_back() -> bool:
                await console.look()
                return hook.states(alert.rule) == ["firing", "resolved"]

            await until(is_back, pause=0.05)
            assert console.sampler.away is None
            assert not console.watch.firing


async def test_what_the_broker_refuses_is_said_in_its_words(broker: ServeProcess) -> None:
    transport = Transport([f"http://{broker.addresses['http']}"])
    api = Api(transport)
    with pytest.raises(ApiError, match="nowhere") as refused:
        await api.topic("nowhere")
    assert refused.value.status == 404
    assert not refused.value.is_missing_route
    with pytest.raises(ApiError) as missing:
        await api.ask("GET", "/v1/no-such-route")
    assert missing.value.is_missing_route
    await transport.close()
    await asyncio.sleep(0)
