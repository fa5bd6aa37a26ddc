"""What a client may not cost: connections, requests, arrays and replies against a broker in a process of its own, whose
memory is measured from outside. Each test ends with a client for whom everything works as ever."""

from __future__ import annotations

import errno
import os
import random
import re
import resource
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import cramjam
import pytest
from crc32c import crc32c
from kafka import KafkaConsumer
from kafka.errors import OffsetMetadataTooLargeError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PyPartition
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from tests.clients.trio import CLIENTS, Message, make_topic, numbered, values
from tests.doors.kafka.local_client import KEYS, build
from tests.doors.kafka.wired import frame
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS, wait_until

from headrace.doors.kafka.registry import API_VERSIONS, APIS
from headrace.format import records

MIB = 1 << 20
# docs/operating.md states these.
IDLE_CONNECTION_BYTES = 4_096
FULL_CONNECTION_BYTES = 8_192


class Raw:
    """One connection, over which anything can be said."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """The next reply, without its length."""
        size = int.from_bytes(self._exactly(4))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            piece = self.socket.recv(count - len(got))
            if not piece:
                raise ConnectionResetError
            got += piece
        return got

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        self.send(request(api, version, **fields))
        raw = self.receive()
        key = KEYS[api]
        at = 5 if version >= APIS[key].flexible and key != API_VERSIONS else 4
        return entity_reader(load_response_schema(KEYS[api], version))(raw, at)[0]

    def produce(self, topic: str, batch: bytes, index: int = 0) -> ErrorCode:
        reply = self.ask("produce", 9, **produce_fields(topic, batch, index))
        code: ErrorCode = reply.responses[0].partition_responses[0].error_code
        return code

    @property
    def closed(self) -> bool:
        """The broker has closed it, with nothing more to say."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def request(api: str, version: int, **fields: Any) -> bytes:
    kind = load_request_schema(KEYS[api], version)
    out = BytesIO()
    entity_writer(kind)(out, build(kind, fields))
    return frame(KEYS[api], version, 1, out.getvalue())


METADATA = request(
    "metadata",
    9,
    topics=[],
    allow_auto_topic_creation=False,
    include_cluster_authorized_operations=False,
    include_topic_authorized_operations=False,
)


def produce_fields(topic: str, batch: bytes, index: int = 0) -> dict[str, Any]:
    partition = {"index": index, "records": batch}
    topics = [{"name": topic, "partition_data": [partition]}]
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}


def fetch(topic: str, max_bytes: int) -> bytes:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": max_bytes}
    return request(
        "fetch",
        12,
        max_wait=0,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [partition]}],
        forgotten_topics_data=[],
        rack_id="",
    )


def memory(pid: int, field: str = "VmRSS") -> int:
    """Bytes that a process holds (VmHWM: the most that it ever held)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def reset_peak(pid: int) -> int:
    """Forget the most that a process ever held; what it holds now."""
    with suppress(PermissionError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory(pid)


def works(address: str) -> None:
    """A client produces and consumes, for whom nothing is wrong."""
    topic = f"fine-{time.monotonic_ns()}"
    given = numbered(20)
    CLIENTS["confluent"].write(address, topic, given)
    assert values(CLIENTS["confluent"].read(address, topic, 20)) == [each.value for each in given]


@pytest.fixture
def serving(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServeProcess]:
    flags = getattr(request, "param", ())
    with ServeProcess(tmp_path / "data", *flags) as broker:
        # What is imported when first used is no cost of what is measured here.
        works(broker.kafka)
        yield broker
        works(broker.kafka)


def serve(*flags: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("serving", [flags], indirect=True, ids=[" ".join(flags)])


# --- connections ------------------------------------------------------------------------------------------------------


def hold(broker: ServeProcess, count: int) -> tuple[int, int]:
    """Hold connections that have asked something: the memory of one after a greeting, and after all kinds of work."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < count + 500:
        pytest.skip(f"{count} connections need more descriptors than the {hard} that are allowed here")
    make_topic(broker.kafka, "held")
    CLIENTS["confluent"].write(broker.kafka, "held", numbered(10))
    hello = request("api_versions", 0)
    poll = fetch("held", 1_000)
    before = memory(broker.pid)
    held: list[Raw] = []
    try:
        for _ in range(count):
            held.append(Raw(broker.kafka))
            held[-1].send(hello)
        for each in held:
            each.receive()
        idle = (memory(broker.pid) - before) // count
        works(broker.kafka)
        for start in range(0, count, 100):
            for each in held[start : start + 100]:
                each.send(METADATA + poll + request("produce", 9, **produce_fields("held", batch_of(b"x"))))
            for each in held[start : start + 100]:
                each.receive()
                each.receive()
                each.receive()
        full = (memory(broker.pid) - before) // count
        works(broker.kafka)
    finally:
        for each in held:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"{count} connections: {idle} bytes each, {full} after a Metadata, a Fetch and a Produce")
    return idle, full


def batch_of(*contents: bytes, **more: Any) -> bytes:
    now = time.time_ns() // 1_000_000
    return bytes(records.build([(now, b"key", each, []) for each in contents], **more))


def test_a_thousand_idle_connections(serving: ServeProcess) -> None:
    idle, full = hold(serving, 1_000)
    assert idle <= IDLE_CONNECTION_BYTES
    assert full <= FULL_CONNECTION_BYTES


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ten_thousand_idle_connections(serving: ServeProcess) -> None:
    idle, full = hold(serving, 10_000)
    assert idle <= IDLE_CONNECTION_BYTES
    assert full <= FULL_CONNECTION_BYTES


@serve("--connections-max", "50")
def test_connections_beyond_the_bound_are_closed_and_the_others_are_not(serving: ServeProcess) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(closing(Raw(serving.kafka))) for _ in range(60)]
        # Accepted in this order: what was refused is known once one of the last is answered or closed.
        served = 0
        for each in held:
            with suppress(ConnectionError):
                each.ask("api_versions", 0)
                served += 1
        assert 40 <= served <= 50
        assert sum(each.closed for each in held[50:]) == 10
        for each in held[:served]:
            each.ask("api_versions", 0)
    # The broker counts a connection out when it has seen its end.
    wait_until(lambda: answered(serving.kafka))


def answered(address: str) -> bool:
    with suppress(OSError), closing(Raw(address)) as raw:
        raw.ask("api_versions", 0)
        return True
    return False


@serve("--connections-idle-ms", "1500")
def test_idle_connections_are_closed(serving: ServeProcess) -> None:
    began = time.monotonic()
    with closing(Raw(serving.kafka)) as silent, closing(Raw(serving.kafka)) as cut, closing(Raw(serving.kafka)) as live:
        cut.send(b"\0\0\0")
        while time.monotonic() < began + 3.5:
            live.ask("api_versions", 0)
            time.sleep(0.1)
        assert silent.closed
        assert cut.closed
        live.ask("api_versions", 0)


@pytest.mark.parametrize(
    "serving",
    [("--connections-idle-ms", "1000", "--tail-bytes", str(tail)) for tail in (1_000_000, 64_000_000)],
    indirect=True,
    ids=["files", "memory"],
)
def test_a_client_that_never_reads_its_reply_is_closed(serving: ServeProcess) -> None:
    make_topic(serving.kafka, "unread", durability="async")
    CLIENTS["confluent"].write(serving.kafka, "unread", [Message(bytes(900_000)) for _ in range(40)])
    with closing(Raw(serving.kafka)) as raw:
        raw.send(fetch("unread", 50 * MIB))
        wait_until(lambda: connections_to(serving) == 0, seconds=10)


def connections_to(broker: ServeProcess) -> int:
    """Established connections at the broker's port, from its side."""
    port = int(broker.kafka.rpartition(":")[2])
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines)


# --- descriptors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["async", "sync"])
def test_a_lack_of_descriptors_passes(tmp_path: Path, durability: str) -> None:
    flags = ("--durability", durability, "--log-segment-bytes", "5000", "--direct-bytes", "1000")
    with ServeProcess(tmp_path / "data", *flags) as broker:
        make_topic(broker.kafka, "t")
        works(broker.kafka)
        with closing(Raw(broker.kafka)) as raw:
            sent = batch_of(bytes(4_000))
            assert raw.produce("t", sent) is ErrorCode.none
            allowed = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
            used = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used - 2, allowed[1]))
            told = [raw.produce("t", sent) for _ in range(5)]
            assert ErrorCode.kafka_storage_error in told
            assert set(told) <= {ErrorCode.none, ErrorCode.kafka_storage_error}
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, allowed)
            wait_until(lambda: raw.produce("t", sent) is ErrorCode.none)
        works(broker.kafka)
        acknowledged = 2 + told.count(ErrorCode.none)
        assert len(CLIENTS["confluent"].read(broker.kafka, "t", acknowledged)) == acknowledged


def test_the_limit_of_open_files_is_raised_and_respected(tmp_path: Path) -> None:
    limited = ("bash", "-c", 'ulimit -Sn 50; ulimit -Hn 200; exec "$@"', "sh")
    with ServeProcess(tmp_path / "data", "--open-files-max", "100", under=limited) as broker, ExitStack() as stack:
        assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (200, 200)
        # 200, less 64 of its own and what was open before, of which a third is for segments.
        told = re.search(r"all doors together take (\d+) connections", broker.words())
        assert told is not None
        room = int(told[1])
        assert 70 <= room <= 90
        held = [stack.enter_context(closing(Raw(broker.kafka))) for _ in range(100)]
        served = 0
        for each in held:
            with suppress(ConnectionError):
                each.ask("api_versions", 0)
                served += 1
        assert served == room


def test_connections_of_all_doors_leave_the_log_its_descriptors(tmp_path: Path) -> None:
    """Checkpoints go on, and nothing acknowledged is lost, though clients want more descriptors than there are."""
    limited = ("bash", "-c", 'ulimit -n 256; exec "$@"', "sh")
    doors = ("http", "nsq", "nsq-http", "lookup", "lookup-http")
    flags = [word for door in doors for word in (f"--{door}", "127.0.0.1:0")]
    data = tmp_path / "data"
    settings = ("--checkpoint-ms", "100", "--log-segment-bytes", "5000", "--direct-bytes", "1000")
    with ServeProcess(data, *flags, *settings, under=limited) as broker, ExitStack() as stack:
        make_topic(broker.kafka, "t", 150)
        raw = stack.enter_context(closing(Raw(broker.kafka)))
        acknowledged = 0

        def produce() -> None:
            nonlocal acknowledged
            for index in range(0, 150, 3):
                assert raw.produce("t", batch_of(bytes(2_000)), index) is ErrorCode.none
                acknowledged += 1

        produce()
        for address in broker.addresses.values():
            for _ in range(90):
                stack.enter_context(closing(Raw(address)))
        for _ in range(3):
            before = (data / "checkpoint").stat().st_mtime_ns
            produce()
            wait_until(lambda before=before: (data / "checkpoint").stat().st_mtime_ns > before, broker.words)  # type: ignore[misc]
        log = data.with_suffix(".stderr").read_text()
        assert "connections are refused" in log
        assert os.strerror(errno.EMFILE) not in log
        broker.kill()
        broker.start()
        assert len(CLIENTS["confluent"].read(broker.kafka, "t", acknowledged, partitions=150)) == acknowledged


# --- requests ---------------------------------------------------------------------------------------------------------


@serve("--request-max-bytes", "100000")
def test_a_request_at_the_edge(serving: ServeProcess) -> None:
    def asking(size: int) -> bytes:
        """A request whose length field says exactly `size`, filled up by a tagged field that nobody knows."""
        body = METADATA[4:-1]
        filling = size - len(body) - 5
        padded = body + b"\x01\x09" + varint(filling) + bytes(filling)
        assert len(padded) == size
        return size.to_bytes(4) + padded

    with closing(Raw(serving.kafka)) as raw:
        raw.send(asking(100_000))
        raw.receive()
        with suppress(ConnectionError):
            raw.send(asking(100_001))
        assert raw.closed


def test_lengths_that_are_announced_cost_nothing(serving: ServeProcess) -> None:
    before = reset_peak(serving.pid)
    with ExitStack() as stack:
        for _ in range(200):
            raw = stack.enter_context(closing(Raw(serving.kafka)))
            raw.send((100 * MIB).to_bytes(4) + b"\0\0\0\x09\0\0\0\1\xff\xff" + bytes(1_000))
        works(serving.kafka)
        # At most a small receive buffer each, not the 20 GB that were announced.
        assert memory(serving.pid, "VmHWM") - before < 200 * 30_000
    wait_until(lambda: connections_to(serving) == 0)
    works(serving.kafka)


def test_what_was_sent_of_cut_requests_is_given_back(serving: ServeProcess) -> None:
    works(serving.kafka)
    before = memory(serving.pid)
    for _ in range(4):
        with ExitStack() as stack:
            for _ in range(10):
                raw = stack.enter_context(closing(Raw(serving.kafka)))
                raw.send((100 * MIB).to_bytes(4) + b"\0\0\0\x09\0\0\0\1\xff\xff" + bytes(5 * MIB))
        wait_until(lambda: connections_to(serving) == 0)
    # 200 MiB were sent; the sockets are gone a moment before the buffers are. That they go whatever else was made
    # meanwhile is tests/runtime/test_memory.py.
    wait_until(lambda: memory(serving.pid) - before < 30 * MIB)


def huge(flexible: bool) -> list[bytes]:
    if flexible:
        return [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x08", b"\x80\x80\x40"]
    return [b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\x10\0\0"]


def test_array_lengths_that_are_announced_cost_nothing_in_any_api(serving: ServeProcess) -> None:
    def throw() -> None:
        for api in APIS.values():
            for version in {api.oldest, api.newest}:
                for length in huge(version >= api.flexible):
                    # Wherever the first array stands: behind nothing, a few numbers, or a string or two.
                    for before in (b"", b"\0", b"\0\0", b"\0\0\0\0", b"\0" * 8, b"\2a", b"\0\1a", b"\0\1a" + bytes(8)):
                        with closing(Raw(serving.kafka)) as raw:
                            raw.send(frame(api.key, version, 1, before + length + bytes(40)))
                            raw.socket.shutdown(socket.SHUT_WR)

    throw()
    wait_until(lambda: connections_to(serving) == 0)
    before = reset_peak(serving.pid)
    throw()
    wait_until(lambda: connections_to(serving) == 0)
    assert memory(serving.pid, "VmHWM") - before < 30 * MIB


def test_elements_that_are_really_sent_are_bounded(serving: ServeProcess) -> None:
    # Arrays in arrays: a byte sent is an element, and an element is a hundred bytes of memory and a microsecond.
    def asking(resources: int, keys: int) -> bytes:
        one = b"\x02\x02t" + varint(keys + 1) + b"\x01" * keys + b"\0"
        return frame(KEYS["describe_configs"], 4, 1, varint(resources + 1) + one * resources + b"\0\0\0")

    before = reset_peak(serving.pid)
    with closing(Raw(serving.kafka)) as raw, closing(Raw(serving.kafka)) as other:
        raw.send(asking(100, 1_000))
        raw.receive()
        began = time.monotonic()
        raw.send(asking(100, 190_000))
        other.ask("api_versions", 0)
        assert raw.closed
        assert time.monotonic() - began < 15
    assert memory(serving.pid, "VmHWM") - before < 5 * 20 * MIB


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- batches ----------------------------------------------------------------------------------------------------------


def bomb(codec: int, size: int) -> bytes:
    """A batch whose records unpack to so many zeros."""
    zeros = bytes(size)
    if codec == 1:
        packed = zlib.compress(zeros, 9, wbits=31)
    else:
        pack = {2: cramjam.snappy.compress_raw, 3: cramjam.lz4.compress, 4: cramjam.zstd.compress}[codec]
        packed = bytes(pack(zeros))
    head = bytearray(batch_of(b"x")[:61])
    head[22] = codec
    head[8:12] = (61 - 12 + len(packed)).to_bytes(4)
    made = bytes(head) + packed
    return made[:17] + crc32c(made[21:]).to_bytes(4) + made[21:]


@serve("--decompressed-max-bytes", "10000000")
def test_decompression_bombs_are_refused_where_records_are_read(serving: ServeProcess) -> None:
    make_topic(serving.kafka, "compacted", cleanup_policy="compact", max_message_bytes=30_000_000)
    make_topic(serving.kafka, "plain", max_message_bytes=30_000_000)
    with closing(Raw(serving.kafka)) as raw:
        for codec in (1, 2, 3, 4):
            dangerous = bomb(codec, 200_000_000)
            assert raw.produce("compacted", batch_of(b"good", compression=codec)) is ErrorCode.none
            before = reset_peak(serving.pid)
            assert raw.produce("compacted", dangerous) is ErrorCode.invalid_record
            assert raw.produce("compacted", dangerous) is ErrorCode.invalid_record
            assert memory(serving.pid, "VmHWM") - before < 40_000_000 + 4 * len(dangerous)
            # Elsewhere nobody unpacks it: it is the reader's to bound.
            assert raw.produce("plain", dangerous) is ErrorCode.none


@serve("--message-max-bytes", "5000")
def test_a_batch_at_the_edge(serving: ServeProcess) -> None:
    make_topic(serving.kafka, "broker-says")
    make_topic(serving.kafka, "topic-says", max_message_bytes=7_000)

    def sized(size: int) -> bytes:
        made = batch_of(bytes(size - len(batch_of(b"")) - 2))
        while len(made) != size:
            made = batch_of(bytes(size - len(batch_of(b"")) - 2 - (len(made) - size)))
        return made

    with closing(Raw(serving.kafka)) as raw:
        for topic, limit in (("broker-says", 5_000), ("topic-says", 7_000)):
            assert raw.produce(topic, sized(limit)) is ErrorCode.none
            assert raw.produce(topic, sized(limit + 1)) is ErrorCode.message_too_large


@serve("--offset-metadata-max-bytes", "100")
def test_the_metadata_of_an_offset_at_the_edge(serving: ServeProcess) -> None:
    make_topic(serving.kafka, "t")
    place = PyPartition("t", 0)
    consumer = KafkaConsumer(bootstrap_servers=serving.kafka, group_id="g", enable_auto_commit=False)
    consumer.assign([place])
    consumer.commit({place: OffsetAndMetadata(1, "m" * 100, -1)})
    with pytest.raises(OffsetMetadataTooLargeError):
        consumer.commit({place: OffsetAndMetadata(2, "m" * 101, -1)})
    kept = consumer.committed(place, metadata=True)
    consumer.close()
    assert (kept.offset, kept.metadata) == (1, "m" * 100)


# --- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["async", "sync"])
def test_readers_that_never_read_cost_little(serving: ServeProcess, durability: str) -> None:
    make_topic(serving.kafka, "big", durability=durability)
    for _ in range(2):
        CLIENTS["confluent"].write(serving.kafka, "big", [Message(bytes(900_000)) for _ in range(40)])
    before = reset_peak(serving.pid)
    with ExitStack() as stack:
        for _ in range(60):
            raw = stack.enter_context(closing(Raw(serving.kafka)))
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.send(fetch("big", 50 * MIB) * 20)
        works(serving.kafka)
        # New messages push the old ones out of the tail, unless a reader still holds them.
        CLIENTS["confluent"].write(serving.kafka, "big", [Message(bytes(900_000)) for _ in range(40)])
        works(serving.kafka)
        # The tail's own memory and a little for each reader, not the 3 GB that they asked for.
        assert memory(serving.pid, "VmHWM") - before < 64 * MIB + 60 * MIB


# --- senders ----------------------------------------------------------------------------------------------------------


def test_slow_senders_hold_nobody_up(serving: ServeProcess) -> None:
    whole = request("produce", 9, **produce_fields("slow", batch_of(b"x" * 1000)))
    make_topic(serving.kafka, "slow")
    with ExitStack() as stack:
        slow = [stack.enter_context(closing(Raw(serving.kafka))) for _ in range(50)]
        # Half-open: a client that will never send again, and does not say so.
        gone = [stack.enter_context(closing(Raw(serving.kafka))) for _ in range(50)]
        for each in gone:
            each.send(whole[:500])
        for at in range(0, 20):
            for each in slow:
                each.send(whole[at : at + 1])
        works(serving.kafka)
        for each in slow:
            each.send(whole[20:])
        for each in slow:
            assert each.receive()
    found = CLIENTS["confluent"].read(serving.kafka, "slow", 50)
    assert len(found) == 50


def hello_of_tls() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


GARBAGE: dict[str, Callable[[], bytes]] = {
    "http": lambda: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": hello_of_tls,
    "zeros": lambda: bytes(1000),
    "ones": lambda: b"\xff" * 1000,
    "words": lambda: b"hello, is anybody there?\n" * 100,
    "nsq": lambda: b"  V2IDENTIFY\n\0\0\0\2{}",
    "amqp": lambda: b"AMQP\0\0\x09\x01",
}


def test_other_protocols_are_closed_and_nothing_else(serving: ServeProcess) -> None:
    with closing(Raw(serving.kafka)) as fine:
        for garbage in GARBAGE.values():
            with closing(Raw(serving.kafka)) as raw:
                raw.send(garbage())
                assert raw.closed
            fine.ask("api_versions", 0)
    assert '"error"' not in serving.words().lower()


def test_random_bytes(serving: ServeProcess) -> None:
    chance = random.Random(5)
    with closing(Raw(serving.kafka)) as fine:
        for _ in range(300):
            with suppress(ConnectionError), closing(Raw(serving.kafka)) as raw:
                raw.send(chance.randbytes(chance.randint(1, 3000)))
        fine.ask("api_versions", 0)
    wait_until(lambda: connections_to(serving) == 0)
    assert '"error"' not in serving.words().lower()
