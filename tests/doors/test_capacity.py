"""What all doors share is bounded for the process: replies that nobody reads, and descriptors."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.doors.kafka.wired import Wire, batch_of, fetch_fields, produce_fields
from tests.doors.nsq.nsqd.wired import Wire as NsqWire
from tests.doors.nsq.nsqd.wired import mpub
from tests.waiting import SECONDS, until

from headrace.broker.metrics import DoorMetrics
from headrace.config import Config
from headrace.doors.capacity import Capacity
from headrace.doors.roster import Roster
from headrace.server import Server


class Client:
    """A connection that can only be cut off."""

    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_those_who_have_waited_the_longest_are_cut_off():
    capacity = Capacity(unread_bytes=100, unread_files=4)
    first, second, third = Client(), Client(), Client()
    assert capacity.note_unread(first, 60, 0, "http", 0.0) == 0
    assert capacity.note_unread(second, 40, 1, "http", 0.0) == 0
    # One that waits on keeps its place.
    assert capacity.note_unread(first, 50, 0, "http", 0.0) == 0
    assert capacity.note_unread(third, 11, 0, "http", 0.0) == 1
    assert (first.aborted, second.aborted, third.aborted) == (True, False, False)
    assert capacity.unread_bytes == 51
    assert capacity.note_unread(first, 0, 0, "http", 0.0) == 0
    assert capacity.note_unread(third, 11, 4, "http", 0.0) == 1
    assert second.aborted
    assert (capacity.unread_bytes, capacity.unread_files) == (11, 4)
    # One alone may be larger than the bound.
    assert capacity.note_unread(third, 1_000, 4, "http", 0.0) == 0
    assert capacity.note_unread(third, 0, 0, "http", 0.0) == 0
    assert (capacity.unread_bytes, capacity.unread_files) == (0, 0)
    assert not third.aborted


async def test_doors_share_the_descriptors():
    capacity = Capacity(descriptors=3)
    kafka: Roster[Client] = Roster(2, DoorMetrics("kafka"), capacity)
    http: Roster[Client] = Roster(9, DoorMetrics("http"), capacity)
    clients = [Client() for _ in range(6)]
    assert [kafka.admit(each, "") is not None for each in clients[:3]] == [True, True, False]
    assert [http.admit(each, "") is not None for each in clients[3:5]] == [True, False]
    # Those that were refused give nothing back.
    http.forget(clients[4])
    kafka.forget(clients[2])
    assert http.admit(clients[5], "") is None
    kafka.forget(clients[0])
    assert http.admit(clients[5], "") is not None
    assert capacity.descriptors_left == 0


def test_large_requests_take_their_turns():
    capacity = Capacity(receiving_bytes=100)
    called: list[str] = []

    def ask(name: str, size: int) -> bool:
        return capacity.reserve(name, size, lambda: called.append(name), "kafka", 0.0)

    assert [ask("a", 30), ask("b", 20), ask("b", 40), ask("c", 20)] == [True] * 4
    assert capacity.receiving_bytes == 90
    # None begins before those that wait to begin, and before those that wait to go on.
    assert [ask("d", 20), ask("e", 5), ask("b", 80), ask("c", 50), ask("d", 20)] == [False] * 5
    # The first to have begun has all that it needs.
    assert ask("a", 200)
    assert (called, capacity.receiving_bytes) == ([], 260)
    capacity.release("a")
    # Now it is the next: 80 and 20.
    assert (called, capacity.receiving_bytes) == (["b"], 100)
    capacity.release("e")
    capacity.release("b")
    assert (called, capacity.receiving_bytes) == (["b", "c", "d"], 70)
    assert not ask("f", 1_000)
    capacity.release("c")
    capacity.release("d")
    assert (called[3:], capacity.receiving_bytes) == (["f"], 1_000)
    capacity.release("f")
    assert capacity.receiving_bytes == 0


def lazy_socket(address: str) -> socket.socket:
    """A client whose side has little room, and that never reads."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    host, port = address.rsplit(":", 1)
    made.connect((host, int(port)))
    made.setblocking(False)
    return made


async def opened(data: Path, **doors: str | int) -> Server:
    doors_of_nsq = ("nsq", "nsq_http", "lookup", "lookup_http")
    closed = dict.fromkeys(("kafka", "http", *doors_of_nsq, "rocketmq", "rocketmq_namesrv", "rocketmq_grpc"), "off")
    settings: dict[str, Any] = {"durability": "memory", "unread_max_bytes": 1_048_576}
    server = Server(Config(data=str(data), **{**closed, **settings, **doors}))
    await server.start()
    return server


async def test_kafka_clients_that_do_not_read_hold_no_more_than_is_configured(tmp_path: Path):
    server = await opened(tmp_path, kafka="127.0.0.1:0")
    topic = await server.broker.topics.create("rain")
    (partition,) = topic.partitions
    await partition.load()
    for _ in range(8):
        partition.append(bytearray(batch_of(bytes(900_000))))
    fields = fetch_fields((topic, 0, 0))
    fields["topics"][0]["partitions"][0]["partition_max_bytes"] = 50 << 20
    metrics, capacity = server.broker.metrics.door("kafka"), server._capacity
    clients = []
    try:
        for _ in range(6):
            clients.append(lazy_socket(server.addresses["kafka"]))
            wire = Wire(asyncio.StreamReader(), None)  # type: ignore[arg-type]
            clients[-1].send(b"".join(wire.frame("fetch", 12, **fields) for _ in range(3)))
            await until(lambda: capacity.unread_bytes or metrics.connections_unread)
        # The reply of the last alone may be above the bound.
        await until(lambda: metrics.connections_unread == 5, seconds=30)
        await until(lambda: metrics.connections == 1)
        assert 0 < capacity.unread_bytes < 8_000_000
    finally:
        for each in clients:
            each.close()
    await until(lambda: not metrics.connections)
    assert capacity.unread_bytes == 0
    await server.stop()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_large_requests_wait_unread_while_others_are_received(tmp_path: Path, loop: Any):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(receive_large_requests(tmp_path))


async def receive_large_requests(data: Path) -> None:
    server = await opened(data, kafka="127.0.0.1:0", receiving_max_bytes=1 << 20)
    topic = await server.broker.topics.create("rain", 1, {"max.message.bytes": "10000000"})
    host, port = server.addresses["kafka"].split(":")
    capacity = server._capacity
    wires = [Wire(*await asyncio.open_connection(host, int(port))) for _ in range(5)]
    first, second, gone, large, small = wires
    frames = [
        wire.frame("produce", 9, **produce_fields(topic, batch_of(bytes(size))))
        for wire, size in zip(wires, (700_000, 700_000, 700_000, 3_000_000, 100), strict=True)
    ]

    def waiting() -> list[Any]:
        return [*capacity._growing, *capacity._beginning]

    try:
        first.writer.write(frames[0][:-1])
        await until(lambda: capacity.receiving_bytes == len(frames[0]))
        for wire, frame, line in ((second, frames[1], 1), (gone, frames[2][:-1], 2), (large, frames[3], 3)):
            wire.writer.write(frame)
            await until(lambda line=line: len(waiting()) == line)
        small.writer.write(frames[4])
        assert (await small.receive("produce", 9)).responses[0].partition_responses[0].base_offset == 0
        # That shows when its turn comes: until then its socket is not read.
        gone.writer.transport.abort()
        assert capacity.receiving_bytes <= 1 << 20
        assert topic.partitions[0].end == 1
        # What waits is in the sockets.
        assert [each._reading for each in waiting()] == [False] * 3
        first.writer.write(frames[0][-1:])
        for wire, offset in ((first, 1), (second, 2), (large, 3)):
            reply = await asyncio.wait_for(wire.receive("produce", 9), SECONDS)
            assert reply.responses[0].partition_responses[0].base_offset == offset
        # And the next one on the same connection.
        reply = await second.ask("produce", 9, **produce_fields(topic, batch_of(bytes(700_000))))
        assert reply.responses[0].partition_responses[0].base_offset == 4
        await until(lambda: (capacity.receiving_bytes, waiting()) == (0, []))
    finally:
        for each in wires:
            each.writer.close()
    await server.stop()


async def test_nsq_clients_that_do_not_read_hold_no_more_than_is_configured(tmp_path: Path):
    server = await opened(tmp_path, nsq="127.0.0.1:0")
    metrics, capacity = server.broker.metrics.door("nsq"), server._capacity
    host, port = server.addresses["nsq"].split(":")
    wire = NsqWire(*await asyncio.open_connection(host, int(port)))
    wire.send(b"  V2")
    for _ in range(20):
        assert await wire.ask(mpub("rain", *[bytes(250_000)] * 10)) == b"OK"
    clients = []
    try:
        for number in range(8):
            clients.append(lazy_socket(server.addresses["nsq"]))
            clients[-1].send(b"  V2SUB rain c%d\nRDY 2500\n" % number)
        await until(lambda: metrics.connections_unread >= 1, seconds=30)
        await until(lambda: metrics.connections == 1 + len(clients) - metrics.connections_unread, seconds=30)
        assert capacity.unread_bytes <= 1_048_576
        # Others go on.
        assert await wire.ask(mpub("rain", b"x")) == b"OK"
    finally:
        for each in clients:
            each.close()
        wire.writer.close()
    await until(lambda: not metrics.connections)
    assert capacity.unread_bytes == 0
    await server.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("door", ["http", "nsq-http", "lookup-http"])
async def test_http_clients_that_do_not_read_hold_no_more_than_is_configured(tmp_path: Path, door: str):
    server = await opened(tmp_path, **{door.replace("-", "_"): "127.0.0.1:0"}, nsq="127.0.0.1:0")
    topic = await server.broker.topics.create("rain")
    path = {"http": "/v1/topics/rain/queues/q/peek", "nsq-http": "/stats?format=json", "lookup-http": "/topics"}[door]
    if door == "http":
        await topic.partitions[0].load()
        topic.partitions[0].append(bytearray(batch_of(b"x" * 400_000)))
        await server.broker.queues.ensure(topic, "q", 0)
    elif door == "nsq-http":
        for number in range(1_000):
            await server.broker.queues.ensure(topic, f"{number}" * 10 + "#ephemeral")
    else:
        for number in range(4_000):
            await server.broker.topics.create(f"{number:060}")
    metrics, capacity = server.broker.metrics.door(door.replace("-", "_")), server._capacity
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    clients = []
    try:
        # The kernel takes most of an answer: what it leaves of so many is more than the bound.
        for _ in range(64):
            clients.append(lazy_socket(server.addresses[door]))
            clients[-1].send(request * 100)
        await until(lambda: metrics.connections_unread >= 1, seconds=200)
        assert capacity.unread_bytes <= 1_048_576
        host, port = server.addresses[door].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert len(answer) > 150_000
    finally:
        for each in clients:
            each.close()
    await until(lambda: not metrics.connections, seconds=60)
    assert capacity.unread_bytes == 0
    await server.stop()


@pytest.mark.parametrize("door", ["http", "nsq-http", "lookup-http"])
async def test_an_answer_beyond_its_bound_is_refused_in_words(tmp_path: Path, door: str):
    server = await opened(
        tmp_path, **{door.replace("-", "_"): "127.0.0.1:0"}, nsq="127.0.0.1:0", http_answer_max_bytes=65_536
    )
    path = {"http": "/v1/queues", "nsq-http": "/stats?format=json", "lookup-http": "/topics"}[door]
    for number in range(1_200):
        topic = await server.broker.topics.create(f"{number:060}")
        if door == "http" and number < 300:
            await server.broker.queues.ensure(topic, "q", 0)
    host, port = server.addresses[door].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 507 ")
    assert b"http_answer_max_bytes" in answer
    await server.stop()
