"""NSQ's clients under quotas: slowed down, measured from below, and nothing is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from tests.clients.nsq.clients import PATIENCE, Client
from tests.clients.nsq.conftest import Doors


@pytest.fixture
def limited(doors: Doors) -> Iterator[None]:
    """All clients share 20 kB a second of each kind."""
    quotas = {"producer_byte_rate": 20_000, "consumer_byte_rate": 20_000}
    put(doors, quotas)
    yield
    put(doors, dict.fromkeys(quotas))


def put(doors: Doors, quotas: object) -> None:
    body = json.dumps({"entity": {"user": "ANONYMOUS"}, "quotas": quotas}).encode()
    asked = Request(f"http://{doors.management}/v1/quotas", body, {"Content-Type": "application/json"}, method="PUT")
    urlopen(asked, timeout=PATIENCE).close()


@pytest.mark.usefixtures("limited")
def test_publishers_and_consumers_are_slowed_down(doors: Doors, client: Client, topic: str) -> None:
    bodies = [f"{number:04}" + "x" * 4_000 for number in range(15)]
    began = time.monotonic()
    client.publish(doors.nsq, topic, bodies)
    # 60 kB, of which 20 are free and the last is not waited for.
    assert time.monotonic() - began >= 1.5
    began = time.monotonic()
    found = client.read(topic, "c", len(bodies), nsqd=doors.nsq, in_flight=1)
    assert time.monotonic() - began >= 1.5
    assert [each.body for each in found] == bodies
    doors.wait_until_settled(topic, "c")
