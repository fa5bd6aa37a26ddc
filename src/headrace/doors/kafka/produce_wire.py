"""Produce on the wire, versions 3 to 13: bytes to a request, results to a reply."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from headrace.doors.kafka.errors import Malformed, error_code
from headrace.doors.kafka.leader_wire import CURRENT_LEADER, NOT_LEADER_OR_FOLLOWER, write_endpoint
from headrace.doors.kafka.placement import Leader
from headrace.doors.kafka.wire import (
    INT32,
    INT32_PAIR,
    read_count,
    read_text,
    read_varint,
    skip_tags,
    write_count,
    write_text,
)
from headrace.errors import RecordsRefused

OLDEST, NEWEST, FLEXIBLE = 3, 13, 9
LOG_START = 5
ERROR_MESSAGES = 8
TOPIC_IDS = 13
# From here on a producer leaves it to the broker to add partitions to its transaction.
BROKER_ADDS = 12
# A refusal names the leader from here on.
LEADER = 10
# Bad records that one reply names. A producer that sends the others again learns of the next ones.
RECORD_ERRORS_MAX = 4_096

_ACKS_AND_TIMEOUT = Struct(">hi")
_RESULT = Struct(">ihqq")
_RESULT_AND_START = Struct(">ihqqq")


class Request:
    """A parsed Produce."""

    __slots__ = ("acks", "timeout_ms", "topics", "transactional_id", "version")

    def __init__(self, version: int, transactional_id: bytes | None, acks: int, timeout_ms: int) -> None:
        self.version = version
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        # Key, and for each partition its index and where its records begin and end (-1: null).
        self.topics: list[tuple[bytes, list[tuple[int, int, int]]]] = []


class Result:
    """What is answered for one partition."""

    __slots__ = ("append_time", "base_offset", "error", "index", "message", "records", "start")

    def __init__(self, index: int, error: int = 0, message: str | None = None) -> None:
        self.index = index
        self.error = error
        self.message = message
        # The bad records of a batch that was refused: which, and why.
        self.records: Sequence[tuple[int, str]] = ()
        self.base_offset = -1
        self.append_time = -1
        self.start = -1

    def fail(self, error: BaseException) -> None:
        """Answer with an error instead."""
        self.error = int(error_code(error))
        self.message = str(error)
        self.base_offset = self.append_time = self.start = -1
        if isinstance(error, RecordsRefused):
            self.records = error.records


# Keys are names or ids as they stand on the wire.
Results = list[tuple[bytes, list[Result]]]


def parse(buffer: bytearray, at: int, end: int, version: int, array_max: int) -> Request:
    """The request whose body begins at `at`. Raises Malformed."""
    flexible = version >= FLEXIBLE
    transactional_id, at = read_text(buffer, at, end, flexible)
    if end - at < 6:
        raise Malformed("a Produce is cut off")
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(buffer, at)
    request = Request(version, transactional_id, acks, timeout_ms)
    count, at = read_count(buffer, at + 6, end, flexible, array_max)
    left = array_max
    for _ in range(count):
        if version >= TOPIC_IDS:
            key: bytes | None = bytes(buffer[at : at + 16])
            at += 16
        else:
            key, at = read_text(buffer, at, end, flexible)
        if key is None or at > end:
            raise Malformed("a Produce names no topic")
        partitions: list[tuple[int, int, int]] = []
        request.topics.append((key, partitions))
        parts, at = read_count(buffer, at, end, flexible, left)
        left -= parts
        for _ in range(parts):
            if end - at < 5:
                raise Malformed("a Produce is cut off")
            (index,) = INT32.unpack_from(buffer, at)
            at += 4
            if flexible:
                size, at = read_varint(buffer, at, end)
                size -= 1
            else:
                if end - at < 4:
                    raise Malformed("a Produce is cut off")
                (size,) = INT32.unpack_from(buffer, at)
                at += 4
            if size < -1 or at + size > end:
                raise Malformed(f"records of {size} bytes with {end - at} left")
            partitions.append((index, at if size >= 0 else -1, at + size))
            at += max(size, 0)
            if flexible:
                at = skip_tags(buffer, at, end)
        if flexible:
            at = skip_tags(buffer, at, end)
    if flexible:
        at = skip_tags(buffer, at, end)
    return request


def encode(version: int, correlation: int, results: Results, throttle: float, leader: Leader | None = None) -> bytes:
    """A whole reply, length and header included. `leader`: of the partitions that this node does not lead any more."""
    flexible = version >= FLEXIBLE
    out = bytearray(8)
    left = RECORD_ERRORS_MAX
    named_leader = False
    out += b"\0" if flexible else b""
    write_count(out, len(results), flexible)
    for key, answers in results:
        if version >= TOPIC_IDS:
            out += key
        else:
            write_text(out, key, flexible)
        write_count(out, len(answers), flexible)
        for each in answers:
            if version >= LOG_START:
                out += _RESULT_AND_START.pack(each.index, each.error, each.base_offset, each.append_time, each.start)
            else:
                out += _RESULT.pack(each.index, each.error, each.base_offset, each.append_time)
            if version >= ERROR_MESSAGES:
                # Without any, a client takes all records of the batch for bad: at least one is always named.
                named = each.records[: max(left, 1)]
                left -= len(named)
                _encode_errors(out, flexible, named, each.message)
            if version >= LEADER and leader is not None and each.error == NOT_LEADER_OR_FOLLOWER:
                named_leader = True
                out += CURRENT_LEADER.pack(1, 0, 9, *leader.current.values(), 0)
            elif flexible:
                out += b"\0"
        if flexible:
            out += b"\0"
    out += INT32.pack(int(throttle * 1000))
    if named_leader and leader is not None:
        write_endpoint(out, leader)
    elif flexible:
        out += b"\0"
    INT32_PAIR.pack_into(out, 0, len(out) - 4, correlation)
    return bytes(out)


def _encode_errors(out: bytearray, flexible: bool, records: Sequence[tuple[int, str]], message: str | None) -> None:
    """What is wrong with single records of a batch, and with all of it."""
    write_count(out, len(records), flexible)
    for index, reason in records:
        out += INT32.pack(index)
        write_text(out, reason.encode(), flexible)
        out += b"\0" if flexible else b""
    write_text(out, None if message is None else message.encode(), flexible)
