# cython: boundscheck=False, wraparound=False
"""Messages in: the frame of a send into the ends of its records, and their offsets into its answer.

One idea: nearly all sends are alike. Java's clients write SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE with a header of JSON
in one order, and nearly none has anything but properties that become headers as they are. Such a frame is read once,
where it lies, and comes out as what the log stores: the end of each record, from its key on. Whatever is not alike (an
order, an escape, a field or a property with a meaning of its own) is left alone: `parse` returns None, and the frame
goes the way of every other request, which also reports what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cython

from headrace.format.batch import HEADER_BYTES, new_header
from headrace.format.head import seal

if cython.compiled:
    from cython.cimports.headrace.format.records import Writer, varint_bytes
    from cython.cimports.libc.string import memcmp, memcpy
else:
    from headrace.format.records import Writer, varint_bytes

# Of a frame: its length, how the header is written, and the header's length in three bytes.
KIND_AT = cython.declare(cython.Py_ssize_t, 4)
HEAD_BYTES = cython.declare(cython.Py_ssize_t, 8)
# Of a message in a batch: size, magic, CRC of the body, flag, length of the body.
BATCHED_BYTES = cython.declare(cython.Py_ssize_t, 20)
# A longer batch holds the loop for too long: it is read in pieces, elsewhere.
BATCH_BYTES_MAX = cython.declare(cython.Py_ssize_t, 131072)
PROPERTIES_BYTES_MAX = cython.declare(cython.Py_ssize_t, 32767)
# More properties than this are not compared one by one.
PROPERTIES_MAX = cython.declare(cython.Py_ssize_t, 48)
DIGITS_MAX = cython.declare(cython.Py_ssize_t, 18)
INT32_MAX = cython.declare(cython.longlong, 2147483647)
UINT32_MAX = cython.declare(cython.longlong, 4294967295)
# Bits of the system flag that ask for more than an append: compression, and the state of a transaction.
SPECIAL_FLAGS = cython.declare(cython.longlong, 0x70D)
ONE_WAY = cython.declare(cython.longlong, 2)

NAME_VALUE = cython.declare(cython.uchar, 1)
PROPERTY = cython.declare(cython.uchar, 2)
QUOTE = cython.declare(cython.uchar, 0x22)
BACKSLASH = cython.declare(cython.uchar, 0x5C)

# A header up to its fields, and behind them.
BEGIN = b'{"code":3'
FIELDS = b'0,"extFields":{'
FLAG = b',"flag":'
LANGUAGE = b',"language":"'
OPAQUE = b',"opaque":'
VERSION = b',"serializeTypeCurrentRPC":"JSON","version":'

# Properties that ask for more than an append.
SPECIAL: tuple[bytes, ...] = (
    *(b"DELAY", b"TRAN_MSG", b"REPLY_TO_CLIENT", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS"),
    *(b"_SYS_MSG_PRIORITY_", b"headrace-dedup-id"),
)
OWN = b"rocketmq-"
SHARDING_KEY = b"__SHARDINGKEY"
UNIQUE_KEY = b"UNIQ_KEY"

# The headers of a record beside the properties.
BORN_MS = b"rocketmq-born-time"
BORN_HOST = b"rocketmq-born-host"
MESSAGE_FLAG = b"rocketmq-flag"
SYS_FLAG = b"rocketmq-sys-flag"


# The header of an answer: what stands between its ids, the queue, the offset, the key and the `opaque`.
CODE = b'{"code":0,"extFields":{"msgId":"'
COMMA = b","
QUEUE = b'","queueId":"'
QUEUE_OFFSET = b'","queueOffset":"'
KEY = b'","transactionId":"'
ANSWER = b'"},"flag":1,"language":"JAVA","opaque":'
END = b',"serializeTypeCurrentRPC":"JSON","version":513}'
FRAME = CODE + QUEUE + QUEUE_OFFSET + ANSWER + END


@cython.cclass
class WireSend:
    """A send that needs nothing but an append."""

    def __init__(
        self,
        code: int,
        topic: bytes,
        queue_id: int,
        opaque: int,
        is_one_way: bool,
        unique_key: bytes | None,
        body_bytes: int,
        tails: list[bytearray],
    ) -> None:
        self.code = code
        self.topic = topic
        self.queue_id = queue_id
        self.opaque = opaque
        self.is_one_way = is_one_way
        self.unique_key = unique_key
        """As it stands in JSON."""
        self.body_bytes = body_bytes
        self.tails = tails
        """The end of each record, from its key on."""
        self.size: int = sum([len(tail) + 16 for tail in tails])
        """Of the records, generously."""
        self.connection: Any = None
        """Whose it is; kept by the door, as the next."""
        self.admission: Any = None
        self.host: Any = None
        """Of the offset ids that its answer has."""


@cython.cclass
class Properties:
    """The properties of one message: where each stands in its text."""

    def __init__(self) -> None:
        self.count = 0
        self.key = -1
        self.unique = -1
        if not cython.compiled:
            self.starts: Any = [0] * 48
            self.middles: Any = [0] * 48
            self.stops: Any = [0] * 48

    @cython.cfunc
    @cython.exceptval(-1)
    def split(self, at: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Find the properties of a text. False: one has a meaning of its own, or a name is there twice."""
        stop: cython.Py_ssize_t
        middle: cython.Py_ssize_t
        number: cython.Py_ssize_t
        self.count = 0
        self.key = self.unique = -1
        while start < end:
            stop = find(at, start, end, PROPERTY)
            middle = find(at, start, stop, NAME_VALUE)
            # What is no pair is left out.
            if middle < stop and find(at, middle + 1, stop, NAME_VALUE) == stop:
                if self.count == PROPERTIES_MAX or begins(at, start, middle, OWN):
                    return False
                for name in SPECIAL:
                    if is_equal(at, start, middle, name):
                        return False
                for number in range(self.count):
                    if is_same(at, start, middle, self.starts[number], self.middles[number]):
                        return False
                if is_equal(at, start, middle, SHARDING_KEY):
                    self.key = self.count
                elif is_equal(at, start, middle, UNIQUE_KEY):
                    self.unique = self.count
                self.starts[self.count] = start
                self.middles[self.count] = middle
                self.stops[self.count] = stop
                self.count += 1
            start = stop + 1
        return True

    @cython.cfunc
    def tail(
        self,
        at: cython.p_const_uchar,
        body: cython.p_const_uchar,
        body_at: cython.Py_ssize_t,
        body_end: cython.Py_ssize_t,
        own: bytes,
        own_count: cython.Py_ssize_t,
    ) -> bytearray:
        """The end of a record: key, value, the properties as headers, and the encoded headers behind them."""
        size: cython.Py_ssize_t = 32 + body_end - body_at + len(own)
        number: cython.Py_ssize_t
        length: cython.Py_ssize_t
        for number in range(self.count):
            size += self.stops[number] - self.starts[number] + 10
        if self.key >= 0:
            size += self.stops[self.key] - self.middles[self.key]
        out: Writer = Writer(0, size)
        if self.key < 0:
            out.varint(-1)
        else:
            put(out, at, self.middles[self.key] + 1, self.stops[self.key])
        put(out, body, body_at, body_end)
        out.varint(self.count + own_count)
        for number in range(self.count):
            put(out, at, self.starts[number], self.middles[number])
            put(out, at, self.middles[number] + 1, self.stops[number])
        length = len(own)
        out.raw(own, 0, length)
        return out.take()


@cython.cfunc
@cython.exceptval(check=False)
def put(out: Writer, at: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.void:
    """Write a byte string with its length. There must be room."""
    length: cython.Py_ssize_t = end - start
    out.varint(length)
    if cython.compiled:
        memcpy(out.bytes_at + out.position, at + start, length)
    else:
        out.bytes_at[out.position : out.position + length] = at[start:end]
    out.position += length


@cython.cfunc
@cython.exceptval(check=False)
def find(
    at: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t, wanted: cython.uchar
) -> cython.Py_ssize_t:
    """Where a byte stands; `end` where it does not."""
    while start < end and at[start] != wanted:
        start += 1
    return start


@cython.cfunc
@cython.exceptval(check=False)
def begins(at: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t, text: bytes) -> cython.bint:
    """Whether what ends before `end` begins with a text."""
    length: cython.Py_ssize_t = len(text)
    letters: cython.p_const_uchar = text
    if end - start < length:
        return False
    if cython.compiled:
        return memcmp(at + start, letters, length) == 0
    else:
        return at[start : start + length] == letters


@cython.cfunc
@cython.exceptval(check=False)
def is_equal(at: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t, text: bytes) -> cython.bint:
    """Whether it is that text."""
    return end - start == len(text) and begins(at, start, end, text)


@cython.cfunc
@cython.exceptval(check=False)
def is_same(
    at: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    other: cython.Py_ssize_t,
    other_end: cython.Py_ssize_t,
) -> cython.bint:
    """Whether two parts are equal."""
    if end - start != other_end - other:
        return False
    if cython.compiled:
        return memcmp(at + start, at + other, end - start) == 0
    else:
        return at[start:end] == at[other:other_end]


@cython.cfunc
@cython.exceptval(check=False)
def is_ascii(at: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    while start < end:
        if at[start] >= 0x80:
            return False
        start += 1
    return True


@cython.cfunc
@cython.exceptval(check=False)
def number_of(at: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """A number as it is nearly always written; -1 where it is something else."""
    value: cython.longlong = 0
    if start == end or end - start > DIGITS_MAX or (at[start] == 0x30 and end - start > 1):
        return -1
    while start < end:
        if at[start] < 0x30 or at[start] > 0x39:
            return -1
        value = value * 10 + (at[start] - 0x30)
        start += 1
    return value


@cython.cfunc
@cython.exceptval(check=False)
def digits_end(at: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    while start < end and 0x30 <= at[start] <= 0x39:
        start += 1
    return start


@cython.cfunc
@cython.exceptval(check=False)
def int32_at(at: cython.p_const_uchar, position: cython.Py_ssize_t) -> cython.longlong:
    """A big-endian int32."""
    value: cython.longlong = at[position]
    value = (value << 8) | at[position + 1]
    value = (value << 8) | at[position + 2]
    value = (value << 8) | at[position + 3]
    return value if value <= INT32_MAX else value - UINT32_MAX - 1


@cython.cfunc
def unescape(at: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bytearray | None:
    """A string of JSON; None where it has an escape beyond those of RocketMQ's separators and of quoted characters."""
    out: bytearray = bytearray(end - start)
    into: cython.p_uchar = out
    position: cython.Py_ssize_t = 0
    byte: cython.uchar
    while start < end:
        byte = at[start]
        start += 1
        if byte == BACKSLASH:
            # It is never the last: the quotation mark that ends the string would belong to it.
            byte = at[start]
            start += 1
            if byte == 0x75:
                if end - start < 4 or at[start] != 0x30 or at[start + 1] != 0x30 or at[start + 2] != 0x30:
                    return None
                byte = at[start + 3]
                start += 4
                if byte != 0x31 and byte != 0x32:
                    return None
                byte -= 0x30
            elif byte != QUOTE and byte != BACKSLASH and byte != 0x2F:
                return None
        into[position] = byte
        position += 1
    del out[position:]
    return out


def header(name: bytes, value: bytes) -> bytes:
    """A header of a record as it is stored."""
    out: Writer = Writer(0, len(name) + len(value) + 20)
    put(out, name, 0, len(name))
    put(out, value, 0, len(value))
    return bytes(out.take())


def parse(
    buffer: bytearray,
    position: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    born_host: bytes,
    body_max: cython.Py_ssize_t,
) -> WireSend | None:
    """The send in the frame between `position` and `stop`, which is whole; None where it is none, or is not like nearly
    all others. `born_host` is the header that its messages get."""
    at: cython.p_const_uchar = buffer
    # The header is written as JSON, and has less than 64 KiB.
    if at[position + KIND_AT] != 0 or at[position + KIND_AT + 1] != 0:
        return None
    start: cython.Py_ssize_t = position + HEAD_BYTES
    length: cython.Py_ssize_t = at[position + KIND_AT + 2]
    length = (length << 8) | at[position + KIND_AT + 3]
    end: cython.Py_ssize_t = start + length
    if end > stop or stop - end > body_max or not begins(at, start, end, BEGIN):
        return None
    cursor: cython.Py_ssize_t = start + 9
    is_batch: cython.bint = at[cursor] == 0x32
    if (at[cursor] != 0x31 and not is_batch) or not begins(at, cursor + 1, end, FIELDS):
        return None
    code: cython.longlong = 320 if is_batch else 310
    cursor += 16
    letter: cython.uchar
    byte: cython.uchar
    is_escaped: cython.bint
    is_wide: cython.bint = False
    begin: cython.Py_ssize_t
    topic_at: cython.Py_ssize_t = -1
    topic_end: cython.Py_ssize_t = -1
    text_at: cython.Py_ssize_t = 0
    text_end: cython.Py_ssize_t = 0
    queue_id: cython.longlong = -1
    sys_flag: cython.longlong = 0
    born_at: cython.Py_ssize_t = 0
    born_end: cython.Py_ssize_t = 0
    flag: cython.longlong = 0
    while True:
        # Names have one letter: "b":"topic".
        if (
            end - cursor < 7
            or at[cursor] != QUOTE
            or at[cursor + 2] != QUOTE
            or at[cursor + 3] != 0x3A
            or at[cursor + 4] != QUOTE
        ):
            return None
        letter = at[cursor + 1]
        cursor += 5
        begin = cursor
        is_escaped = False
        while cursor < end and at[cursor] != QUOTE:
            byte = at[cursor]
            if byte < 0x20:
                return None
            if byte == BACKSLASH:
                is_escaped = True
                cursor += 1
            elif byte >= 0x80:
                is_wide = True
            cursor += 1
        if end - cursor < 2 or (is_escaped and letter != 0x69):
            return None
        if letter == 0x62:
            topic_at, topic_end = begin, cursor
        elif letter == 0x65:
            queue_id = number_of(at, begin, cursor)
        elif letter == 0x66:
            sys_flag = number_of(at, begin, cursor)
        elif letter == 0x67:
            born_at, born_end = begin, cursor
        elif letter == 0x68:
            flag = number_of(at, begin, cursor)
        elif letter == 0x69:
            text_at, text_end = begin, cursor
        elif letter == 0x6A:
            # A message that is consumed again.
            if number_of(at, begin, cursor) != 0:
                return None
        elif letter == 0x6D:
            if is_equal(at, begin, cursor, b"true"):
                is_batch = True
            elif not is_equal(at, begin, cursor, b"false"):
                return None
        elif letter == 0x64:
            if number_of(at, begin, cursor) < 0:
                return None
        elif letter != 0x61 and letter != 0x63 and letter != 0x6B and letter != 0x6C and letter != 0x6E:
            return None
        cursor += 1
        if at[cursor] == 0x2C:
            cursor += 1
        elif at[cursor] == 0x7D:
            cursor += 1
            break
        else:
            return None
    # ..."flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":513}
    if not begins(at, cursor, end, FLAG):
        return None
    begin = cursor + 8
    cursor = digits_end(at, begin, end)
    kind: cython.longlong = number_of(at, begin, cursor)
    if (kind != 0 and kind != ONE_WAY) or not begins(at, cursor, end, LANGUAGE):
        return None
    begin = cursor + 13
    cursor = find(at, begin, end, QUOTE)
    if find(at, begin, cursor, BACKSLASH) != cursor or not begins(at, cursor + 1, end, OPAQUE):
        return None
    begin = cursor + 11
    cursor = digits_end(at, begin, end)
    opaque: cython.longlong = number_of(at, begin, cursor)
    if opaque < 0 or opaque > INT32_MAX or not begins(at, cursor, end, VERSION):
        return None
    begin = cursor + 44
    cursor = digits_end(at, begin, end)
    version: cython.longlong = number_of(at, begin, cursor)
    if version < 0 or version > INT32_MAX or end - cursor != 1 or at[cursor] != 0x7D:
        return None
    # A topic of a consumer group, and one that has no name, are more than an append.
    if topic_at < 0 or topic_at == topic_end or at[topic_at] == 0x25 or queue_id < 0 or queue_id > INT32_MAX:
        return None
    if flag < 0 or sys_flag < 0 or sys_flag & SPECIAL_FLAGS or (is_batch and stop - end > BATCH_BYTES_MAX):
        return None
    if born_at and number_of(at, born_at, born_end) < 0:
        return None
    if is_wide and not is_text(buffer, start, end):
        return None
    text: bytearray | None = unescape(at, text_at, text_end)
    if text is None or len(text) > PROPERTIES_BYTES_MAX:
        return None
    text_bytes: cython.p_const_uchar = text
    properties: Properties = Properties()
    if not properties.split(text_bytes, 0, len(text)):
        return None
    unique_key: bytes | None = None
    if properties.unique >= 0:
        begin = properties.middles[properties.unique] + 1
        cursor = properties.stops[properties.unique]
        while begin < cursor:
            if text_bytes[begin] < 0x20 or text_bytes[begin] == QUOTE or text_bytes[begin] == BACKSLASH:
                return None
            begin += 1
        unique_key = bytes(text[properties.middles[properties.unique] + 1 : cursor])
    before: bytes = header(BORN_MS, bytes(buffer[born_at:born_end]) if born_at else b"0") + born_host
    after: bytes = header(SYS_FLAG, b"%d" % sys_flag) if sys_flag else b""
    own_count: cython.Py_ssize_t = 3 if sys_flag else 2
    tails: list[bytearray] = []
    if not is_batch:
        if flag:
            own_count += 1
            before += header(MESSAGE_FLAG, b"%d" % flag)
        tails.append(properties.tail(text_bytes, at, end, stop, before + after, own_count))
    elif not read_batch(buffer, end, stop, properties, before, after, own_count, tails):
        return None
    topic: bytes = bytes(buffer[topic_at:topic_end])
    return WireSend(code, topic, queue_id, opaque, kind == ONE_WAY, unique_key, stop - end, tails)


@cython.cfunc
@cython.exceptval(-1)
def is_text(buffer: bytearray, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Whether it is UTF-8."""
    try:
        buffer[start:end].decode()
    except UnicodeDecodeError:
        return False
    return True


@cython.cfunc
@cython.exceptval(-1)
def read_batch(
    buffer: bytearray,
    position: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    properties: Properties,
    before: bytes,
    after: bytes,
    own_count: cython.Py_ssize_t,
    tails: list[bytearray],
) -> cython.bint:
    """The messages of a batch; False where one is not like nearly all others."""
    at: cython.p_const_uchar = buffer
    size: cython.longlong
    flag: cython.longlong
    length: cython.longlong
    body: cython.Py_ssize_t
    end: cython.Py_ssize_t
    text: cython.Py_ssize_t
    plain: bytes = before + after
    if position == stop:
        return False
    while position < stop:
        if stop - position < BATCHED_BYTES + 2:
            return False
        size = int32_at(at, position)
        flag = int32_at(at, position + 12)
        length = int32_at(at, position + 16)
        body = position + BATCHED_BYTES
        if size < BATCHED_BYTES + 2 or size > stop - position or length < 0 or length > size - BATCHED_BYTES - 2:
            return False
        end = position + size
        text = body + length + 2
        length = at[text - 2]
        length = (length << 8) | at[text - 1]
        if length > PROPERTIES_BYTES_MAX or text + length != end:
            return False
        if not is_ascii(at, text, end) and not is_text(buffer, text, end):
            return False
        if not properties.split(at, text, end):
            return False
        if flag:
            own = before + header(MESSAGE_FLAG, b"%d" % flag) + after
            tails.append(properties.tail(at, at, body, text - 2, own, own_count + 1))
        else:
            tails.append(properties.tail(at, at, body, text - 2, plain, own_count))
        position = end
    return True


def build(sends: Sequence[WireSend], now_ms: int) -> bytearray:
    """One batch of the messages of all sends."""
    total: cython.Py_ssize_t = HEADER_BYTES
    count: cython.longlong = 0
    size: cython.Py_ssize_t
    send: WireSend
    tail: bytearray
    at: cython.p_const_uchar
    for send in sends:
        total += send.size
    out: Writer = Writer(HEADER_BYTES, total)
    for send in sends:
        for tail in send.tails:
            size = len(tail)
            at = tail
            out.varint(2 + varint_bytes(count) + size)
            out.bytes_at[out.position] = 0
            out.bytes_at[out.position + 1] = 0
            out.position += 2
            out.varint(count)
            if cython.compiled:
                memcpy(out.bytes_at + out.position, at, size)
            else:
                out.bytes_at[out.position : out.position + size] = at
            out.position += size
            count += 1
    return seal(out.take(), new_header(count, now_ms, now_ms))


@cython.cfunc
@cython.exceptval(check=False)
def write(into: cython.p_uchar, position: cython.Py_ssize_t, text: bytes) -> cython.Py_ssize_t:
    """Write bytes; the position behind them. There must be room, as for the next two."""
    length: cython.Py_ssize_t = len(text)
    if cython.compiled:
        memcpy(into + position, cython.cast(cython.p_const_uchar, text), length)
    else:
        into[position : position + length] = text
    return position + length


@cython.cfunc
@cython.exceptval(check=False)
def write_decimal(into: cython.p_uchar, position: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a number from 0 on."""
    length: cython.Py_ssize_t = 1
    rest: cython.longlong = value // 10
    while rest:
        rest //= 10
        length += 1
    end: cython.Py_ssize_t = position + length
    while length:
        length -= 1
        into[position + length] = 0x30 + value % 10
        value //= 10
    return end


@cython.cfunc
@cython.exceptval(check=False)
def write_hex(into: cython.p_uchar, position: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a number from 0 on in 16 hexadecimal digits."""
    number: cython.Py_ssize_t
    digit: cython.uchar
    for number in range(16):
        digit = value & 15
        into[position + 15 - number] = 0x30 + digit if digit < 10 else 0x37 + digit
        value >>= 4
    return position + 16


def answer(send: WireSend, host: bytes, queue: bytes, offset: int, physical_offset: int) -> bytearray:
    """The frame that answers a send whose messages are stored from an offset on. `host` is that of an offset id, in
    hexadecimal digits."""
    count: cython.Py_ssize_t = len(send.tails)
    key: bytes = send.unique_key or b""
    size: cython.Py_ssize_t = HEAD_BYTES + len(FRAME) + count * (len(host) + 17) + len(queue) + len(KEY) + len(key) + 44
    out: bytearray = bytearray(size)
    into: cython.p_uchar = out
    number: cython.longlong
    first: cython.longlong = physical_offset
    at: cython.Py_ssize_t = write(into, HEAD_BYTES, CODE)
    for number in range(count):
        if number:
            at = write(into, at, COMMA)
        at = write_hex(into, write(into, at, host), first + number)
    at = write(into, write(into, write(into, at, QUEUE), queue), QUEUE_OFFSET)
    at = write_decimal(into, at, offset)
    if send.unique_key is not None:
        at = write(into, write(into, at, KEY), key)
    at = write_decimal(into, write(into, at, ANSWER), send.opaque)
    at = write(into, at, END)
    for number in range(4):
        into[3 - number] = (at - 4) >> 8 * number & 0xFF
        into[7 - number] = (at - HEAD_BYTES) >> 8 * number & 0xFF
    del out[at:]
    return out
