"""Every kind of load does its work on a real broker. How fast is not asked here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.peers import Peer
from bench.peers.headrace import Headrace
from bench.report import Table
from bench.rows import MIB, ROWS, Row, Scale

SMALL = Scale(bulk_bytes=4 * MIB, seconds=0.2, warm_up=0, rounds=1)
ONE_OF_EACH = (
    "bulk",
    "bulk6",
    "fetch",
    "one",
    "pipelined",
    "latency",
    "partitions1",
    "sync16",
    "transactions1",
    "transform",
)


@pytest.fixture(scope="module")
def headrace() -> Iterator[Peer]:
    server = Headrace()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in ONE_OF_EACH], ids=lambda row: row.name)
def test_a_row_gives_figures(headrace: Peer, row: Row) -> None:
    try:
        figures = row.run(headrace, SMALL)
    finally:
        row.finish(headrace)
    assert all(figure.value > 0 for figure in figures)
    table = Table([headrace])
    table.add(row, headrace, figures)
    assert row.title in table.markdown()
