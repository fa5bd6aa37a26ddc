"""Every kind of load on queues does its work on a real broker. How fast is not asked here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.peers import Missing
from bench.peers.headrace import HeadraceQueues
from bench.peers.nsqd import Nsqd
from bench.peers.rabbitmq import RabbitMq
from bench.queues import wires
from bench.queues.control import QueueServer
from bench.queues.disk import fdatasync_ms
from bench.queues.rows import ROWS, Row, Scale
from bench.report import Table

SMALL = Scale(seconds=0.2, messages={"nsq": 20_000, "amqp": 1_000}, backlog=50_000, rounds=1)


@pytest.fixture(scope="module")
def headrace() -> Iterator[QueueServer]:
    server = HeadraceQueues()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_gives_figures(headrace: QueueServer, row: Row) -> None:
    try:
        figures = row.run(headrace, SMALL)
    finally:
        row.finish(headrace)
    assert all(figure.value > 0 for figure in figures)
    table = Table([headrace])
    table.add(row, headrace, figures)
    assert row.title in table.markdown()


def test_the_ids_of_a_buffer_become_its_acknowledgements() -> None:
    body = bytes(wires.BODY_BYTES)
    ids = [b"%016d" % number for number in range(30)]
    frames = b"".join(
        (130).to_bytes(4) + (2).to_bytes(4) + bytes(8) + (1 + number % 2).to_bytes(2) + each + body
        for number, each in enumerate(ids)
    )
    deliveries = wires.NsqDeliveries()
    answers = b""
    count = 0
    for begin in range(0, len(frames), 1000):
        more, said = deliveries.feed(frames[begin : begin + 1000])
        count += more
        answers += said
    assert count == 30
    assert answers == b"".join(b"FIN %s\n" % each for each in ids)
    assert deliveries.redelivered == 15


def test_another_frame_between_the_messages_is_seen() -> None:
    with pytest.raises(RuntimeError, match="another frame"):
        wires.NsqDeliveries().feed(bytes(wires.NsqDeliveries.frame_bytes))


def test_an_answer_that_is_no_ok_is_seen() -> None:
    confirms = wires.NsqConfirms(3)
    assert confirms.feed(wires.Nsq.OK + wires.Nsq.OK[:4]) == 3
    assert confirms.feed(wires.Nsq.OK[4:]) == 3
    with pytest.raises(RuntimeError, match="something else than OK"):
        confirms.feed(b"\x00\x00\x00\x10\x00\x00\x00\x01E_BAD_TOPIC")


def test_confirms_of_amqp_may_come_out_of_order_and_by_the_run() -> None:
    def ack(tag: int, multiple: bool) -> bytes:
        return wires.method(1, 60, 80, tag.to_bytes(8) + bytes([multiple]))

    confirms = wires.AmqpConfirms()
    said = ack(2, False) + ack(1, False) + ack(7, False) + ack(5, True) + ack(9, True)
    assert sum(confirms.feed(said[begin : begin + 10]) for begin in range(0, len(said), 10)) == 9


def test_the_disk_is_measured(headrace: QueueServer) -> None:
    taken = fdatasync_ms(headrace.folder, 1000, 0.05)
    assert len(taken) == 50
    assert min(taken) > 0


# Speaks nsqd's flags, so that what starts an nsqd is tried where there is none.
STAND_IN = """#!{python}
import os, sys
if sys.argv[1] == "--version":
    print("nsqd v9.8.7 (built w/go1.0)")
    sys.exit()
flags = dict(each.removeprefix("--").split("=", 1) for each in sys.argv[1:])
doors = ["--nsq", flags["tcp-address"], "--nsq-http", flags["http-address"], "--kafka", "127.0.0.1:0"]
closed = ("http", "nsq-https", "lookup", "lookup-http", "rocketmq", "rocketmq-namesrv", "rocketmq-grpc")
off = [word for door in closed for word in ("--" + door, "off")]
serve = [sys.executable, "-m", "headrace.cli", "serve", "--data", flags["data-path"] + "/data"]
os.execv(sys.executable, serve + doors + off)
"""


def test_an_nsqd_is_started_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nsqd"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("NSQD", str(program))
    server = Nsqd()
    assert server.version == "9.8.7"
    try:
        server.start()
        for row in ROWS:
            if row.name in ("mpub", "deliver8"):
                assert all(figure.value > 0 for figure in row.run(server, SMALL))
    finally:
        server.stop()


@pytest.mark.parametrize(("variable", "kind"), [("NSQD", Nsqd), ("RABBITMQ", RabbitMq)])
def test_a_server_that_is_not_there_is_said(
    monkeypatch: pytest.MonkeyPatch, variable: str, kind: type[Nsqd] | type[RabbitMq]
) -> None:
    monkeypatch.setenv(variable, "/nowhere/at/all")
    with pytest.raises(Missing, match="/nowhere/at/all"):
        kind()


@pytest.mark.long
@pytest.mark.parametrize("name", ["mpub", "deliver1", "flow8", "latency"])
def test_rabbitmq_is_measured(rabbitmq: QueueServer, name: str) -> None:
    (row,) = (row for row in ROWS if row.name == name)
    assert all(figure.value > 0 for figure in row.run(rabbitmq, SMALL))


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[QueueServer]:
    try:
        server = RabbitMq()
    except Missing as reason:
        pytest.skip(str(reason))
    try:
        server.start()
        yield server
    finally:
        server.stop()
