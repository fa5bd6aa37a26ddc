"""NSQ's kernels: bodies into batches, FINs into numbers, claims into frames; compiled and interpreted alike."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted_together

from headrace.broker.queues import delivery, ledger
from headrace.doors.nsq.errors import CommandError
from headrace.doors.nsq.nsqd import delivery_wire, publish_wire
from headrace.format import records
from headrace.format.message_id import decode_id, encode_id
from headrace.format.partitioning import partition_of

MAX = 1 << 24
BODY_MAX = 200
NOW = 1_700_000_000_000
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

bodies = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=40)
maybe_bytes = st.none() | st.binary(max_size=100)
parts = st.tuples(maybe_bytes, maybe_bytes, st.lists(st.tuples(st.text(max_size=12), maybe_bytes), max_size=4))
ids = st.tuples(st.integers(0, (1 << 17) - 1), st.integers(0, (1 << 63) - 1), st.integers(0, 65_535))


class Build:
    """The kernels that work together, of one build."""

    def __init__(self, incoming: Any, outgoing: Any, delivery: Any, ledger: Any) -> None:
        self.publish = incoming
        self.deliver = outgoing
        self.delivery = delivery
        self.ledger = ledger

    def claim(self, batches: bytes, lane: int = 0, count: int = 100, attempts: int = 1) -> Any:
        """Messages of `batches`, handed out for the `attempts`th time."""
        book = self.ledger.Ledger(0)
        rules = self.delivery.Rules("q", [], None, 100)
        for attempt in range(attempts):
            feed = self.delivery.Feed(MAX)
            feed.fill(batches, 0)
            claimed = self.delivery.claim(feed, book, rules, lane, 1, NOW, count, MAX, attempt > 0)
            if attempt < attempts - 1:
                for offset, given in claimed.attempts():
                    assert book.requeue(offset, 1, given, 0) >= 0
        return claimed


def load_interpreted() -> Build:
    kernels = interpreted_together(
        "format.records",
        "broker.queues.ledger",
        "broker.queues.delivery",
        "doors.nsq.nsqd.publish_wire",
        "doors.nsq.nsqd.delivery_wire",
    )
    _, ledger, delivery, incoming, outgoing = kernels.values()
    return Build(incoming, outgoing, delivery, ledger)


@pytest.fixture(scope="module")
def source() -> Build:
    return load_interpreted()


@pytest.fixture(scope="module", params=["installed", "interpreted"])
def build(request: pytest.FixtureRequest, source: Build) -> Build:
    return Build(publish_wire, delivery_wire, delivery, ledger) if request.param == "installed" else source


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def mpub_body(messages: list[bytes]) -> bytearray:
    return bytearray(struct.pack(">i", len(messages)) + b"".join(map(sized, messages)))


def tail(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> bytes:
    """The end of a record as a message carries it under the extension."""
    batch = bytes(records.build([(0, key, value, headers)]))
    # Length, attributes and two deltas of one byte stand before it.
    at = 61
    while batch[at] & 0x80:
        at += 1
    return batch[at + 4 :]


def split(batches: bytes) -> list[bytes]:
    found = []
    while batches:
        size = 12 + int.from_bytes(batches[8:12], "big")
        found.append(bytes(batches[:size]))
        batches = batches[size:]
    return found


def values(batches: bytes) -> list[bytes | None]:
    return [record[3] for batch in split(batches) for record in records.parse(batch, MAX)]


def outcome(call: Any) -> Any:
    try:
        return call()
    except Exception as error:
        return getattr(error, "nsq_code", type(error)), str(error)


# --- ids ---


@RELAXED
@given(ids)
def test_an_id_names_a_delivery(build: Build, number: tuple[int, int, int]) -> None:
    text = encode_id(*number)
    assert len(text) == 16
    assert text.isascii()
    assert decode_id(text) == number
    assert list(build.deliver.fins(bytearray(b"FIN " + text + b"\n"), 0, 21)) == list(number)


def test_ids_sort_as_what_they_name(build: Build) -> None:
    numbers = [(0, 0, 1), (0, 0, 2), (0, 1, 1), (0, 1 << 40, 0), (1, 0, 0), (3, 5, 7)]
    assert sorted(numbers) == sorted(numbers, key=lambda each: bytes(encode_id(*each)))


def test_what_never_was_an_id(build: Build) -> None:
    assert decode_id(b"0123456789abcde ") is None
    assert decode_id(bytes(16)) is None


@RELAXED
@given(st.lists(ids, max_size=30), st.binary(max_size=40))
def test_a_run_of_fins_ends_where_something_else_begins(
    build: Build, numbers: list[tuple[int, int, int]], rest: bytes
) -> None:
    run = b"xx" + b"".join(b"FIN " + encode_id(*each) + b"\n" for each in numbers)
    found = build.deliver.fins(bytearray(run + b"RDY 5\n" + rest), 2, len(run) + 6 + len(rest))
    assert found == array("q", [part for each in numbers for part in each])


@pytest.mark.parametrize("bad", [b"FIN 0123456789abcde!\n", b"FIN 0123456789abcdef\r", b"FIM 0123456789abcdef\n"])
def test_a_fin_that_is_none_is_left(build: Build, bad: bytes) -> None:
    good = b"FIN 0123456789ABCDEF\n"
    assert len(build.deliver.fins(bytearray(good + bad + good), 0, 63)) == 3
    assert len(build.deliver.fins(bytearray(good + good[:-1]), 0, 41)) == 3


# --- publishing ---


@RELAXED
@given(bodies, st.integers(62, 2_000))
def test_mpub_makes_batches(build: Build, source: Build, messages: list[bytes], batch_max: int) -> None:
    body = mpub_body(messages)
    batches, count = build.publish.mpub(body, 0, len(body), 1000, MAX, batch_max, NOW, False)
    assert count == len(messages)
    assert values(batches) == messages
    for batch in split(batches):
        inside = records.parse(batch, MAX)
        assert {record[1] for record in inside} == {NOW}
        assert [record[0] for record in inside] == list(range(len(inside)))
        assert len(batch) <= batch_max or len(inside) == 1
    assert source.publish.mpub(body, 0, len(body), 1000, MAX, batch_max, NOW, False) == (batches, count)


@RELAXED
@given(st.lists(parts, min_size=1, max_size=20), st.integers(62, 1_000))
def test_mpub_under_the_extension(build: Build, messages: list[Any], batch_max: int) -> None:
    body = mpub_body([tail(*each) for each in messages])
    batches, count = build.publish.mpub(body, 0, len(body), 10_000, MAX, batch_max, NOW, True)
    assert count == len(messages)
    found = [record for batch in split(batches) for record in records.parse(batch, MAX)]
    assert [record[2:] for record in found] == messages


def test_a_batch_of_many(build: Build) -> None:
    messages = [bytes([number % 256]) for number in range(3_000)]
    body = mpub_body(messages)
    batches, _ = build.publish.mpub(body, 0, len(body), 10, MAX, 1 << 20, NOW, False)
    assert values(batches) == messages


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"\0\0", "E_BAD_BODY", "failed to read message count"),
        (b"\0\0\0\0", "E_BAD_BODY", "invalid message count 0"),
        (b"\xff\xff\xff\xff" + sized(b"x"), "E_BAD_BODY", "invalid message count -1"),
        (b"\x7f\xff\xff\xff" + sized(b"x"), "E_BAD_BODY", "invalid message count 2147483647"),
        # 200 bytes hold 39 messages.
        (b"\0\0\0\x28" + sized(b"x"), "E_BAD_BODY", "invalid message count 40"),
        (b"\0\0\0\x27" + sized(b"x"), "E_BAD_MESSAGE", r"failed to read message\(1\) body size"),
        (b"\0\0\0\x02" + sized(b"x" * 6), "E_BAD_MESSAGE", r"failed to read message\(1\) body size"),
        (b"\0\0\0\x01" + sized(b""), "E_BAD_MESSAGE", r"invalid message\(0\) body size 0"),
        (b"\0\0\0\x01" + sized(b"") + b"x", "E_BAD_MESSAGE", r"invalid message\(0\) body size 0"),
        (b"\0\0\0\x01\xff\xff\xff\xffx", "E_BAD_MESSAGE", r"invalid message\(0\) body size -1"),
        (b"\0\0\0\x01" + sized(b"x" * 101), "E_BAD_MESSAGE", "message too big 101 > 100"),
        (b"\0\0\0\x01\0\0\0\x09xy", "E_BAD_MESSAGE", "failed to read message body"),
        (b"\0\0\0\x01" + sized(b"x") + b"more", "E_BAD_BODY", "4 bytes behind its last message"),
    ],
)
def test_mpub_is_all_or_nothing(build: Build, body: bytes, code: str, words: str) -> None:
    with pytest.raises(CommandError, match=words) as raised:
        build.publish.mpub(bytearray(body), 0, len(body), 100, BODY_MAX, MAX, NOW, False)
    assert raised.value.nsq_code == code


@RELAXED
@given(st.binary(max_size=200), st.booleans())
def test_builds_agree_on_garbage(source: Build, body: bytes, extended: bool) -> None:
    def both(call: Any) -> None:
        compiled = Build(publish_wire, delivery_wire, delivery, ledger)
        assert outcome(lambda: call(compiled)) == outcome(lambda: call(source))

    counted = bytearray(struct.pack(">i", 3) + body)
    both(lambda build: build.publish.mpub(bytearray(body), 0, len(body), 100, BODY_MAX, MAX, NOW, extended))
    both(lambda build: build.publish.mpub(counted, 0, len(counted), 100, BODY_MAX, MAX, NOW, extended))
    both(lambda build: build.publish.pubs(bytearray(body), 0, len(body), b"PUB t\n", 100, MAX, NOW, extended))
    both(lambda build: build.deliver.fins(bytearray(body), 0, len(body)))


@RELAXED
@given(parts, st.integers(0, 400), st.integers(0, 255))
def test_a_message_under_the_extension_is_whole_or_refused(
    build: Build, message: Any, position: int, byte: int
) -> None:
    """Whatever one byte becomes, what is taken can be read by whoever reads records."""
    damaged = bytearray(tail(*message))
    damaged[position % len(damaged)] = byte
    command = bytearray(b"PUB t\n" + sized(bytes(damaged)))
    batch, count, taken = build.publish.pubs(command, 0, len(command), b"PUB t\n", MAX, MAX, NOW, True)
    if batch is None:
        assert (count, taken) == (0, 0)
    else:
        records.check(batch, False, MAX)
        assert len(records.parse(batch, MAX)) == 1


@pytest.mark.parametrize(
    "message",
    [
        b"\x01",
        b"\x01\x01",
        b"\x01\x02",
        b"\x01\x20xy\0",
        b"\x03\x01\0",
        b"\x01\x03\0",
        b"\x01\x01\x01",
        b"\x01\x01\x03",
        b"\x01\x01\x03\x02k\x01",
        b"\x01\x01\x02\x01\x01",
        b"\x01\x01\x02\x02",
        b"\x01\x01\x02\x02k\x03",
        b"\x01\x01\x02\x02k\x20v",
        b"\x01\x01\x7e\x02k\x01",
        b"\x01\x01\0\0",
        b"\x80\x80\x80\x80\x80\x01\x01\0",
        b"\x01\x01\xff\xff\xff\xff\xff\x01",
        b"\xff\xff\xff\xff\x0f\x01\0",
    ],
)
def test_what_is_no_end_of_a_record(build: Build, message: bytes) -> None:
    line = b"PUB t\n"
    # Far into a buffer that goes on behind it: no length may reach out of the message.
    command = bytearray(bytes(300) + line + sized(message) + bytes(300))
    whole = 300 + len(line) + 4 + len(message)
    assert build.publish.pubs(command, 300, whole, line, MAX, MAX, NOW, True) == (None, 0, 300)
    body = bytearray(bytes(300) + mpub_body([tail(None, b"fine", []), message]))
    with pytest.raises(CommandError, match=r"message\(1\) is not a key, a value and headers"):
        build.publish.mpub(body, 300, len(body), MAX, MAX, MAX, NOW, True)


@RELAXED
@given(bodies, st.integers(62, 3_000), st.binary(max_size=30))
def test_a_run_of_pubs_is_one_batch(build: Build, messages: list[bytes], batch_max: int, rest: bytes) -> None:
    line = b"PUB topic\n"
    run = bytearray(b"head" + b"".join(line + sized(each) for each in messages) + b"PUB other\n" + rest)
    position = 4
    found: list[bytes | None] = []
    while len(found) < len(messages):
        batch, count, position = build.publish.pubs(run, position, len(run), line, 1000, batch_max, NOW, False)
        assert batch is not None
        assert count == 1 or len(batch) <= batch_max
        found += values(batch)
    assert found == messages
    assert run[position:].startswith(b"PUB other\n")
    assert build.publish.pubs(run, position, len(run), line, 1000, batch_max, NOW, False) == (None, 0, position)


@pytest.mark.parametrize(
    "bad", [b"\0\0\0\0", b"\xff\xff\xff\xffx", b"\0\0\0\x65" + b"x" * 101, b"\0\0\0\x05abcd", b"\0"]
)
def test_a_pub_that_breaks_a_rule_is_left(build: Build, bad: bytes) -> None:
    line = b"PUB t\n"
    good = line + sized(b"fine")
    run = bytearray(good + good + line + bad)
    batch, count, position = build.publish.pubs(run, 0, len(run), line, 100, MAX, NOW, False)
    assert (values(batch), count, position) == ([b"fine", b"fine"], 2, 2 * len(good))


@RELAXED
@given(st.lists(parts, min_size=1, max_size=30), st.integers(2, 7), st.integers(62, 600))
def test_keys_go_to_their_partitions(build: Build, messages: list[Any], partitions: int, batch_max: int) -> None:
    body = mpub_body([tail(*each) for each in messages])
    batches, _ = build.publish.mpub(body, 0, len(body), 10_000, MAX, batch_max, NOW, True)
    largest = max(map(len, split(batches)))
    expected: dict[int, list[Any]] = {}
    for each in messages:
        index = 1 if each[0] is None else partition_of(each[0], partitions)
        expected.setdefault(index, []).append(each)
    routed = build.publish.route(batches, partitions, 1, NOW)
    assert {
        index: [record[2:] for batch in split(part) for record in records.parse(batch, MAX)]
        for index, part in routed.items()
    } == expected
    for part in routed.values():
        for batch in split(part):
            assert len(batch) <= largest
            records.check(batch, False, MAX)


# --- delivering ---


def read_frames(data: bytes) -> list[tuple[int, int, bytes, bytes]]:
    found = []
    while data:
        size, kind, timestamp, attempts, number = struct.unpack_from(">iiqH16s", data)
        assert kind == 2
        found.append((timestamp, attempts, number, bytes(data[34 : size + 4])))
        data = data[size + 4 :]
    return found


@RELAXED
@given(st.lists(parts, min_size=1, max_size=20), st.integers(0, 131_071), st.integers(1, 3), st.integers(0, 4))
def test_frames_of_what_was_claimed(
    build: Build, messages: list[Any], lane: int, attempts: int, compression: int
) -> None:
    half = len(messages) // 2
    batches = b""
    for base, chunk in ((0, messages[:half]), (half, messages[half:])):
        if chunk:
            batch = records.build([(NOW, *each) for each in chunk], compression=compression)
            batch[:8] = struct.pack(">q", base)
            batches += bytes(batch)
    claimed = build.claim(batches, lane, attempts=attempts)
    plain = read_frames(bytes(build.deliver.frames(claimed, False)))
    extended = read_frames(bytes(build.deliver.frames(claimed, True)))
    assert [each[3] for each in plain] == [value or b"" for _, value, _ in messages]
    assert [each[3] for each in extended] == [tail(*each) for each in messages]
    for offset, (timestamp, attempt, number, _) in enumerate(plain):
        assert (timestamp, attempt) == (NOW * 1_000_000, attempts)
        assert decode_id(number) == (lane, offset, attempts)


def test_a_time_that_nsq_cannot_say_is_none(build: Build) -> None:
    batch = bytes(records.build([(-1, None, b"a", []), ((1 << 62) - 1, None, b"b", [])]))
    assert [each[0] for each in read_frames(bytes(build.deliver.frames(build.claim(batch), False)))] == [0, 0]


def test_no_frames(build: Build) -> None:
    assert build.deliver.frames(build.claim(b""), False) == b""
