"""Every client of the framework's bench does every kind of work. How fast is not asked here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.framework.__main__ import ROWS, Bench, Contender, contenders
from bench.peers.headrace import Headrace
from bench.report import Table
from rich.console import Console

MESSAGES = 500
CLIENTS = contenders(Console(quiet=True))


@pytest.fixture(scope="module")
def broker() -> Iterator[Headrace]:
    server = Headrace()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize(
    "contender",
    [
        pytest.param(each, id=each.client, marks=[pytest.mark.long] if each.client.startswith("faststream") else [])
        for each in CLIENTS
    ],
)
def test_every_row(broker: Headrace, contender: Contender) -> None:
    table = Table([contender])
    for row in ROWS:
        table.add(row, contender, Bench(broker, MESSAGES / row.messages).run(row, contender))
    assert len(table.lines()) == 2 * len(ROWS)
