# cython: boundscheck=False, wraparound=False
"""Terms: what of a record it can be found by, as a search index keeps them and as a search compares them.

A term is a field and a value. The fields are `key` (the record's key, and each word of RocketMQ's header KEYS), `id`
(RocketMQ's unique key), `tags` (its tag), and `header:NAME` for any header. An index keeps a digest of 32 bits of each
term, and where its batch is. Digests collide: whatever an index leads to is compared with the term itself. A batch with
more terms than `BATCH_TERMS_MAX` has one entry, of the digest `ANY`, and is compared in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import cython

from headrace.format.records import Record, open_batch

if cython.compiled:
    from cython.cimports.headrace.format.records import Reader
else:
    from headrace.format.records import Reader

KEY: str = "key"
ID: str = "id"
TAGS: str = "tags"
HEADER: str = "header:"
# RocketMQ's names of what it indexes.
KEYS_HEADER: bytes = b"KEYS"
ID_HEADER: bytes = b"UNIQ_KEY"
TAGS_HEADER: bytes = b"TAGS"
BATCH_TERMS_MAX: int = 65_536
ANY: int = 0xFFFFFFFF

# FNV-1a over the field and the value, and the last steps of MurmurHash3 behind it.
BASIS = cython.declare(cython.ulonglong, 14695981039346656037)
PRIME = cython.declare(cython.ulonglong, 1099511628211)
FACTOR = cython.declare(cython.ulonglong, 18397679294719823053)
# The compiled numbers have 64 bits anyway.
MASK = cython.declare(cython.ulonglong, 18446744073709551615)
SPACE = cython.declare(cython.int, 32)
# Of a batch's header.
HEAD_BYTES = cython.declare(cython.Py_ssize_t, 61)
PREFIX_BYTES = cython.declare(cython.Py_ssize_t, 12)


def header_of(field: str) -> bytes:
    """The name of the header that a field stands for."""
    if field == KEY:
        return KEYS_HEADER
    if field == ID:
        return ID_HEADER
    if field == TAGS:
        return TAGS_HEADER
    return field[len(HEADER) :].encode("utf-8", "surrogateescape")


def digest(field: str, value: bytes) -> int:
    """What an index keeps of a term: 32 bits."""
    return finished(hashed(seed_of(field), value, 0, len(value)))


@cython.cfunc
@cython.exceptval(check=False)
def hashed(state: cython.ulonglong, data: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.ulonglong:
    at: cython.Py_ssize_t
    byte: cython.ulonglong
    for at in range(start, end):
        byte = data[at]
        state = ((state ^ byte) * PRIME) & MASK
    return state


@cython.cfunc
@cython.exceptval(check=False)
def finished(state: cython.ulonglong) -> cython.ulonglong:
    state = ((state ^ (state >> 33)) * FACTOR) & MASK
    return (state ^ (state >> 29)) >> 32


@cython.cfunc
def seed_of(field: str) -> cython.ulonglong:
    """The state with which the values of a field begin."""
    name: bytes = field.encode("utf-8", "surrogateescape") + b"\0"
    return hashed(BASIS, name, 0, len(name))


@cython.final
@cython.cclass
class Collector:
    """The digests of the terms of many batches, each with the position of its batch: entries of 64 bits."""

    fields: list  # type: ignore[type-arg]
    entries: list  # type: ignore[type-arg]
    has_key: cython.bint
    key_seed: cython.ulonglong
    low: cython.longlong
    high: cython.longlong
    room: cython.longlong
    crowds: cython.longlong

    def __init__(self, fields: Iterable[str]) -> None:
        self.fields = []
        self.entries = []
        self.crowds = 0
        self.has_key = False
        self.key_seed = 0
        self.low = (1 << 62) - 1
        self.high = -(1 << 62)
        for field in fields:
            seed: cython.ulonglong = seed_of(field)
            self.fields.append((header_of(field), seed, field == KEY))
            if field == KEY:
                self.has_key = True
                self.key_seed = seed

    @property
    def count(self) -> int:
        """How many entries there are, some of them the same perhaps."""
        return len(self.entries)

    @property
    def crowded(self) -> int:
        """How many batches have an entry of the digest ANY."""
        return self.crowds

    @property
    def oldest(self) -> int:
        """The least time of a record."""
        return self.low

    @property
    def newest(self) -> int:
        """The largest time of a record."""
        return self.high

    def add(self, batch: bytes, max_bytes: int, position: int) -> None:
        """Take the terms of a batch. Raises InvalidRecords, and has then taken none."""
        reader: Reader = open_batch(batch, max_bytes)
        place: cython.ulonglong = position
        before: cython.Py_ssize_t = len(self.entries)
        low: cython.longlong = self.low
        high: cython.longlong = self.high
        self.room = BATCH_TERMS_MAX
        try:
            while self.room >= 0 and reader.next():
                if reader.timestamp < low:
                    low = reader.timestamp
                if reader.timestamp > high:
                    high = reader.timestamp
                if self.has_key and reader.key_length > 0:
                    self.put(self.key_seed, reader.body, reader.key_at, reader.key_at + reader.key_length, place)
                if reader.header_count > 0 and self.fields:
                    self.take_headers(reader, place)
        except BaseException:
            del self.entries[before:]
            raise
        if self.room < 0:
            del self.entries[before:]
            self.entries.append((ANY << 32) | position)
            self.crowds += 1
            # The times of the rest are not known.
            low, high = -(1 << 62), (1 << 62) - 1
        self.low = low
        self.high = high

    @cython.cfunc
    @cython.exceptval(-1)
    def take_headers(self, reader: Reader, place: cython.ulonglong) -> cython.int:
        number: cython.Py_ssize_t = reader.header_count
        length: cython.Py_ssize_t
        at: cython.Py_ssize_t
        seed: cython.ulonglong
        name: bytes
        reader.position = reader.headers_at
        while number > 0:
            length = reader.field(reader.record_end)
            name = reader.body[reader.position : reader.position + length]
            reader.position += length
            length = reader.field(reader.record_end)
            at = reader.position
            if length > 0:
                reader.position += length
                for wanted in self.fields:
                    if name == wanted[0]:
                        seed = wanted[1]
                        if wanted[2]:
                            self.put_words(seed, reader.body, at, at + length, place)
                        else:
                            self.put(seed, reader.body, at, at + length, place)
            number -= 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put_words(
        self,
        seed: cython.ulonglong,
        body: bytes,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        place: cython.ulonglong,
    ) -> cython.int:
        at: cython.Py_ssize_t = start
        while start < end:
            while at < end and body[at] != SPACE:
                at += 1
            if at > start:
                self.put(seed, body, start, at, place)
            at += 1
            start = at
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put(
        self,
        seed: cython.ulonglong,
        body: bytes,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        place: cython.ulonglong,
    ) -> cython.int:
        self.room -= 1
        if self.room < 0:
            return 0
        entry: cython.ulonglong = (finished(hashed(seed, body, start, end)) << 32) | place
        self.entries.append(entry)
        return 0

    def take(self) -> list[int]:
        """The entries, each once, in their order; the collector begins anew."""
        found = sorted(set(self.entries))
        self.entries = []
        self.crowds = 0
        self.low = (1 << 62) - 1
        self.high = -(1 << 62)
        return found


@cython.final
@cython.cclass
class Matcher:
    """Compares records with terms, all of which must be theirs, and with a range of time."""

    terms: list  # type: ignore[type-arg]
    since: cython.longlong
    until: cython.longlong

    def __init__(self, terms: Sequence[tuple[str, bytes]], since: int, until: int) -> None:
        self.terms = [(field == KEY, header_of(field), value) for field, value in terms]
        self.since = since
        self.until = until

    def match(self, batch: bytes, max_bytes: int, start: int, end: int, limit: int) -> list[Record]:
        """The first records that match, at offsets from `start` up to `end`; at most `limit`."""
        reader: Reader = open_batch(batch, max_bytes)
        found: list = []  # type: ignore[type-arg]
        first: cython.longlong = start - reader.base_offset
        behind: cython.longlong = end - reader.base_offset
        left: cython.Py_ssize_t = limit
        while left > 0 and reader.next():
            if reader.offset_delta < first:
                continue
            if reader.offset_delta >= behind:
                break
            if reader.timestamp < self.since or reader.timestamp > self.until:
                continue
            if self.holds(reader):
                found.append(
                    (
                        reader.base_offset + reader.offset_delta,
                        reader.timestamp,
                        reader.key(),
                        reader.value(),
                        reader.headers(),
                    )
                )
                left -= 1
        return found

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def holds(self, reader: Reader) -> cython.bint:
        """Whether all terms are those of the record that the reader stands on."""
        value: bytes
        name: bytes
        end: cython.Py_ssize_t = reader.position
        for term in self.terms:
            name = term[1]
            value = term[2]
            if term[0] and reader.key_length == len(value) and reader.key() == value:
                continue
            if not self.has_header(reader, name, value, term[0]):
                reader.position = end
                return False
        reader.position = end
        return True

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def has_header(self, reader: Reader, name: bytes, value: bytes, words: cython.bint) -> cython.bint:
        number: cython.Py_ssize_t = reader.header_count
        length: cython.Py_ssize_t
        is_it: cython.bint
        reader.position = reader.headers_at
        while number > 0:
            length = reader.field(reader.record_end)
            is_it = length == len(name) and reader.body[reader.position : reader.position + length] == name
            reader.position += length
            length = reader.field(reader.record_end)
            if is_it and length >= len(value):
                content: bytes = reader.body[reader.position : reader.position + length]
                if (value in content.split(b" ")) if words else content == value:
                    return True
            if length > 0:
                reader.position += length
            number -= 1
        return False


def suspects(chunk: bytes, needle: bytes, since: int) -> tuple[list[int], int]:
    """The positions of the batches of a chunk that may have records with these bytes that are not older than `since`,
    and the offset behind the last whole batch (-1: there is none). What is compressed may have any bytes."""
    found: list = []  # type: ignore[type-arg]
    data: bytes = chunk
    size: cython.Py_ssize_t = len(chunk)
    long: cython.Py_ssize_t = len(needle)
    least: cython.longlong = since
    at: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t
    hit: cython.Py_ssize_t = -1
    after: cython.longlong = -1
    while size - at >= HEAD_BYTES:
        length = number(data, at + 8, 4) + PREFIX_BYTES
        if length < HEAD_BYTES or length > size - at:
            break
        after = number(data, at, 8) + number(data, at + 23, 4) + 1
        if number(data, at + 35, 8) >= least:
            if data[at + 22] & 7 == 0:
                if hit < at:
                    hit = chunk.find(needle, at)
                    if hit < 0:
                        hit = size
                if hit + long <= at + length:
                    found.append(at)
            else:
                found.append(at)
        at += length
    return found, after


@cython.cfunc
@cython.exceptval(check=False)
def number(data: bytes, at: cython.Py_ssize_t, count: cython.int) -> cython.longlong:
    """A big-endian number; one of eight bytes has a sign."""
    result: cython.ulonglong = 0
    index: cython.Py_ssize_t
    for index in range(at, at + count):
        result = (result << 8) | data[index]
    signed: cython.longlong
    if cython.compiled:
        signed = cython.cast(cython.longlong, result)
    else:
        signed = result - (1 << 64) if result >> 63 else result
    return signed
