"""Integers in as many bytes as they need."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.format.varint import read_varint, read_zigzag, varint, zigzag


@given(st.integers(0, (1 << 32) - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_unsigned(value: int, before: bytes, after: bytes) -> None:
    encoded = varint(value)
    assert len(encoded) == max(1, -(-value.bit_length() // 7))
    assert read_varint(before + encoded + after, len(before)) == (value, len(before) + len(encoded))


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_signed(value: int) -> None:
    assert read_zigzag(zigzag(value), 0)[0] == value


def test_small_negative_numbers_are_short() -> None:
    assert [zigzag(value) for value in (0, -1, 1, -64)] == [b"\x00", b"\x01", b"\x02", b"\x7f"]


@pytest.mark.parametrize("broken", [b"", b"\x80", b"\xff\xff\xff\xff", b"\x80\x80\x80\x80\x80\x01"])
def test_what_is_cut_off_or_too_long_is_refused(broken: bytes) -> None:
    with pytest.raises(ValueError, match="cut off"):
        read_varint(broken, 0)
