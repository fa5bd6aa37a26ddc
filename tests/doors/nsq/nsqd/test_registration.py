from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.doors.nsq.lookupd.conftest import Lookup
from tests.unguarded import Unguarded
from tests.waiting import SECONDS, until

from headrace.config import Config
from headrace.doors.nsq.nsqd import registration
from headrace.doors.nsq.nsqd.registration import LENGTH, Registrations
from headrace.doors.nsq.presence import Presence


class Here:
    """A stand-in broker that registers."""

    def __init__(self, *addresses: str, **settings: Any) -> None:
        self.topics: dict[str, list[str]] = {}
        self.told: list[Callable[[Any], None]] = []
        broker: Any = SimpleNamespace(
            security=Unguarded(),
            topics=SimpleNamespace(all=self.topics, changed=self.told),
            queues=SimpleNamespace(of=self.topics.__getitem__),
        )
        self.presence = Presence("me", 0, "me.example", 14150, 14151)
        config = Config(lookupd_tcp=",".join(addresses), **settings)
        self.registrations = Registrations(broker, config, self.presence)

    def change(self, **topics: list[str]) -> None:
        self.topics.clear()
        self.topics.update(topics)
        for told in self.told:
            told(None)


@pytest.fixture
async def lookup() -> AsyncIterator[Lookup]:
    lookup = Lookup()
    lookup.presence.tcp_port = 0
    await lookup.start()
    yield lookup
    await lookup.stop()


@pytest.fixture
async def here(lookup: Lookup) -> AsyncIterator[Here]:
    here = Here(address(lookup))
    here.topics.update({"orders": ["mail", "bill"], "empty": [], "x.ephemeral": ["c#ephemeral"], "y" * 65: []})
    await here.registrations.start()
    yield here
    await here.registrations.stop()


def address(lookup: Lookup) -> str:
    host, port = lookup.door.address
    return f"{host}:{port}"


async def test_everything_is_registered_then_what_changes(lookup: Lookup, here: Here):
    known = lookup.door.registry
    await until(lambda: known.topics() == ["empty", "orders", "x#ephemeral"])
    await until(lambda: known.channels("x#ephemeral") == ["c#ephemeral"])
    assert known.channels("orders") == ["bill", "mail"]
    (node,) = known.producers("orders")
    assert (node.hostname, node.broadcast_address, node.tcp_port, node.http_port) == ("me", "me.example", 14150, 14151)
    here.change(orders=["mail", "new"], more=[])
    await until(lambda: known.producers("more") and "new" in known.channels("orders"))
    assert known.producers("empty") == []
    assert known.topics() == ["empty", "more", "orders"]
    (producer,) = known._producers
    assert {each for each in producer.registered if each[1]} == {("orders", "mail"), ("orders", "new")}
    await here.registrations.stop()
    await until(lambda: not known.producers("orders"))
    assert here.told == []


async def test_many_topics(lookup: Lookup, here: Here):
    here.change(**{f"t{number}": ["a", "b"] for number in range(2_000)})
    await until(
        lambda: sum(1 for each in lookup.door.registry._producers for _, channel in each.registered if channel) == 4_000
    )


async def test_the_connection_is_kept_alive(lookup: Lookup, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registration, "PING_SECONDS", 0.02)
    here = Here(address(lookup))
    await here.registrations.start()
    await until(lambda: lookup.door.registry._producers)
    (producer,) = lookup.door.registry._producers
    lookup.now_ms += 1_000
    await until(lambda: producer.updated_ms == lookup.now_ms)
    await here.registrations.stop()


async def test_a_service_that_comes_back_is_told_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registration, "FIRST_PAUSE_SECONDS", 0.02)
    first = Lookup()
    await first.start()
    host, port = first.door.address
    here = Here(address(first))
    here.topics["orders"] = []
    await here.registrations.start()
    await until(lambda: first.door.registry.producers("orders"))
    await first.stop()
    second = Lookup()
    await second.door.http.listen("127.0.0.1", 0)
    await second.door.listen(host, port)
    await until(lambda: second.door.registry.producers("orders"))
    await here.registrations.stop()
    await second.stop()


async def test_services_can_change(lookup: Lookup):
    other = Lookup()
    await other.start()
    here = Here(address(lookup))
    here.topics["orders"] = []
    await here.registrations.start()
    await until(lambda: lookup.door.registry.producers("orders"))
    assert here.registrations.addresses == [address(lookup)]
    await here.registrations.use([other.door.address])
    await until(lambda: other.door.registry.producers("orders") and not lookup.door.registry.producers("orders"))
    assert here.registrations.addresses == [address(other)]
    await here.registrations.stop()
    await other.stop()


async def test_the_channels_that_services_know(lookup: Lookup, here: Here):
    lookup.door.registry.create("new", "mail")
    lookup.door.registry.create("new", "gone#ephemeral")
    await until(lambda: lookup.door.registry.producers("orders"))
    assert await here.registrations.channels("new") == ["gone#ephemeral", "mail"]
    assert await here.registrations.channels("nothing") == []
    await lookup.door.http.stop()
    assert await here.registrations.channels("new") == []


async def test_a_service_that_does_not_answer_costs_little():
    held: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    silent = await asyncio.start_server(talk, "127.0.0.1", 0)
    here = Here(f"127.0.0.1:{silent.sockets[0].getsockname()[1]}", lookupd_timeout_ms=50)
    await here.registrations.start()
    assert await here.registrations.channels("t") == []
    await asyncio.wait_for(here.registrations.stop(), SECONDS)
    silent.close()
    for writer in held:
        writer.close()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        LENGTH.pack(2) + b"OK",
        LENGTH.pack(2) + b"[]",
        LENGTH.pack(-1),
        LENGTH.pack(1 << 30),
        LENGTH.pack(9) + b"E_INVALID",
        LENGTH.pack(15) + b'{"http_port":1}' + LENGTH.pack(11) + b"E_BAD_TOPIC",
        LENGTH.pack(17) + b'{"http_port":"x"}' + LENGTH.pack(0),
    ],
)
async def test_nonsense_is_survived_and_tried_again(said: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registration, "FIRST_PAUSE_SECONDS", 0.01)
    count = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        begin = await reader.readexactly(len(b"  V1IDENTIFY\n") + 4)
        body = json.loads(await reader.readexactly(LENGTH.unpack(begin[-4:])[0]))
        assert body["broadcast_address"] == "me.example"
        writer.write(said)
        writer.write_eof()
        await reader.read()
        writer.close()

    service = await asyncio.start_server(talk, "127.0.0.1", 0)
    here = Here(f"127.0.0.1:{service.sockets[0].getsockname()[1]}")
    here.topics["t"] = []
    await here.registrations.start()
    await until(lambda: count >= 3)
    await here.registrations.stop()
    service.close()
