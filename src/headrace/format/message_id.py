"""The id that names a delivery of a message: 16 characters, as NSQ's clients expect.

It carries where the message is: 96 bits as characters of a 64-letter alphabet in ASCII order, 17 bits of lane, 63 of
offset, 16 of attempt.
"""

from __future__ import annotations

ID_BYTES: int = 16
ATTEMPT_MAX: int = (1 << 16) - 1

ALPHABET = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
# By character: its number, or 64 where it has none.
NUMBERS: bytes = bytes(ALPHABET.index(each) if each in ALPHABET else 64 for each in range(256))


def encode_id(lane: int, offset: int, attempt: int) -> bytes:
    """The 16 characters that name a delivery."""
    number = (lane << 79) | (offset << 16) | attempt
    return bytes(ALPHABET[(number >> shift) & 63] for shift in range(90, -6, -6))


def decode_id(text: bytes) -> tuple[int, int, int] | None:
    """Lane, offset and attempt of an id; None for 16 characters that never were one."""
    number = 0
    for each in text:
        if NUMBERS[each] > 63:
            return None
        number = number << 6 | NUMBERS[each]
    return number >> 79, (number >> 16) & ((1 << 63) - 1), number & ATTEMPT_MAX
