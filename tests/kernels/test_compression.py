"""The codecs: round trips, both framings of snappy, damage, and bombs within bounded memory."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from types import ModuleType

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted

from headrace.errors import InvalidRecords, UnsupportedBatch
from headrace.format import compression
from headrace.format.compression import compress, decompress

FRAMED = (1, 2, 3, 4)


def xerial(data: bytes, block: int = 1000) -> bytes:
    """Snappy as the Java clients frame it."""
    out = compression.XERIAL_MAGIC + struct.pack(">ii", 1, 1)
    for start in range(0, len(data), block):
        packed = bytes(cramjam.snappy.compress_raw(data[start : start + block]))
        out += struct.pack(">i", len(packed)) + packed
    return out


@pytest.fixture(scope="session", params=["installed", "interpreted"])
def codecs(request: pytest.FixtureRequest) -> ModuleType:
    return compression if request.param == "installed" else interpreted("format.compression")


@given(st.sampled_from(range(5)), st.binary(max_size=2000), st.integers(1, 50))
@settings(deadline=None)
def test_round_trip(codec: int, data: bytes, times: int) -> None:
    data *= times
    assert decompress(codec, compress(codec, data), len(data)) == data
    if data:
        with pytest.raises(InvalidRecords, match="more than"):
            decompress(codec, compress(codec, data), len(data) - 1)


@given(st.sampled_from(FRAMED), st.binary(max_size=200))
@settings(deadline=None)
def test_garbage(codec: int, data: bytes) -> None:
    try:
        decompress(codec, data, 10_000)
    except InvalidRecords:
        pass


@given(st.sampled_from(FRAMED), st.binary(min_size=20, max_size=400), st.data())
@settings(deadline=None)
def test_damage(codec: int, data: bytes, drawn: st.DataObject) -> None:
    packed = bytearray(compress(codec, data * 4))
    packed[drawn.draw(st.integers(0, len(packed) - 1))] = drawn.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, packed, 4096)) <= 4096
    except InvalidRecords:
        pass


@given(st.binary(max_size=5000), st.integers(1, 3000))
@settings(deadline=None)
def test_xerial_framing(data: bytes, block: int) -> None:
    packed = xerial(data, block)
    assert decompress(2, packed, len(data)) == data
    if data:
        with pytest.raises(InvalidRecords):
            decompress(2, packed, len(data) - 1)
        with pytest.raises(InvalidRecords):
            decompress(2, packed[:-1], len(data))


def test_frames_without_a_content_size(codecs: ModuleType) -> None:
    data = b"a longer text, " * 100_000
    lz4 = cramjam.lz4.Compressor(block_linked=False)
    zstd = cramjam.zstd.Compressor()
    for start in range(0, len(data), 50_000):
        lz4.compress(data[start : start + 50_000])
        zstd.compress(data[start : start + 50_000])
    assert codecs.decompress(3, bytes(lz4.finish()), len(data)) == data
    assert codecs.decompress(4, bytes(zstd.finish()), len(data)) == data
    assert codecs.decompress(1, gzip.compress(data), len(data)) == data


def test_lz4_blocks_stand_alone(codecs: ModuleType) -> None:
    # Bit 5 of the byte behind the magic; Kafka's Java client refuses frames without it.
    assert codecs.compress(3, b"x" * 200_000)[4] & 0x20


def test_unknown_codecs(codecs: ModuleType) -> None:
    for codec in (5, 6, 7):
        with pytest.raises(UnsupportedBatch, match=f"compression {codec}"):
            codecs.decompress(codec, b"", 10)
        with pytest.raises(UnsupportedBatch, match=f"compression {codec}"):
            codecs.compress(codec, b"")


def test_snappy_that_lies_about_its_size(codecs: ModuleType) -> None:
    # The varint 100,000,000 in front of nothing.
    with pytest.raises(InvalidRecords, match="cannot unpack to 100000000"):
        codecs.decompress(2, b"\x80\xc2\xd7\x2f\x00", 1 << 30)


BOMB = """
import resource, sys
from headrace.errors import InvalidRecords
from headrace.format import compression
codec, path, bound = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
data = open(path, "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    compression.decompress(codec, data, bound)
except InvalidRecords as error:
    print("refused", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("codec", FRAMED)
@pytest.mark.parametrize("bound", [1 << 20, 1 << 25])
def test_bombs(codec: int, bound: int, tmp_path: pytest.TempPathFactory) -> None:
    unpacked = bytes(1 << 28)
    bomb = compress(codec, unpacked)
    path = f"{tmp_path}/bomb"
    with open(path, "wb") as file:
        file.write(bomb)
    ran = subprocess.run(
        [sys.executable, "-c", BOMB, str(codec), path, str(bound)], capture_output=True, text=True, timeout=60
    )
    word, kilobytes = ran.stdout.split()
    assert word == "refused"
    # One buffer of the bound at most, a smaller one before it, and what the codec keeps for itself.
    assert int(kilobytes) * 1024 < 1.2 * bound + (1 << 24)
