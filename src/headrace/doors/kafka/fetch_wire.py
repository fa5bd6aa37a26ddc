"""Fetch on the wire, versions 4 to 18: bytes to a request, results to the parts of a reply.

Records are never copied into the reply: it is a list of parts, the fields between them and the chunks as the log gave
them. Only small ones are put together, since a system call costs more than copying a few thousand bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from headrace.doors.kafka.errors import Malformed
from headrace.doors.kafka.file_replies import Part
from headrace.doors.kafka.leader_wire import CURRENT_LEADER, NOT_LEADER_OR_FOLLOWER, write_endpoint
from headrace.doors.kafka.placement import Leader
from headrace.doors.kafka.sessions import FetchPartition
from headrace.doors.kafka.wire import (
    INT16,
    INT32,
    INT32_PAIR,
    read_count,
    read_text,
    read_varint,
    skip_tags,
    write_count,
    write_text,
)
from headrace.log.interface import AbortedTransaction, Chunk
from headrace.runtime.disk import FileRange

OLDEST, NEWEST, FLEXIBLE = 4, 18, 12
LOG_START = 5
SESSIONS = 7
LEADER_EPOCH = 9
RACK = 11
LAST_EPOCH = 12
TOPIC_IDS = 13
REPLICA_STATE = 15
# The reply says where the leader is reached.
ENDPOINTS = 16
# Errors on which clients ask another broker.
ELSEWHERE = (NOT_LEADER_OR_FOLLOWER, 74)

# A part below this is copied into the bytes before it.
SMALL = 16_384

_LIMITS = Struct(">iiib")
_PARTITION_4 = Struct(">iqi")
_PARTITION_5 = Struct(">iqqi")
_PARTITION_9 = Struct(">iiqqi")
_PARTITION_12 = Struct(">iiqiqi")
_RESULT_4 = Struct(">ihqq")
_RESULT_5 = Struct(">ihqqq")
_ABORTED = Struct(">qq")
_DIVERGING = Struct(">BBBiqB")


class Request:
    """A parsed Fetch."""

    __slots__ = (
        "committed",
        "entries",
        "forgotten",
        "max_bytes",
        "max_wait",
        "min_bytes",
        "rack",
        "replica",
        "session_epoch",
        "session_id",
        "version",
    )

    def __init__(self, version: int) -> None:
        self.version = version
        self.replica = -1
        self.rack = ""
        self.max_wait = 0
        self.min_bytes = 0
        self.max_bytes = 0
        self.committed = False
        self.session_id = 0
        self.session_epoch = -1
        self.entries: list[FetchPartition] = []
        self.forgotten: list[tuple[bytes, int]] = []


class Result:
    """What is answered for one partition."""

    __slots__ = ("aborted", "chunk", "diverging", "entry", "error", "high", "left_out", "preferred", "stable", "start")

    def __init__(self, entry: FetchPartition, error: int = 0) -> None:
        self.entry = entry
        self.error = error
        self.high = -1
        self.stable = -1
        self.start = -1
        self.chunk: Chunk | None = None
        self.aborted: Sequence[AbortedTransaction] | None = None
        self.diverging: tuple[int, int] | None = None
        self.left_out = False
        """There is more, for which the reply has no room."""
        self.preferred = -1
        """The broker that the client had better ask, or -1."""


def parse(buffer: bytearray, at: int, end: int, version: int, array_max: int) -> Request:
    """The request whose body begins at `at`. Raises Malformed."""
    flexible = version >= FLEXIBLE
    request = Request(version)
    if end - at < 13 + (4 if version < REPLICA_STATE else 0) + (8 if version >= SESSIONS else 0):
        raise Malformed("a Fetch is cut off")
    if version < REPLICA_STATE:
        (request.replica,) = INT32.unpack_from(buffer, at)
        at += 4
    request.max_wait, request.min_bytes, request.max_bytes, isolation = _LIMITS.unpack_from(buffer, at)
    request.committed = isolation == 1
    at += 13
    if version >= SESSIONS:
        request.session_id, request.session_epoch = INT32_PAIR.unpack_from(buffer, at)
        at += 8
    count, at = read_count(buffer, at, end, flexible, array_max)
    for _ in range(count):
        key, at = _read_key(buffer, at, end, version)
        parts, at = read_count(buffer, at, end, flexible, array_max - len(request.entries))
        for _ in range(parts):
            entry, at = _read_partition(buffer, at, end, version, key)
            request.entries.append(entry)
        if flexible:
            at = skip_tags(buffer, at, end)
    if version >= SESSIONS:
        count, at = read_count(buffer, at, end, flexible, array_max)
        for _ in range(count):
            key, at = _read_key(buffer, at, end, version)
            parts, at = read_count(buffer, at, end, flexible, array_max - len(request.forgotten))
            if at + 4 * parts > end:
                raise Malformed("a Fetch is cut off")
            for _ in range(parts):
                request.forgotten.append((key, INT32.unpack_from(buffer, at)[0]))
                at += 4
            if flexible:
                at = skip_tags(buffer, at, end)
    if version >= RACK:
        rack, at = read_text(buffer, at, end, flexible)
        request.rack = (rack or b"").decode(errors="replace")
    if flexible:
        _read_tags(buffer, at, end, request)
    return request


def _read_key(buffer: bytearray, at: int, end: int, version: int) -> tuple[bytes, int]:
    if version >= TOPIC_IDS:
        if end - at < 16:
            raise Malformed("a Fetch is cut off")
        return bytes(buffer[at : at + 16]), at + 16
    key, at = read_text(buffer, at, end, version >= FLEXIBLE)
    if key is None:
        raise Malformed("a Fetch names no topic")
    return key, at


def _read_partition(buffer: bytearray, at: int, end: int, version: int, key: bytes) -> tuple[FetchPartition, int]:
    leader_epoch = last_epoch = -1
    layout = (
        _PARTITION_12
        if version >= LAST_EPOCH
        else _PARTITION_9
        if version >= LEADER_EPOCH
        else _PARTITION_5
        if version >= LOG_START
        else _PARTITION_4
    )
    after = at + layout.size
    if after > end:
        raise Malformed("a Fetch is cut off")
    if version >= LAST_EPOCH:
        index, leader_epoch, offset, last_epoch, _, max_bytes = layout.unpack_from(buffer, at)
        after = skip_tags(buffer, after, end)
    elif version >= LEADER_EPOCH:
        index, leader_epoch, offset, _, max_bytes = layout.unpack_from(buffer, at)
    elif version >= LOG_START:
        index, offset, _, max_bytes = layout.unpack_from(buffer, at)
    else:
        index, offset, max_bytes = layout.unpack_from(buffer, at)
    return FetchPartition(key, index, offset, max_bytes, leader_epoch, last_epoch), after


def _read_tags(buffer: bytearray, at: int, end: int, request: Request) -> None:
    """The request's own tagged fields: of these only the replica's number matters here."""
    count, at = read_varint(buffer, at, end)
    for _ in range(min(count, end - at)):
        tag, at = read_varint(buffer, at, end)
        size, at = read_varint(buffer, at, end)
        if at + size > end:
            raise Malformed("tagged fields run past the end of the request")
        if tag == 1 and request.version >= REPLICA_STATE and size >= 4:
            (request.replica,) = INT32.unpack_from(buffer, at)
        at += size


def encode(
    version: int,
    correlation: int,
    results: list[Result],
    *,
    throttle: int = 0,
    error: int = 0,
    session: int = 0,
    leader: Leader | None = None,
) -> list[Part]:
    """The parts of a whole reply, length and header included. Takes over the pinned ranges of the chunks. `leader`: of
    the partitions that this node does not lead."""
    flexible = version >= FLEXIBLE
    out = bytearray(8)
    parts: list[Part] = []
    total = 0
    named_leader = False
    out += b"\0" if flexible else b""
    out += INT32.pack(throttle)
    if version >= SESSIONS:
        out += INT16.pack(error) + INT32.pack(session)
    topics = _by_topic(results)
    write_count(out, len(topics), flexible)
    for group in topics:
        key = group[0].entry.key
        if version >= TOPIC_IDS:
            out += key
        else:
            write_text(out, key, flexible)
        write_count(out, len(group), flexible)
        for result in group:
            _write_fields(out, result, version)
            chunk = result.chunk
            write_count(out, chunk.size if chunk is not None else 0, flexible)
            if chunk is not None:
                for part in chunk.parts:
                    if isinstance(part, FileRange):
                        if part.length < SMALL and part.is_resident():
                            out += part.read()
                            part.release()
                            continue
                        length = part.length
                    else:
                        length = len(part)
                        if length < SMALL:
                            out += part
                            continue
                    if out:
                        total += len(out)
                        parts.append(out)
                        out = bytearray()
                    total += length
                    parts.append(part)
            if flexible:
                if result.diverging is not None:
                    out += _DIVERGING.pack(1, 0, 13, *result.diverging, 0)
                elif leader is not None and result.error in ELSEWHERE:
                    named_leader = True
                    out += CURRENT_LEADER.pack(1, 1, 9, *leader.current.values(), 0)
                else:
                    out += b"\0"
        if flexible:
            out += b"\0"
    if named_leader and leader is not None and version >= ENDPOINTS:
        write_endpoint(out, leader)
    elif flexible:
        out += b"\0"
    if out:
        total += len(out)
        parts.append(out)
    first = parts[0]
    assert isinstance(first, bytearray)
    INT32_PAIR.pack_into(first, 0, total - 4, correlation)
    return parts


def _by_topic(results: list[Result]) -> list[list[Result]]:
    """Neighbours of one topic together; the order stays."""
    topics: list[list[Result]] = []
    for result in results:
        if topics and topics[-1][0].entry.key == result.entry.key:
            topics[-1].append(result)
        else:
            topics.append([result])
    return topics


def _write_fields(out: bytearray, result: Result, version: int) -> None:
    """A partition up to its records."""
    index = result.entry.index
    if version >= LOG_START:
        out += _RESULT_5.pack(index, result.error, result.high, result.stable, result.start)
    else:
        out += _RESULT_4.pack(index, result.error, result.high, result.stable)
    aborted = result.aborted
    flexible = version >= FLEXIBLE
    write_count(out, -1 if aborted is None else len(aborted), flexible)
    for each in aborted or ():
        out += _ABORTED.pack(each.producer_id, each.first_offset)
        out += b"\0" if flexible else b""
    if version >= RACK:
        out += INT32.pack(result.preferred)
