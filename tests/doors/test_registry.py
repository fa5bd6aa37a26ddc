"""The registry of doors, and a server that walks it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests import brokers

from headrace.config import SETTINGS, Config
from headrace.doors.door import Door, DoorContext
from headrace.doors.registry import DOORS, DoorEntry
from headrace.errors import DoorClosed
from headrace.server import Server

ADDRESSES = ("http", "kafka", "nsq", "nsq_http", "nsq_https", "lookup", "lookup_http")
CLOSED = dict.fromkeys(ADDRESSES, "off")


@pytest.mark.parametrize("entry", DOORS, ids=lambda entry: entry.name)
async def test_a_registered_door_has_the_shape_of_one(entry: DoorEntry, tmp_path: Path):
    assert set(entry.settings) <= set(SETTINGS)
    async with brokers.running(tmp_path, **CLOSED) as broker:
        door = entry.load()(DoorContext(broker, broker.config))
        assert isinstance(door, Door)
        assert door.name == entry.name
        await door.start()
        assert not door.addresses
        await door.stop()


def test_every_address_of_the_configuration_belongs_to_one_door():
    assert sorted(setting for entry in DOORS for setting in entry.settings) == sorted(ADDRESSES)


def test_a_door_is_not_imported_before_it_opens():
    script = (
        "import sys, headrace.server\n"
        "print([name for name in sys.modules if name.startswith(('headrace.doors.kafka', 'headrace.doors.nsq', "
        "'headrace.doors.http'))])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


class Knocker:
    """A door that writes down what happens to it."""

    name = "knocker"
    events: ClassVar[list[str]] = []
    fails = False

    def __init__(self, context: DoorContext) -> None:
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
    doors = (*DOORS, DoorEntry("knocker", f"{__name__}:Knocker", ("data",)))
    return Server(Config(data=str(tmp_path), **settings), doors=doors)


async def test_a_server_opens_a_door_from_elsewhere(server: Server):
    await server.start()
    assert server.ready
    assert list(server.addresses) == ["http", "knocker"]
    await server.stop()
    assert Knocker.events == ["start behind http, ready False", "stop"]
    assert not server.addresses


async def test_a_door_that_does_not_open_is_stopped_with_the_others(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Knocker, "fails", True)
    with pytest.raises(DoorClosed):
        await server.start()
    assert Knocker.events[-1] == "stop"
    assert not server.addresses
