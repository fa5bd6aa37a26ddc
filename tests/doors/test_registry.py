"""The registry of doors, and a server that walks it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests import brokers

from headrace.config import Config, resolve
from headrace.doors.door import Door, DoorContext
from headrace.doors.registry import DOORS, DoorEntry
from headrace.errors import ConfigError, DoorClosed
from headrace.server import Server
from headrace.settings import Settings, setting

ADDRESSES = (
    *("http", "kafka", "nsq", "nsq_http", "nsq_https", "lookup", "lookup_http"),
    *("rocketmq", "rocketmq_namesrv", "rocketmq_grpc"),
)
CLOSED = dict.fromkeys(ADDRESSES, "off")


@pytest.mark.parametrize("entry", DOORS, ids=lambda entry: entry.name)
async def test_a_registered_door_has_the_shape_of_one(entry: DoorEntry, tmp_path: Path):
    async with brokers.running(tmp_path, **CLOSED) as broker:
        settings = broker.config.part(entry.settings)
        door = entry.load()(DoorContext(broker, settings))
        assert isinstance(door, Door)
        assert door.name == entry.name
        assert door.settings is settings
        await door.start()
        assert not door.addresses
        await door.stop()


def test_every_address_of_the_configuration_belongs_to_one_door():
    addresses = [each.name for entry in DOORS for each in fields(entry.settings) if each.metadata["address"]]
    assert sorted(addresses) == sorted(ADDRESSES)
    every = Config(**CLOSED)
    for address in ADDRESSES:
        opened = [entry.name for entry in DOORS if entry.is_configured(replace(every, **{address: "127.0.0.1:0"}))]
        assert len(opened) == 1, address


def test_a_door_is_not_imported_before_it_opens():
    script = (
        "import sys, headrace.server\n"
        "print([name for name in sys.modules if name.startswith(('headrace.doors.kafka.', 'headrace.doors.nsq.', "
        "'headrace.doors.http.', 'headrace.doors.rocketmq.')) and not name.endswith('.settings')])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


class KnockerSettings(Settings):
    """What a door from elsewhere brings."""

    knocker: str = setting("127.0.0.1:1", "HOST:PORT of the door.", address=True)
    knocks: int = setting(3, "How often it knocks.", least=1)


class KnockerConfig(KnockerSettings, Config):
    """The settings of a broker with such a door."""


class Knocker:
    """A door that writes down what happens to it."""

    name = "knocker"
    events: ClassVar[list[str]] = []
    fails = False

    def __init__(self, context: DoorContext[KnockerSettings]) -> None:
        self.settings = context.settings
        self.addresses: dict[str, str] = {}
        self._context = context

    async def start(self) -> None:
        self.events.append(f"start behind {','.join(self._context.addresses)}, ready {self._context.is_ready()}")
        if self.fails:
            raise DoorClosed("no")
        self.addresses["knocker"] = "127.0.0.1:1"

    async def stop(self) -> None:
        self.events.append("stop")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(Knocker, "events", [])
    settings: dict[str, Any] = {**CLOSED, "http": "127.0.0.1:0"}
    doors = (*DOORS, DoorEntry("knocker", f"{__name__}:Knocker", KnockerSettings))
    return Server(KnockerConfig(data=str(tmp_path), **settings), doors=doors)


async def test_a_server_opens_a_door_from_elsewhere(server: Server):
    await server.start()
    assert server.ready
    assert list(server.addresses) == ["http", "knocker"]
    await server.stop()
    assert Knocker.events == ["start behind http, ready False", "stop"]
    assert not server.addresses


async def test_a_door_from_elsewhere_is_given_its_own_settings_alone(server: Server, monkeypatch: pytest.MonkeyPatch):
    given: list[KnockerSettings] = []
    monkeypatch.setattr(Knocker, "start", lambda door: asyncio.sleep(0, given.append(door.settings)))
    await server.start()
    await server.stop()
    assert given == [KnockerSettings()]
    assert type(given[0]) is KnockerSettings


def test_settings_from_elsewhere_come_from_every_source():
    config = resolve({"knocker": "off"}, {"HEADRACE_KNOCKS": "5"}, {"node_id": 3}, settings=KnockerConfig)
    assert config.part(KnockerSettings) == KnockerSettings(knocker="off", knocks=5)
    assert config.node_id == 3
    with pytest.raises(ConfigError, match=r"--knocks: 0 is out of range\. It must be at least 1\."):
        resolve({"knocks": "0"}, {}, {}, settings=KnockerConfig)


async def test_a_door_that_does_not_open_is_stopped_with_the_others(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Knocker, "fails", True)
    with pytest.raises(DoorClosed):
        await server.start()
    assert Knocker.events[-1] == "stop"
    assert not server.addresses


def test_a_node_that_begins_to_lead_imports_no_door() -> None:
    program = (
        "import asyncio, sys, tempfile\n"
        "from headrace.config import Config\n"
        "from headrace.doors.capacity import Capacity\n"
        "from headrace.doors.registry import DOORS\n"
        "from headrace.open_doors import OpenDoors\n"
        "from headrace.server import Server\n"
        "names = ['kafka', 'http', 'nsq', 'nsq_http', 'lookup', 'lookup_http', 'rocketmq', 'rocketmq_namesrv']\n"
        "config = Config(data=tempfile.mkdtemp(), rocketmq_grpc='off', **dict.fromkeys(names, '127.0.0.1:0'))\n"
        "OpenDoors(config, DOORS, Capacity(), (None, None), lambda: True, {}).load()\n"
        "before = set(sys.modules)\n"
        "async def run():\n"
        "    server = Server(config)\n"
        "    await server.start()\n"
        "    await server.stop()\n"
        "asyncio.run(run())\n"
        "print(sorted(name for name in set(sys.modules) - before if name.startswith('headrace.doors')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
