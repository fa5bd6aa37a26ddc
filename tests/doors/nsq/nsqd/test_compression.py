"""Packed streams by byte strings: against other libraries, in any parts, damaged, and too good to be true."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.doors.nsq.nsqd.compression import (
    BLOCK_BYTES,
    STREAM_START,
    Compressor,
    Decompressor,
    DeflateCompressor,
    DeflateDecompressor,
    SnappyCompressor,
    SnappyDecompressor,
    StreamError,
)

RELAXED = settings(deadline=None)
HOWS = ["snappy", "deflate"]


def pair(how: str) -> tuple[Compressor, Decompressor]:
    return (
        (SnappyCompressor(), SnappyDecompressor()) if how == "snappy" else (DeflateCompressor(6), DeflateDecompressor())
    )


def drained(decompressor: Decompressor, size: int = 1 << 20) -> bytes:
    found = b""
    while data := decompressor.read(size):
        found += data
    return found


def repeated(pieces: list[tuple[bytes, int]]) -> list[bytes]:
    return [piece * times for piece, times in pieces]


plain = st.lists(st.tuples(st.binary(min_size=1, max_size=50), st.integers(1, 3000)), max_size=5).map(repeated)


@RELAXED
@given(st.sampled_from(HOWS), plain, st.integers(1, 200), st.integers(1, 100_000))
def test_round_trips_in_any_parts(how: str, pieces: list[bytes], part: int, size: int) -> None:
    compressor, decompressor = pair(how)
    wire = b"".join(compressor.pack(piece) for piece in pieces)
    found = b""
    for start in range(0, len(wire), part):
        decompressor.feed(wire[start : start + part])
        found += drained(decompressor, size)
    assert found == b"".join(pieces)
    assert decompressor.waiting == 0


@RELAXED
@given(plain)
def test_other_libraries_read_and_write_the_same(pieces: list[bytes]) -> None:
    compressor, decompressor = pair("snappy")
    theirs: Any = snappy.StreamDecompressor()
    ours = b""
    for piece in pieces:
        ours += theirs.decompress(compressor.pack(piece))
    assert ours == b"".join(pieces)
    other: Any = snappy.StreamCompressor()
    for piece in pieces:
        decompressor.feed(other.compress(piece))
    assert drained(decompressor) == b"".join(pieces)
    compressor, _ = pair("deflate")
    raw = zlib.decompressobj(-zlib.MAX_WBITS)
    assert b"".join(raw.decompress(compressor.pack(piece)) for piece in pieces) == b"".join(pieces)


@pytest.mark.parametrize("how", HOWS)
def test_each_piece_can_be_read_when_it_has_come(how: str) -> None:
    compressor, decompressor = pair(how)
    for number in range(20):
        decompressor.feed(compressor.pack(b"piece %d" % number))
        assert drained(decompressor) == b"piece %d" % number


@pytest.mark.parametrize("how", HOWS)
def test_a_slice_at_a_time(how: str) -> None:
    compressor, decompressor = pair(how)
    decompressor.feed(compressor.pack(bytes(10_000_000)))
    most, total = 0, 0
    while data := decompressor.read(50_000):
        most, total = max(most, len(data)), total + len(data)
    assert total == 10_000_000
    assert most <= 50_000 + BLOCK_BYTES


def chunk(kind: int, body: bytes) -> bytes:
    return bytes((kind,)) + len(body).to_bytes(3, "little") + body


def test_chunks_that_may_be_skipped() -> None:
    _, decompressor = pair("snappy")
    packed = SnappyCompressor().pack(b"hello")
    decompressor.feed(STREAM_START + chunk(0xFE, bytes(200_000)) + chunk(0x80, b"x"))
    assert decompressor.read(100) == b""
    assert decompressor.waiting == 0
    decompressor.feed(packed)
    assert decompressor.read(100) == b"hello"


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (chunk(0, b"1234x"), "begins with its identifier"),
        (chunk(0xFF, b"sNaPpy"), "wrong snappy identifier"),
        (chunk(0xFF, b"sNaPpYY"), "identifier of 7 bytes"),
        (STREAM_START + chunk(0x02, b"x"), "kind 2"),
        (STREAM_START + chunk(0x7F, b"x"), "kind 127"),
        (STREAM_START + chunk(0, b"123"), "without a checksum"),
        (STREAM_START + b"\x00\xff\xff\xff", "a snappy chunk of 16777215 bytes"),
        (STREAM_START + chunk(1, b"1234" + b"hello"), "does not fit its checksum"),
        (STREAM_START + chunk(0, b"1234" + b"\xff\xff\xff\xff\x0f"), "more than 65536 bytes"),
        (STREAM_START + chunk(0, b"1234" + b"\x81\x80\x04x"), "more than 65536 bytes"),
        (STREAM_START + chunk(0, b"1234" + b"\xff\xff\xff\xff\xff\xff"), "length does not end"),
        (STREAM_START + chunk(0, b"1234"), "length does not end"),
        (STREAM_START + chunk(0, b"1234" + b"\x05garbage"), "damaged snappy block|checksum"),
        (STREAM_START + chunk(1, b"1234" + bytes(65_537)), "65537 bytes, more than 65536"),
    ],
)
def test_what_is_no_snappy_stream(wire: bytes, words: str) -> None:
    decompressor = SnappyDecompressor()
    decompressor.feed(wire)
    with pytest.raises(StreamError, match=words):
        decompressor.read(1000)


def test_what_is_no_deflate_stream() -> None:
    decompressor = DeflateDecompressor()
    decompressor.feed(b"\xff" * 10)
    with pytest.raises(StreamError, match="not a deflate stream"):
        decompressor.read(1000)
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    decompressor = DeflateDecompressor()
    decompressor.feed(compressor.compress(b"the end") + compressor.flush())
    with pytest.raises(StreamError, match="ended before the connection"):
        drained(decompressor)


@RELAXED
@given(st.sampled_from(HOWS), st.binary(max_size=300), st.integers(0, 100))
def test_garbage_is_broken_or_cut(how: str, garbage: bytes, at: int) -> None:
    compressor, decompressor = pair(how)
    good = compressor.pack(b"some good bytes" * 10)
    decompressor.feed(good[:at] + garbage + good[at:])
    try:
        while decompressor.read(1000):
            pass
    except StreamError:
        return
