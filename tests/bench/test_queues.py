"""Every kind of load on queues does its work on a real broker. How fast is not asked here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.peers.headrace import HeadraceQueues
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
