"""Compressed streams of a connection, without I/O: snappy's framed format, and raw deflate.

A compressor's `pack` returns bytes from which the other side can unpack all of the data up to here. A decompressor is
fed what came from the wire, of which `waiting` bytes are not unpacked yet, and `read` returns the plain bytes in slices
of about the size that it is asked for, or nothing where more must be fed first: so a few bytes that unpack to gigabytes
cost no memory, and the connection decides when to go on.
"""

from __future__ import annotations

import zlib

import cramjam
from crc32c import crc32c


class StreamError(Exception):
    """What came is not the stream that was negotiated."""


class DeflateCompressor:
    """Raw deflate to the client."""

    def __init__(self, level: int) -> None:
        self._stream = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)

    def pack(self, data: bytes | bytearray) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)


class DeflateDecompressor:
    """Raw deflate from the client."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        self._packed = b""
        # The last slice was as large as it might be: the stream may hold more without being fed.
        self._full = False

    @property
    def waiting(self) -> int:
        return len(self._packed)

    def feed(self, data: bytes | memoryview) -> None:
        self._packed += data

    def read(self, size: int) -> bytes:
        if not self._packed and not self._full:
            return b""
        try:
            found = self._stream.decompress(self._packed, size)
        except zlib.error as error:
            raise StreamError(f"not a deflate stream: {error}") from None
        if self._stream.eof:
            raise StreamError("the deflate stream ended before the connection")
        self._packed = self._stream.unconsumed_tail
        self._full = len(found) >= size
        return found


# --- snappy's framed format -------------------------------------------------------------------------------------------

STREAM_START = b"\xff\x06\x00\x00sNaPpY"
COMPRESSED = 0x00
UNCOMPRESSED = 0x01
FIRST_SKIPPABLE = 0x80
IDENTIFIER = 0xFF
BLOCK_BYTES = 65_536
# What is put into one block that goes out: one record of TLS holds it, and clients that cannot wait for the rest of a
# block (pynsq, gnsq) get it whole.
SENT_BYTES = 16_000
# What a block takes at most when packed, with its checksum.
CHUNK_MAX = 76_490 + 4
# Blocks smaller than this are not worth the packing.
WORTHWHILE = 64


def _checksum(data: bytes | memoryview) -> bytes:
    """The masked checksum of the format."""
    crc = crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


class SnappyCompressor:
    """Snappy's framed format to the client."""

    def __init__(self) -> None:
        self._begun = False

    def pack(self, data: bytes | bytearray) -> bytes:
        parts: list[bytes] = []
        if not self._begun:
            self._begun = True
            parts.append(STREAM_START)
        view = memoryview(data)
        for start in range(0, len(data), SENT_BYTES):
            block = view[start : start + SENT_BYTES]
            kind, packed = UNCOMPRESSED, bytes(block)
            if len(block) >= WORTHWHILE:
                squeezed = bytes(cramjam.snappy.compress_raw(block))
                if len(squeezed) < len(block):
                    kind, packed = COMPRESSED, squeezed
            parts += (bytes((kind,)), (len(packed) + 4).to_bytes(3, "little"), _checksum(block), packed)
        return b"".join(parts)


class SnappyDecompressor:
    """Snappy's framed format from the client."""

    def __init__(self) -> None:
        self._packed = bytearray()
        self._begun = False
        self._skip = 0

    @property
    def waiting(self) -> int:
        return len(self._packed)

    def feed(self, data: bytes | memoryview) -> None:
        self._packed += data

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        got = 0
        at = 0
        packed = self._packed
        try:
            while got < size:
                if self._skip:
                    step = min(self._skip, len(packed) - at)
                    self._skip -= step
                    at += step
                if self._skip or len(packed) - at < 4:
                    break
                kind = packed[at]
                length = int.from_bytes(packed[at + 1 : at + 4], "little")
                if not self._begun and kind != IDENTIFIER:
                    raise StreamError("a snappy stream begins with its identifier")
                if FIRST_SKIPPABLE <= kind < IDENTIFIER:
                    self._skip = length + 4
                    continue
                if kind == IDENTIFIER and length != len(STREAM_START) - 4:
                    raise StreamError(f"a snappy identifier of {length} bytes")
                if length > CHUNK_MAX:
                    raise StreamError(f"a snappy chunk of {length} bytes, more than {CHUNK_MAX}")
                stop = at + 4 + length
                if stop > len(packed):
                    break
                if kind == IDENTIFIER:
                    if packed[at:stop] != STREAM_START:
                        raise StreamError("a wrong snappy identifier")
                    self._begun = True
                else:
                    block = _block(kind, bytes(packed[at + 4 : stop]))
                    parts.append(block)
                    got += len(block)
                at = stop
        finally:
            del packed[:at]
        return b"".join(parts)


def _block(kind: int, chunk: bytes) -> bytes:
    if kind not in (COMPRESSED, UNCOMPRESSED):
        raise StreamError(f"a snappy chunk of kind {kind}, which must not be skipped and is not known")
    if len(chunk) < 4:
        raise StreamError("a snappy chunk without a checksum")
    block = chunk[4:]
    if kind == COMPRESSED:
        if _read_length(block) > BLOCK_BYTES:
            raise StreamError(f"a snappy block that unpacks to more than {BLOCK_BYTES} bytes")
        try:
            block = bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise StreamError(f"a damaged snappy block: {error}") from None
    if len(block) > BLOCK_BYTES:
        raise StreamError(f"a snappy block of {len(block)} bytes, more than {BLOCK_BYTES}")
    if _checksum(block) != chunk[:4]:
        raise StreamError("a snappy block does not fit its checksum")
    return block


def _read_length(block: bytes) -> int:
    """The length that a block announces for its plain bytes."""
    size = 0
    for shift, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return size
    raise StreamError("a damaged snappy block: its length does not end")


Compressor = DeflateCompressor | SnappyCompressor
Decompressor = DeflateDecompressor | SnappyDecompressor
