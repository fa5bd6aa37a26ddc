"""Integers in as many bytes as they need: seven bits in each, the lowest first, and the eighth set if another follows.

Signed ones are folded into unsigned ones first (zigzag), so that small ones stay short. This is for single numbers:
kernels that read them by the thousand, and the Kafka door, which knows where its request ends, have their own.
"""

from __future__ import annotations


def write_varint(out: bytearray, value: int) -> None:
    """Append an unsigned integer."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def varint(value: int) -> bytes:
    """An unsigned integer on its own."""
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


def read_varint(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """An unsigned integer of at most 32 bits, and the position after it. Raises ValueError."""
    value = shift = 0
    while position < len(buffer) and shift <= 28:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a variable-length integer is cut off or has more than 32 bits")


def zigzag(value: int) -> bytes:
    """A signed integer on its own."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def read_zigzag(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """A signed integer of at most 32 bits, and the position after it. Raises ValueError."""
    value, position = read_varint(buffer, position)
    return (value >> 1) ^ -(value & 1), position
