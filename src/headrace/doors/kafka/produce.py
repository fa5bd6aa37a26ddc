"""Produce, versions 3 to 13: parsed where it lies, appended, answered in line.

A producer sends the same bytes over and over between the client id and the records: the same acks, topic and
partition. So a connection remembers those bytes of its last request for one partition (`Target`), and a request that
begins with them needs one comparison instead of a parse, and a prepared struct for its reply. Everything else takes
the general way below it.

Kafka's rules: exactly one batch of magic 2 for each partition; nothing is created by producing; errors are per
partition; acks 0 has no reply, and closes the connection if it fails. Acks 1 and all are the same here: the topic's
durability decides. Left out until there is a transaction coordinator: transactional batches are refused with
INVALID_TXN_STATE.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.errors import Malformed, Unanswerable, error_code
from headrace.doors.kafka.wire import (
    INT16,
    INT32,
    INT32_PAIR,
    read_count,
    read_text,
    read_varint,
    skip_tags,
    varint,
    write_varint,
)
from headrace.errors import CorruptBatch, HeadraceError, PartitionOffline, UnknownTopic
from headrace.log.batch import CONTROL, HEADER_BYTES, PREFIX_BYTES, TRANSACTIONAL
from headrace.log.interface import Done, Partition

if TYPE_CHECKING:
    from headrace.broker.metrics import TopicMetrics
    from headrace.doors.kafka.connection import Connection

OLDEST, NEWEST, FLEXIBLE = 3, 13, 9
TOPIC_IDS = 13
ERROR_MESSAGES = 8
LOG_START = 5
ZSTD_FROM = 7
ZSTD = 4

# Batches that a client may not write, or not yet.
SPECIAL = TRANSACTIONAL | CONTROL

INVALID_REQUIRED_ACKS = 21
INVALID_TXN_STATE = 48
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87
UNKNOWN_TOPIC_ID = 100

# Of a batch header: length, magic, attributes.
_BATCH = Struct(">8xi4xb4xh")
_ACKS_AND_TIMEOUT = Struct(">hi")
_RESULT = Struct(">ihqq")
_RESULT_AND_START = Struct(">ihqqq")


class Refused(Exception):
    """A batch that is not even offered to the log."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Target:
    """The one partition that a connection produces to, and everything about such a request that stays the same."""

    __slots__ = (
        "acks",
        "codec_max",
        "head",
        "key",
        "metrics",
        "pack",
        "partition",
        "prefix",
        "reply_bytes",
        "tail",
        "version",
        "with_start",
    )

    def __init__(
        self, version: int, prefix: bytes, acks: int, key: bytes, partition: Partition, metrics: TopicMetrics
    ) -> None:
        self.version = version
        self.prefix = prefix
        self.acks = acks
        self.codec_max = ZSTD if version >= ZSTD_FROM else ZSTD - 1
        self.partition = partition
        self.metrics = metrics
        head = bytearray()
        if version >= FLEXIBLE:
            head += b"\0\x02"
            if version < TOPIC_IDS:
                write_varint(head, len(key) + 1)
            head += key + b"\x02"
            tail = b"\x01\0\0\0\0\0\0\0\0"
        else:
            head += INT32.pack(1) + INT16.pack(len(key)) + key + INT32.pack(1)
            tail = (b"\0\0\0\0\xff\xff" if version >= ERROR_MESSAGES else b"") + b"\0\0\0\0"
        head += INT32.pack(partition.index)
        self.head = bytes(head)
        self.tail = tail
        self.key = key
        self.with_start = version >= LOG_START
        # Length, correlation id, up to the partition, error, base offset, append time, log start, the rest.
        reply = Struct(f">ii{len(head)}shqq{'q' if self.with_start else ''}{len(tail)}s")
        self.pack = reply.pack
        self.reply_bytes = reply.size - 4

    def reply(self, correlation: int, base_offset: int, append_time: int) -> bytes:
        """The reply of a request that went well."""
        if self.with_start:
            return self.pack(
                self.reply_bytes,
                correlation,
                self.head,
                0,
                base_offset,
                append_time,
                self.partition.start,
                self.tail,
            )
        return self.pack(self.reply_bytes, correlation, self.head, 0, base_offset, append_time, self.tail)


class Result:
    """What is answered for one partition."""

    __slots__ = ("append_time", "base_offset", "error", "index", "message", "start")

    def __init__(self, index: int, error: int = 0, message: str | None = None) -> None:
        self.index = index
        self.error = error
        self.message = message
        self.base_offset = -1
        self.append_time = -1
        self.start = -1

    def fail(self, error: BaseException) -> None:
        """Answer with an error instead."""
        self.error = int(error_code(error))
        self.message = str(error)
        self.base_offset = self.append_time = self.start = -1


# Keys are names or ids as they stand on the wire.
Results = list[tuple[bytes, list[Result]]]


class Pending:
    """A reply that waits: for its batches to be durable, and for the replies before it."""

    __slots__ = ("connection", "reply", "started", "waiting")

    def __init__(self, connection: Connection, started: float) -> None:
        self.connection = connection
        self.reply = b""
        self.started = started
        self.waiting = 0


class PendingAgain(Pending):
    """The reply of the fast way."""

    __slots__ = ("correlation", "target")

    def __init__(self, connection: Connection, started: float, target: Target, correlation: int) -> None:
        self.connection = connection
        self.reply = b""
        self.started = started
        self.waiting = 1
        self.target = target
        self.correlation = correlation

    def done(self, error: Exception | None) -> None:
        """The batch is durable, or never will be."""
        if error is not None:
            target = self.target
            result = Result(target.partition.index)
            result.fail(error)
            self.reply = encode(target.version, self.correlation, [(target.key, [result])], 0.0)
            self.connection.door.produce_metrics.failed(error_code(error).name)
        self.waiting = 0
        self.connection.settled()


class PendingResults(Pending):
    """The reply of the general way: made when its last batch is durable."""

    __slots__ = ("correlation", "results", "throttle", "version")

    def __init__(
        self,
        connection: Connection,
        started: float,
        version: int,
        correlation: int,
        results: Results,
        throttle: float,
    ) -> None:
        super().__init__(connection, started)
        self.version = version
        self.correlation = correlation
        self.results = results
        self.throttle = throttle

    def done(self, result: Result, error: Exception | None) -> None:
        """One of the batches is durable, or never will be."""
        if error is not None:
            result.fail(error)
            self.connection.door.produce_metrics.failed(error_code(error).name)
        self.waiting -= 1
        if not self.waiting:
            self.finish()
            self.connection.settled()

    def finish(self) -> None:
        """Make the reply, now that everything in it is known."""
        self.reply = encode(self.version, self.correlation, self.results, self.throttle)


class Request:
    """A parsed Produce."""

    __slots__ = ("acks", "topics", "version")

    def __init__(self, version: int, acks: int) -> None:
        self.version = version
        self.acks = acks
        # Key, and for each partition its index and where its records begin and end (-1: null).
        self.topics: list[tuple[bytes, list[tuple[int, int, int]]]] = []


def handle(
    connection: Connection,
    buffer: bytearray,
    position: int,
    body: int,
    stop: int,
    version: int,
    correlation: int,
    out: list[bytes],
    started: float,
) -> None:
    """Append one request. Its reply is then in `out` or in line; or the connection is held until its cold partitions
    are warm."""
    client_end = body
    if version >= FLEXIBLE:
        if version > NEWEST:
            raise Unanswerable(f"Produce version {version} is not answered here, {OLDEST} to {NEWEST} are")
        body = body + 1 if body < stop and not buffer[body] else skip_tags(buffer, body, stop)
    elif version < OLDEST:
        raise Unanswerable(f"Produce version {version} is not answered here, {OLDEST} to {NEWEST} are")
    door = connection.door
    door.produce_metrics.requests += 1
    target = connection.target
    if (
        target is not None
        and target.version == version
        and buffer.startswith(target.prefix, body, stop)
        and door.produce_quota is None
        and _again(connection, target, buffer, body + len(target.prefix), stop, correlation, out, started)
    ):
        return
    request = parse(buffer, body, stop, version, door.config.array_max)
    throttle = 0.0
    if door.produce_quota is not None:
        client = connection.client_id(buffer, position, client_end)
        throttle = door.produce_quota.charge(client, stop - position, started)
    cold = _cold(connection, request)
    if cold:
        # The receive buffer is everybody's: what must wait takes its bytes along.
        frame = bytearray(memoryview(buffer)[body:stop])
        connection.run(_append_when_warm(connection, cold, frame, version, correlation, throttle, started))
        return
    connection.target = _target(connection, buffer, body, request)
    _append(connection, buffer, request, correlation, out, throttle, started)


def _again(
    connection: Connection,
    target: Target,
    buffer: bytearray,
    at: int,
    stop: int,
    correlation: int,
    out: list[bytes],
    started: float,
) -> bool:
    """The fast way: the same request as before with other records. False: nothing was done, take the general way."""
    if target.version >= FLEXIBLE:
        size, at = read_varint(buffer, at, stop)
        end = at + size - 1
        # Nothing may follow but the empty tagged fields of partition, topic and request.
        if end + 3 != stop or not buffer.endswith(b"\0\0\0", end, stop):
            return False
    else:
        if at + 4 > stop:
            return False
        end = at + 4 + INT32.unpack_from(buffer, at)[0]
        at += 4
        if end != stop:
            return False
    partition = target.partition
    if end - at < HEADER_BYTES or not partition.loaded or partition.topic.deleted:
        return False
    length, magic, attributes = _BATCH.unpack_from(buffer, at)
    if length + PREFIX_BYTES != end - at or magic != 2 or attributes & SPECIAL or attributes & 7 > target.codec_max:
        return False
    batch = memoryview(buffer)[at:end]
    entry = PendingAgain(connection, started, target, correlation)
    try:
        appended = partition.append(batch, entry.done if target.acks else None)
    except HeadraceError:
        return False
    metrics = target.metrics
    metrics.batches_in += 1
    metrics.bytes_in += end - at
    if target.acks:
        reply = target.reply(correlation, appended.base_offset, appended.log_append_time)
        if appended.durable and not connection.in_line:
            out.append(reply)
        else:
            entry.reply = reply
            if appended.durable:
                entry.waiting = 0
            connection.enqueue(entry)
    return True


def _target(connection: Connection, buffer: bytearray, body: int, request: Request) -> Target | None:
    """What to remember of a request for one partition."""
    if len(request.topics) != 1 or len(request.topics[0][1]) != 1 or request.acks not in (-1, 0, 1):
        return None
    key, [(index, start, end)] = request.topics[0]
    topic = connection.door.topic(key, request.version >= TOPIC_IDS)
    if topic is None or not 0 <= index < len(topic.partitions) or start < 0:
        return None
    size = len(varint(end - start + 1)) if request.version >= FLEXIBLE else 4
    return Target(
        request.version,
        bytes(buffer[body : start - size]),
        request.acks,
        key,
        topic.partitions[index],
        connection.door.broker.metrics.topic(topic.name),
    )


def parse(buffer: bytearray, at: int, end: int, version: int, array_max: int) -> Request:
    """The request whose body begins at `at`. Raises Malformed."""
    flexible = version >= FLEXIBLE
    _, at = read_text(buffer, at, end, flexible)
    if end - at < 6:
        raise Malformed("a Produce is cut off")
    acks, _ = _ACKS_AND_TIMEOUT.unpack_from(buffer, at)
    request = Request(version, acks)
    count, at = read_count(buffer, at + 6, end, flexible, array_max)
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
        parts, at = read_count(buffer, at, end, flexible, array_max)
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


def _cold(connection: Connection, request: Request) -> list[Partition]:
    """The partitions of the request that must be loaded first."""
    cold = []
    for key, entries in request.topics:
        topic = connection.door.topic(key, request.version >= TOPIC_IDS)
        if topic is not None:
            for index, _, _ in entries:
                if 0 <= index < len(topic.partitions) and not topic.partitions[index].loaded:
                    cold.append(topic.partitions[index])
    return cold


async def _append_when_warm(
    connection: Connection,
    cold: list[Partition],
    frame: bytearray,
    version: int,
    correlation: int,
    throttle: float,
    started: float,
) -> None:
    for partition in cold:
        try:
            await partition.load()
        except HeadraceError:
            # Its append will say what is wrong.
            continue
    out: list[bytes] = []
    request = parse(frame, 0, len(frame), version, connection.door.config.array_max)
    _append(connection, frame, request, correlation, out, throttle, started)
    connection.flush(out)


def _append(
    connection: Connection,
    buffer: bytearray,
    request: Request,
    correlation: int,
    out: list[bytes],
    throttle: float,
    started: float,
) -> None:
    """The general way, on warm partitions."""
    version = request.version
    results: Results = []
    entry = PendingResults(connection, started, version, correlation, results, throttle)
    failed = False
    for key, partitions in request.topics:
        answers: list[Result] = []
        results.append((key, answers))
        topic = connection.door.topic(key, version >= TOPIC_IDS)
        for index, start, end in partitions:
            result = Result(index)
            answers.append(result)
            try:
                if request.acks not in (-1, 0, 1):
                    raise Refused(INVALID_REQUIRED_ACKS, f"acks={request.acks}: it must be 0, 1 or -1")
                if topic is None and version >= TOPIC_IDS:
                    raise Refused(UNKNOWN_TOPIC_ID, "there is no topic of that id")
                if topic is None or not 0 <= index < len(topic.partitions):
                    raise UnknownTopic(f"there is no partition {index} of such a topic")
                partition = topic.partitions[index]
                if not partition.loaded:
                    raise PartitionOffline(partition.offline or "the partition is not loaded")
                batch = memoryview(buffer)[start:end] if start >= 0 else memoryview(b"")
                _check(batch, version)
                appended = partition.append(batch, _done_of(entry, result) if request.acks else None)
            except Refused as error:
                failed = True
                result.error, result.message = error.code, str(error)
                connection.door.produce_metrics.failed(ErrorCode(error.code).name)
                continue
            except HeadraceError as error:
                failed = True
                result.fail(error)
                connection.door.produce_metrics.failed(error_code(error).name)
                continue
            result.base_offset = appended.base_offset
            result.append_time = appended.log_append_time
            result.start = partition.start
            if not appended.durable and request.acks:
                entry.waiting += 1
            metrics = connection.door.broker.metrics.topic(topic.name)
            metrics.batches_in += 1
            metrics.bytes_in += end - start
    if request.acks == 0:
        if failed:
            raise Unanswerable("a batch with acks=0 was refused")
    elif entry.waiting or connection.in_line:
        if not entry.waiting:
            entry.finish()
        connection.enqueue(entry)
    else:
        entry.finish()
        out.append(entry.reply)
    if throttle:
        connection.mute(throttle)


def _done_of(entry: PendingResults, result: Result) -> Done:
    """The callback of one batch among several."""
    return partial(entry.done, result)


def _check(batch: memoryview, version: int) -> None:
    """What Kafka asks of a client's records before its log sees them."""
    if not batch:
        raise Refused(INVALID_RECORD, "a Produce must have one record batch for each partition, and this one has none")
    if len(batch) < HEADER_BYTES:
        raise CorruptBatch(f"{len(batch)} bytes are too few for a record batch")
    length, magic, attributes = _BATCH.unpack_from(batch)
    if magic != 2:
        raise Refused(INVALID_RECORD, f"a batch of magic {magic}: only magic 2 is taken, use a newer client")
    if length + PREFIX_BYTES < len(batch):
        raise Refused(INVALID_RECORD, "a Produce must have exactly one record batch for each partition")
    if attributes & CONTROL:
        raise Refused(INVALID_RECORD, "clients may not write control batches")
    if attributes & TRANSACTIONAL:
        raise Refused(INVALID_TXN_STATE, "transactions are not served by this broker")
    if attributes & 7 == ZSTD and version < ZSTD_FROM:
        raise Refused(UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {ZSTD_FROM} at least, this is {version}")


def encode(version: int, correlation: int, results: Results, throttle: float) -> bytes:
    """A whole reply, length and header included."""
    flexible = version >= FLEXIBLE
    out = bytearray(8)
    if flexible:
        out += b"\0"
        write_varint(out, len(results) + 1)
    else:
        out += INT32.pack(len(results))
    for key, answers in results:
        if version >= TOPIC_IDS:
            out += key
        elif flexible:
            write_varint(out, len(key) + 1)
            out += key
        else:
            out += INT16.pack(len(key)) + key
        if flexible:
            write_varint(out, len(answers) + 1)
        else:
            out += INT32.pack(len(answers))
        for each in answers:
            if version >= LOG_START:
                out += _RESULT_AND_START.pack(each.index, each.error, each.base_offset, each.append_time, each.start)
            else:
                out += _RESULT.pack(each.index, each.error, each.base_offset, each.append_time)
            if flexible:
                message = None if each.message is None else each.message.encode()
                out += b"\x01"
                write_varint(out, 0 if message is None else len(message) + 1)
                out += message or b""
                out += b"\0"
            elif version >= ERROR_MESSAGES:
                message = None if each.message is None else each.message.encode()
                out += INT32.pack(0) + INT16.pack(-1 if message is None else len(message)) + (message or b"")
        if flexible:
            out += b"\0"
    out += INT32.pack(int(throttle * 1000))
    if flexible:
        out += b"\0"
    INT32_PAIR.pack_into(out, 0, len(out) - 4, correlation)
    return bytes(out)
