# cython: boundscheck=False, wraparound=False
"""Records into columns: batches of the log become the buffers of Arrow arrays, for the pipeline.

One idea: nothing is made per record. A batch is walked once, and each field that is wanted is copied to the end of its
column; what comes out are buffers in Arrow's layout (offsets, data, validity bits), which `headrace.pipeline` wraps
without copying. This module knows nothing of Arrow's library, and runs where that is not installed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import cython

from headrace.errors import InvalidRecords
from headrace.format.records import Buffer, open_batch

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.headrace.format.records import Reader
    from cython.cimports.libc.string import memcpy
else:
    from headrace.format.records import Reader

# The offsets of Arrow's plain binary columns are of 32 bits.
COLUMN_BYTES_MAX = cython.declare(cython.Py_ssize_t, 2147483647)
# Columns that are taken while earlier ones are still looked at: the block that is being sent, the one before it, whose
# name its sender lets go only then, and one for the code that works on them in between.
TAKEN_MAX: int = 3
# Below that, memory comes from where it went last.
REUSED_BYTES_MIN = cython.declare(cython.Py_ssize_t, 65536)
INT64_MICROS_MAX = cython.declare(cython.longlong, 9223372036854775)


class Binary(NamedTuple):
    """A column of byte strings."""

    validity: bytes
    offsets: memoryview
    data: memoryview
    nulls: int


class ColumnBuffers(NamedTuple):
    """The columns of some records; those that were not wanted have no rows."""

    rows: int
    offset: memoryview
    """int64."""
    timestamp: memoryview
    """int64, microseconds."""
    timestamp_type: memoryview
    """int32: 0 the producer's, 1 the log's."""
    key: Binary
    value: Binary
    header_lists: memoryview
    """int32: where each record's headers begin in the two columns below."""
    header_keys: Binary
    header_values: Binary


@cython.final
@cython.cclass
class ByteBuilder:
    """A buffer that grows at its end. It begins as large as it was taken last, and where an earlier one was that
    has no view any more: growing is to copy, and memory that is touched for the first time costs more than what is done
    with it."""

    buffer: bytearray
    taken: list  # type: ignore[type-arg]
    """Those that were taken last, the oldest first."""
    at: cython.p_uchar
    position: cython.Py_ssize_t
    size: cython.Py_ssize_t

    def __init__(self) -> None:
        self.taken = []
        self.begin(4096)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def begin(self, size: cython.Py_ssize_t) -> cython.int:
        self.buffer = bytearray()
        for index in range(len(self.taken)):
            if is_free(self.taken[index]):
                self.buffer = self.taken.pop(index)
                break
        self.position = 0
        self.resize(size)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def resize(self, size: cython.Py_ssize_t) -> cython.int:
        if cython.compiled:
            # Not cleared: all of it is written before it is taken.
            PyByteArray_Resize(self.buffer, size)
            self.at = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.buffer))
        else:
            self.buffer.extend(bytes(max(0, size - len(self.buffer))))
            self.at = self.buffer
        self.size = size
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def reserve(self, count: cython.Py_ssize_t) -> cython.int:
        """Make room for `count` bytes more."""
        if count > self.size - self.position:
            self.resize(2 * self.size + count)
        return 0

    # Arrow's layout is the machine's own. One function a width, so that each is a single store.

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def int64(self, value: cython.longlong) -> cython.int:
        if self.size - self.position < 8:
            self.reserve(8)
        if cython.compiled:
            cython.cast(cython.pointer(cython.longlong), self.at + self.position)[0] = value
        else:
            self.buffer[self.position : self.position + 8] = value.to_bytes(8, "little", signed=True)
        self.position += 8
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def int32(self, value: cython.longlong) -> cython.int:
        if self.size - self.position < 4:
            self.reserve(4)
        if cython.compiled:
            cython.cast(cython.p_int, self.at + self.position)[0] = cython.cast(cython.int, value)
        else:
            self.buffer[self.position : self.position + 4] = value.to_bytes(4, "little", signed=True)
        self.position += 4
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def flag(self, value: cython.bint) -> cython.int:
        """A byte: 1 or 0."""
        if self.size == self.position:
            self.reserve(1)
        self.at[self.position] = 1 if value else 0
        self.position += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def copy(self, source: cython.p_const_uchar, start: cython.Py_ssize_t, count: cython.Py_ssize_t) -> cython.int:
        if self.size - self.position < count:
            self.reserve(count)
        if cython.compiled:
            memcpy(self.at + self.position, source + start, count)
        else:
            self.buffer[self.position : self.position + count] = source[start : start + count]
        self.position += count
        return 0

    @cython.cfunc
    def take(self) -> memoryview:
        """What was written; the buffer begins anew."""
        size: cython.Py_ssize_t = self.position
        taken: memoryview = memoryview(self.buffer)[:size]
        if size >= REUSED_BYTES_MIN:
            if len(self.taken) == TAKEN_MAX:
                self.taken.pop(0)
            self.taken.append(self.buffer)
        self.begin(size + (size >> 3) + 64)
        return taken


@cython.cfunc
def is_free(buffer: bytearray) -> cython.bint:
    """Whether there is no view of it, nor a column of Arrow's over it: only then can it change its size."""
    try:
        # Shorter, because to make it longer could move it.
        buffer.pop()
    except BufferError:
        return False
    return True


@cython.final
@cython.cclass
class BinaryBuilder:
    """A column of byte strings under way."""

    offsets: ByteBuilder
    data: ByteBuilder
    valid: ByteBuilder
    nulls: cython.Py_ssize_t

    def __init__(self) -> None:
        self.offsets = ByteBuilder()
        self.data = ByteBuilder()
        self.valid = ByteBuilder()
        self.nulls = 0
        self.offsets.int32(0)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def add(self, source: cython.p_const_uchar, start: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
        """Append a byte string; a length of -1 is a null."""
        if length > 0:
            if length > COLUMN_BYTES_MAX - self.data.position:
                raise InvalidRecords("a column of one block is larger than 2 GiB: take fewer bytes at once")
            self.data.copy(source, start, length)
        self.valid.flag(length >= 0)
        if length < 0:
            self.nulls += 1
        self.offsets.int32(self.data.position)
        return 0

    @cython.cfunc
    def take(self) -> Binary:
        nulls: cython.Py_ssize_t = self.nulls
        flags: memoryview = self.valid.take()
        self.nulls = 0
        taken = Binary(bits(bytes(flags)) if nulls else b"", self.offsets.take(), self.data.take(), nulls)
        self.offsets.int32(0)
        return taken


@cython.cfunc
def bits(flags: bytes) -> bytes:
    """A bit for each byte that is not 0, the lowest first."""
    count: cython.Py_ssize_t = len(flags)
    out: bytearray = bytearray((count + 7) // 8)
    source: cython.p_const_uchar = flags
    target: cython.p_uchar = out
    index: cython.Py_ssize_t
    for index in range(count):
        if source[index]:
            target[index >> 3] |= 1 << (index & 7)
    return bytes(out)


@cython.final
@cython.cclass
class Columns:
    """The columns of a partition's records under way."""

    rows: cython.Py_ssize_t
    wants_offset: cython.bint
    wants_timestamp: cython.bint
    wants_type: cython.bint
    wants_key: cython.bint
    wants_value: cython.bint
    wants_headers: cython.bint
    offset: ByteBuilder
    timestamp: ByteBuilder
    timestamp_type: ByteBuilder
    key: BinaryBuilder
    value: BinaryBuilder
    header_lists: ByteBuilder
    header_keys: BinaryBuilder
    header_values: BinaryBuilder
    headers: cython.Py_ssize_t

    def __init__(self, wanted: Collection[str]) -> None:
        """`wanted` names the columns, as the source calls them; names that are none of a record's fields are passed
        over."""
        self.rows = 0
        self.headers = 0
        self.wants_offset = "offset" in wanted
        self.wants_timestamp = "timestamp" in wanted
        self.wants_type = "timestampType" in wanted
        self.wants_key = "key" in wanted
        self.wants_value = "value" in wanted
        self.wants_headers = "headers" in wanted
        self.offset = ByteBuilder()
        self.timestamp = ByteBuilder()
        self.timestamp_type = ByteBuilder()
        self.key = BinaryBuilder()
        self.value = BinaryBuilder()
        self.header_lists = ByteBuilder()
        self.header_keys = BinaryBuilder()
        self.header_values = BinaryBuilder()
        self.header_lists.int32(0)

    @property
    def count(self) -> int:
        """Records in the columns."""
        return self.rows

    @property
    def size(self) -> int:
        """Bytes of their keys and values, where those are wanted."""
        return self.key.data.position + self.value.data.position

    def add(
        self,
        batch: Buffer,
        first: cython.longlong,
        last: cython.longlong,
        since: cython.longlong,
        until: cython.longlong,
        unpacked_max: int,
    ) -> None:
        """Append the records of a whole batch with offsets from `first` to before `last` and times (ms) from `since` to
        before `until`."""
        reader: Reader = open_batch(batch, unpacked_max)
        offset: cython.longlong
        stamp: cython.longlong
        kind: cython.longlong = 1 if reader.stamped else 0
        while reader.next():
            offset = reader.base_offset + reader.offset_delta
            if offset < first:
                continue
            if offset >= last:
                break
            stamp = reader.timestamp
            if stamp < since or stamp >= until:
                continue
            if self.wants_timestamp:
                # Nanoseconds that were taken for milliseconds: the latest time that the column can have.
                if stamp > INT64_MICROS_MAX:
                    stamp = INT64_MICROS_MAX
                elif stamp < -INT64_MICROS_MAX:
                    stamp = -INT64_MICROS_MAX
                self.timestamp.int64(stamp * 1000)
            if self.wants_offset:
                self.offset.int64(offset)
            if self.wants_type:
                self.timestamp_type.int32(kind)
            if self.wants_key:
                self.key.add(reader.bytes_at, reader.key_at, reader.key_length)
            if self.wants_value:
                self.value.add(reader.bytes_at, reader.value_at, reader.value_length)
            if self.wants_headers:
                self.add_headers(reader)
            self.rows += 1

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def add_headers(self, reader: Reader) -> cython.int:
        position: cython.Py_ssize_t = reader.position
        number: cython.Py_ssize_t = reader.header_count
        length: cython.Py_ssize_t
        self.headers += number
        reader.position = reader.headers_at
        while number > 0:
            length = reader.field(reader.record_end)
            self.header_keys.add(reader.bytes_at, reader.position, length)
            reader.position += length
            length = reader.field(reader.record_end)
            self.header_values.add(reader.bytes_at, reader.position, length)
            if length > 0:
                reader.position += length
            number -= 1
        reader.position = position
        self.header_lists.int32(self.headers)
        return 0

    def take(self) -> ColumnBuffers:
        """The columns so far; they begin anew."""
        rows: cython.Py_ssize_t = self.rows
        self.rows = 0
        self.headers = 0
        taken = ColumnBuffers(
            rows,
            self.offset.take(),
            self.timestamp.take(),
            self.timestamp_type.take(),
            self.key.take(),
            self.value.take(),
            self.header_lists.take(),
            self.header_keys.take(),
            self.header_values.take(),
        )
        self.header_lists.int32(0)
        return taken
