"""What Produce requests of one kind have in common, and their replies, which wait in line until batches are durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.publish import Admission
from headrace.broker.quotas import Meter
from headrace.doors.kafka.errors import error_code
from headrace.doors.kafka.placement import other_leader
from headrace.doors.kafka.produce_cache import CachedRequest
from headrace.doors.kafka.produce_wire import ERROR_MESSAGES, FLEXIBLE, LOG_START, TOPIC_IDS, Result, Results, encode
from headrace.doors.kafka.wire import INT16, INT32
from headrace.format.varint import write_varint
from headrace.log.interface import Partition

if TYPE_CHECKING:
    from headrace.doors.kafka.connection import Connection

ZSTD_FROM = 7
ZSTD = 4


class CachedProduce(CachedRequest):
    """One partition, as some client's requests name it, and everything about such a request that stays the same."""

    __slots__ = ("acks", "admission", "is_local", "key", "meter", "partition", "timeout_ms")

    def __init__(
        self,
        version: int,
        prefix: bytes,
        size_max: int,
        acks: int,
        key: bytes,
        partition: Partition,
        admission: Admission,
        meter: Meter | None,
        timeout_ms: int,
        is_local: bool,
    ) -> None:
        """`meter` is the client's, for as long as the admission is valid. `is_local`: its requests are answered once
        this node has them, committed or not."""
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.is_local = is_local
        self.key = key
        self.partition = partition
        self.admission = admission
        self.meter = meter
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
        codec_max = ZSTD if version >= ZSTD_FROM else ZSTD - 1
        super().__init__(version, prefix, codec_max, size_max, bytes(head), tail, version >= LOG_START)

    def throttled(self, reply: bytes, seconds: float) -> bytes:
        """The same reply, telling the client how long it is muted."""
        tail = b"\0" if self.version >= FLEXIBLE else b""
        return reply[: -len(tail) - INT32.size] + INT32.pack(int(seconds * 1000)) + tail


class Pending:
    """A reply that waits: for its batches to be durable, and for the replies before it."""

    __slots__ = ("connection", "reply", "started", "waiting")

    connection: Connection
    reply: bytes
    started: float
    waiting: int

    @property
    def timeout_ms(self) -> int:
        """How long the client lets its batches wait to be committed."""
        raise NotImplementedError

    def expire(self, error: Exception) -> None:
        """They have waited too long: answer with an error. Whatever becomes of them later changes nothing."""
        raise NotImplementedError

    def encode(self, results: Results, version: int, correlation: int, throttle: float) -> bytes:
        """A reply that may have errors."""
        connection = self.connection
        leader = other_leader(connection.door.broker, connection.listener.name)
        return encode(version, correlation, results, throttle, leader)


class PendingCached(Pending):
    """The reply of a hit in the request cache, whose fields are set when it must wait. It serves one request after the
    other."""

    __slots__ = ("cached", "correlation", "has_expired", "throttle")

    correlation: int
    cached: CachedProduce
    throttle: float

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.has_expired = False

    @property
    def timeout_ms(self) -> int:
        return self.cached.timeout_ms

    def expire(self, error: Exception) -> None:
        # It never serves another request: its callback is still to come.
        self.has_expired = True
        self._fail(error)
        self.waiting = 0
        self.connection.settled(self)

    def _fail(self, error: Exception) -> None:
        cached = self.cached
        result = Result(cached.partition.index)
        result.fail(error)
        self.reply = self.encode([(cached.key, [result])], cached.version, self.correlation, self.throttle)
        self.connection.door.produce_metrics.failed(error_code(error).name)

    def done(self, error: Exception | None) -> None:
        """The batch is durable, or never will be."""
        if self.has_expired:
            return
        if error is not None:
            self._fail(error)
        self.waiting = 0
        if self.connection.settled(self):
            self.connection.entry = self


class PendingResults(Pending):
    """The reply of the general way: made when its last batch is durable."""

    __slots__ = ("_open", "_timeout_ms", "correlation", "results", "throttle", "version")

    def __init__(
        self,
        connection: Connection,
        started: float,
        version: int,
        correlation: int,
        results: Results,
        throttle: float,
        timeout_ms: int,
    ) -> None:
        self.connection = connection
        self._timeout_ms = timeout_ms
        # Results of batches that wait.
        self._open: set[Result] = set()
        self.reply = b""
        self.started = started
        self.waiting = 0
        self.version = version
        self.correlation = correlation
        self.results = results
        self.throttle = throttle

    @property
    def timeout_ms(self) -> int:
        return self._timeout_ms

    def wait_for(self, result: Result) -> None:
        """One of the batches is not durable yet."""
        self._open.add(result)
        self.waiting += 1

    def expire(self, error: Exception) -> None:
        for result in self._open:
            result.fail(error)
            self.connection.door.produce_metrics.failed(error_code(error).name)
        self._open.clear()
        self.waiting = 0
        self.finish()
        self.connection.settled(self)

    def done(self, result: Result, error: Exception | None) -> None:
        """One of the batches is durable, or never will be."""
        if result not in self._open:
            # It has expired.
            return
        self._open.discard(result)
        if error is not None:
            result.fail(error)
            self.connection.door.produce_metrics.failed(error_code(error).name)
        self.waiting -= 1
        if not self.waiting:
            self.finish()
            self.connection.settled(self)

    def finish(self) -> None:
        """Make the reply, now that everything in it is known."""
        self.reply = self.encode(self.results, self.version, self.correlation, self.throttle)
