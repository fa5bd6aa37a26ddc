"""The framework over TLS, with client certificates required, by both wires."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.waiting import SECONDS

import headrace
from headrace.sdk import App, PublishFailed, Unsuited
from headrace.sdk.system import parse


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[headrace.Broker]:
    cert, key = authority.issue("127.0.0.1")
    settings = {"tls_cert": cert, "tls_key": key, "tls_client_ca": authority.path}
    with headrace.Broker(tmp_path_factory.mktemp("data"), http="127.0.0.1:0", **settings) as running:
        yield running


@pytest.mark.parametrize("scenario", ["task", "stream", "exactly-once"])
async def test_messages_go_both_ways(broker: headrace.Broker, authority: Authority, scenario: str) -> None:
    cert, key = authority.issue("client")
    app = App(f"shop.{scenario}", f"{broker.url}&tls_ca={authority.path}&tls_cert={cert}&tls_key={key}")
    came: list[bytes] = []

    @app.subscribe(f"orders-{scenario}", scenario=scenario)
    async def handle(raw: bytes) -> None:
        came.append(raw)

    async with app:
        await app.publish(f"orders-{scenario}", b"secret")
        async with asyncio.timeout(SECONDS):
            while not came:
                await asyncio.sleep(0.01)
    assert came == [b"secret"]


async def test_without_a_certificate_nothing_is_let_in(broker: headrace.Broker, authority: Authority) -> None:
    async with App("shop", f"{broker.url}&tls_ca={authority.path}") as app:
        with pytest.raises(PublishFailed):
            await app.publish("t", b"x")
        with pytest.raises(PublishFailed):
            await app.publish("t", b"x", delay=1)


async def test_files_that_are_not_there(broker: headrace.Broker, tmp_path: Path) -> None:
    app = App("shop", f"{broker.url}&tls_ca={tmp_path}/none.pem")
    with pytest.raises(Unsuited, match=r"none\.pem cannot be used for TLS"):
        await app.start()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://h?tls_cert=c", "go together"),
        ("kafka://h?tls=2", "1 or 0"),
        ("nsq://h?tls=0&tls_ca=f", "turns it off"),
        ("memory://?tls=1", "no option tls"),
    ],
)
def test_urls_that_contradict_themselves(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(url)
