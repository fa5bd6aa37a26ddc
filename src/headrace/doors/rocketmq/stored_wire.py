# cython: boundscheck=False, wraparound=False
"""Messages out: the records of a batch as RocketMQ's commit log has them, in one piece.

A pull hands over a whole batch and gets back what it answers. Nearly all records have headers that become properties
as they are; one that has something else (a header twice, a value that is no text) is handed to the caller, who knows
every rule (`headrace.doors.rocketmq.records`), and comes back as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any
from zlib import crc32

import cython

from headrace.format.records import Buffer, Record, open_batch

if cython.compiled:
    from cython.cimports.headrace.format.records import Reader
    from cython.cimports.libc.string import memcmp, memcpy
else:
    from headrace.format.records import Reader

# Size, magic, CRC of the body, queue, flag, offset in the queue, physical offset, system flag, time of birth.
HEAD_BYTES = cython.declare(cython.Py_ssize_t, 48)
MAGIC_V1 = cython.declare(cython.longlong, 0xDAA320A7)
MAGIC_V2 = cython.declare(cython.longlong, 0xDAA320AB)
TOPIC_BYTES_V1 = cython.declare(cython.Py_ssize_t, 127)
PROPERTIES_BYTES_MAX = cython.declare(cython.Py_ssize_t, 32767)
HEADERS_MAX = cython.declare(cython.Py_ssize_t, 64)
DIGITS_MAX = cython.declare(cython.Py_ssize_t, 18)
INT31_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
# Bits of the system flag: no body is compressed, and which of the hosts are of IPv6 is for the hosts to say.
CLEARED = cython.declare(cython.longlong, 0x731)
BORN_HOST_V6 = cython.declare(cython.longlong, 0x10)
STORE_HOST_V6 = cython.declare(cython.longlong, 0x20)

TAGS = b"TAGS"
REGION = b"MSG_REGION"
TRACE_ON = b"TRACE_ON"
# Behind the properties of each message.
ADDED = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
OWN = b"rocketmq-"
BORN_MS = b"rocketmq-born-time"
BORN_HOST = b"rocketmq-born-host"
FLAG = b"rocketmq-flag"
SYS_FLAG = b"rocketmq-sys-flag"
RECONSUME_TIMES = b"rocketmq-reconsume-times"


@cython.cclass
class Origin:
    """What the messages of a queue have in common."""

    def __init__(
        self,
        topic: bytes,
        queue_id: int,
        physical_shift: int,
        store_host: bytes,
        read_host: Callable[[bytes], bytes],
        hash_tag: Callable[[str], int],
        encode_slowly: Callable[[Record], bytes],
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.physical_shift = physical_shift
        """Between the offset in the queue and the physical one."""
        self.store_host = store_host
        """Address and port, as messages have it."""
        self.read_host = read_host
        """The same of what the header of a record says; empty where that is none."""
        self.hash_tag = hash_tag
        self.encode_slowly = encode_slowly
        """A record as a message, whatever headers it has."""


@cython.cclass
class Encoder:
    """Walks the records of one batch."""

    def __init__(self, origin: Origin, reader: Reader) -> None:
        self.origin = origin
        self.reader = reader
        self.out = bytearray()
        self.size = 0
        if not cython.compiled:
            self.name_at: Any = [0] * 64
            self.name_bytes: Any = [0] * 64
            self.value_at: Any = [0] * 64
            self.value_bytes: Any = [0] * 64

    @cython.cfunc
    @cython.exceptval(-1)
    def read_headers(self) -> cython.bint:
        """Look at the headers of the record on which the reader stands. False: one is not like nearly all others."""
        reader: Reader = self.reader
        at: cython.p_const_uchar = reader.bytes_at
        left: cython.Py_ssize_t = reader.header_count
        name: cython.Py_ssize_t
        length: cython.Py_ssize_t
        value: cython.Py_ssize_t
        size: cython.Py_ssize_t
        number: cython.Py_ssize_t
        kind: cython.int
        self.count = 0
        self.tag = -1
        self.properties_bytes = len(ADDED)
        self.born_ms = reader.timestamp
        self.flag = self.sys_flag = self.reconsume_times = 0
        self.born_host = self.origin.store_host
        if left > HEADERS_MAX:
            return False
        reader.position = reader.headers_at
        while left > 0:
            left -= 1
            length = reader.field(reader.record_end)
            name = reader.position
            reader.position += length
            size = max(reader.field(reader.record_end), 0)
            value = reader.position
            reader.position += size
            if length > 9 and is_equal(at, name, 9, OWN):
                kind = self.read_own(name, length, value, size)
                if kind < 0:
                    return False
                if kind:
                    continue
            kind = kind_of(at, name, length)
            if kind == SEPARATED:
                continue
            if kind != PLAIN:
                return False
            kind = kind_of(at, value, size)
            if kind == SEPARATED or (kind == WIDE and not is_text(reader.body[value : value + size])):
                return False
            for number in range(self.count):
                if length == self.name_bytes[number] and is_same(at, name, self.name_at[number], length):
                    return False
            if length == 4 and is_equal(at, name, 4, TAGS):
                self.tag = self.count
            if (length == 10 and is_equal(at, name, 10, REGION)) or (length == 8 and is_equal(at, name, 8, TRACE_ON)):
                return False
            self.name_at[self.count] = name
            self.name_bytes[self.count] = length
            self.value_at[self.count] = value
            self.value_bytes[self.count] = size
            self.count += 1
            self.properties_bytes += length + size + 2
        reader.position = reader.record_end
        return self.properties_bytes <= PROPERTIES_BYTES_MAX

    @cython.cfunc
    @cython.exceptval(-2)
    def read_own(
        self, name: cython.Py_ssize_t, length: cython.Py_ssize_t, value: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.int:
        """Take a header that is no property: 1. 0: it is one after all; -1: it is not like nearly all others."""
        at: cython.p_const_uchar = self.reader.bytes_at
        number: cython.longlong
        if length == 18 and is_equal(at, name, 18, BORN_HOST):
            self.born_host = self.origin.read_host(self.reader.body[value : value + size]) or self.origin.store_host
            return 1
        number = number_of(at, value, size)
        if length == 18 and is_equal(at, name, 18, BORN_MS):
            self.born_ms = number
        elif length == 13 and is_equal(at, name, 13, FLAG):
            self.flag = number if number <= INT31_MAX else 0
        elif length == 17 and is_equal(at, name, 17, SYS_FLAG):
            self.sys_flag = number if number <= INT31_MAX >> 1 else 0
        elif length == 24 and is_equal(at, name, 24, RECONSUME_TIMES):
            self.reconsume_times = number if number <= INT31_MAX else 0
        else:
            return 0
        return 1 if number >= 0 else -1

    @cython.cfunc
    @cython.exceptval(-1)
    def has_tag(self, tags: Any) -> cython.bint:
        """Whether the tag of the record has one of the hashes."""
        at: cython.p_const_uchar = self.reader.bytes_at
        size: cython.Py_ssize_t
        start: cython.Py_ssize_t
        number: cython.Py_ssize_t
        total: cython.uint = 0
        signed: cython.int
        if self.tag < 0 or self.value_bytes[self.tag] == 0:
            return False
        start = self.value_at[self.tag]
        size = self.value_bytes[self.tag]
        for number in range(start, start + size):
            if at[number] >= 0x80:
                return self.origin.hash_tag(self.reader.body[start : start + size].decode()) in tags
            total = (total * 31 + at[number]) & 0xFFFFFFFF
        if cython.compiled:
            signed = cython.cast(cython.int, total)
        else:
            signed = total - (1 << 32) if total >= 1 << 31 else total
        return signed in tags

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self) -> cython.int:
        """Write the record as a message."""
        reader: Reader = self.reader
        origin: Origin = self.origin
        topic: bytes = origin.topic
        body: cython.Py_ssize_t = max(reader.value_length, 0)
        is_long: cython.bint = len(topic) > TOPIC_BYTES_V1
        born: cython.Py_ssize_t = len(self.born_host)
        store: cython.Py_ssize_t = len(origin.store_host)
        topic_bytes: cython.Py_ssize_t = len(topic)
        start: cython.Py_ssize_t = self.size
        offset: cython.longlong = reader.base_offset + reader.offset_delta
        sys_flag: cython.longlong = self.sys_flag & ~CLEARED
        at: cython.Py_ssize_t
        number: cython.Py_ssize_t
        total: cython.Py_ssize_t = HEAD_BYTES + born + 8 + store + 16 + body + topic_bytes + self.properties_bytes + 3
        if is_long:
            total += 1
        self.reserve(total)
        into: cython.p_uchar = self.into
        if born == 20:
            sys_flag |= BORN_HOST_V6
        if store == 20:
            sys_flag |= STORE_HOST_V6
        put(into, start, 4, total)
        put(into, start + 4, 4, MAGIC_V2 if is_long else MAGIC_V1)
        put(into, start + 8, 4, crc32(reader.body[reader.value_at : reader.value_at + body]) & INT31_MAX)
        put(into, start + 12, 4, origin.queue_id)
        put(into, start + 16, 4, self.flag)
        put(into, start + 20, 8, offset)
        put(into, start + 28, 8, offset + origin.physical_shift)
        put(into, start + 36, 4, sys_flag)
        put(into, start + 40, 8, self.born_ms)
        at = copy(into, start + 48, self.born_host, 0, born)
        put(into, at, 8, reader.timestamp)
        at = copy(into, at + 8, origin.store_host, 0, store)
        put(into, at, 4, self.reconsume_times)
        put(into, at + 4, 8, 0)
        put(into, at + 12, 4, body)
        at = copy(into, at + 16, reader.body, reader.value_at, body)
        if is_long:
            put(into, at, 2, topic_bytes)
            at += 2
        else:
            into[at] = topic_bytes
            at += 1
        at = copy(into, at, topic, 0, topic_bytes)
        put(into, at, 2, self.properties_bytes)
        at += 2
        for number in range(self.count):
            at = copy(into, at, reader.body, self.name_at[number], self.name_bytes[number])
            into[at] = 1
            at = copy(into, at + 1, reader.body, self.value_at[number], self.value_bytes[number])
            into[at] = 2
            at += 1
        at = copy(into, at, ADDED, 0, len(ADDED))
        self.size = at
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def write_slowly(self, accepts: Any) -> cython.bint:
        """Write the record by the rules for any record, if it is accepted; whether it is."""
        reader: Reader = self.reader
        record = (
            *(reader.base_offset + reader.offset_delta, reader.timestamp),
            *(reader.key(), reader.value(), reader.headers()),
        )
        reader.position = reader.record_end
        if not accepts(record):
            return False
        message: bytes = self.origin.encode_slowly(record)
        self.reserve(len(message))
        self.size = copy(self.into, self.size, message, 0, len(message))
        return True

    @cython.cfunc
    @cython.exceptval(-1)
    def reserve(self, count: cython.Py_ssize_t) -> cython.int:
        """Have room for so many bytes more."""
        if self.size + count > len(self.out):
            self.out.extend(bytes(count + len(self.out)))
            self.into = self.out
        return 0

    @cython.cfunc
    def take(self, size: cython.Py_ssize_t) -> bytearray:
        """So much of what was written."""
        del self.out[size:]
        return self.out


PLAIN = cython.declare(cython.int, 0)
WIDE = cython.declare(cython.int, 1)
SEPARATED = cython.declare(cython.int, 2)


@cython.cfunc
@cython.exceptval(check=False)
def kind_of(at: cython.p_const_uchar, start: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
    """Whether bytes have one that separates properties, or else one that is not of ASCII."""
    kind: cython.int = PLAIN
    number: cython.Py_ssize_t
    for number in range(start, start + length):
        if at[number] >= 0x80:
            kind = WIDE
        elif at[number] == 1 or at[number] == 2:
            return SEPARATED
    return kind


@cython.cfunc
@cython.exceptval(check=False)
def is_equal(at: cython.p_const_uchar, start: cython.Py_ssize_t, length: cython.Py_ssize_t, text: bytes) -> cython.bint:
    """Whether the bytes are those."""
    letters: cython.p_const_uchar = text
    if cython.compiled:
        return memcmp(at + start, letters, length) == 0
    else:
        return at[start : start + length] == letters


@cython.cfunc
@cython.exceptval(check=False)
def is_same(
    at: cython.p_const_uchar, start: cython.Py_ssize_t, other: cython.Py_ssize_t, length: cython.Py_ssize_t
) -> cython.bint:
    """Whether the bytes at two places are equal."""
    if cython.compiled:
        return memcmp(at + start, at + other, length) == 0
    else:
        return at[start : start + length] == at[other : other + length]


@cython.cfunc
@cython.exceptval(check=False)
def number_of(at: cython.p_const_uchar, start: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.longlong:
    """A number as it is nearly always written; -1 where it is something else."""
    value: cython.longlong = 0
    number: cython.Py_ssize_t
    if length == 0 or length > DIGITS_MAX:
        return -1
    for number in range(start, start + length):
        if at[number] < 0x30 or at[number] > 0x39:
            return -1
        value = value * 10 + (at[number] - 0x30)
    return value


@cython.cfunc
@cython.exceptval(-1)
def is_text(content: bytes) -> cython.bint:
    """Whether it is UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def put(
    into: cython.p_uchar, position: cython.Py_ssize_t, size: cython.Py_ssize_t, value: cython.longlong
) -> cython.void:
    """Write the lower `size` bytes of a number, big-endian."""
    while size > 0:
        size -= 1
        into[position + size] = value & 0xFF
        value >>= 8


@cython.cfunc
@cython.exceptval(check=False)
def copy(
    into: cython.p_uchar, position: cython.Py_ssize_t, data: bytes, start: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write a part of `data`; the position behind it."""
    if cython.compiled:
        memcpy(into + position, cython.cast(cython.p_const_uchar, data) + start, size)
    else:
        into[position : position + size] = data[start : start + size]
    return position + size


def encode(
    batch: Buffer,
    max_bytes: int,
    origin: Origin,
    offset: int,
    tags: Set[int] | None,
    accepts: Callable[[Record], bool],
    count_max: int,
    looks_max: int,
    bytes_max: int,
    is_first: bool,
) -> tuple[bytearray, int, int, int, bool]:
    """The messages of a batch from an offset on that have one of the tags (None: all), one behind the other; how many
    they are, how many records were looked at, where to go on, and whether that is within the batch because one of the
    bounds is reached. The first message may be larger than `bytes_max`, if it `is_first`. `accepts` says the same as
    `tags`, of records that are not like nearly all others.

    Raises InvalidRecords where a record of those that were looked at cannot be read."""
    reader: Reader = open_batch(batch, max_bytes)
    encoder: Encoder = Encoder(origin, reader)
    start: cython.longlong = offset
    bound: cython.Py_ssize_t = bytes_max
    counts: cython.Py_ssize_t = count_max
    looks: cython.Py_ssize_t = looks_max
    count: cython.Py_ssize_t = 0
    looked: cython.Py_ssize_t = 0
    before: cython.Py_ssize_t
    is_wanted: cython.bint
    # Without gaps the place of an offset is known.
    if reader.count == reader.last_offset_delta + 1:
        while reader.base_offset + reader.index < start and reader.skip():
            pass
    while reader.next():
        if reader.base_offset + reader.offset_delta < start:
            continue
        before = encoder.size
        if encoder.read_headers():
            is_wanted = tags is None or encoder.has_tag(tags)
            if is_wanted:
                encoder.write()
        else:
            is_wanted = encoder.write_slowly(accepts)
        if is_wanted:
            if encoder.size > bound and (before or not is_first):
                return encoder.take(before), count, looked, reader.base_offset + reader.offset_delta, True
            count += 1
        looked += 1
        if count >= counts or looked >= looks:
            return encoder.take(encoder.size), count, looked, reader.base_offset + reader.offset_delta + 1, True
    return encoder.take(encoder.size), count, looked, reader.base_offset + reader.last_offset_delta + 1, False
