"""What callers may give for durations and keys, and the words for what they may not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypedDict

Duration = float | timedelta
"""Seconds, or a timedelta."""
Key = bytes | str | int
"""An integer is sent as its digits."""
Headers = Mapping[str, bytes | str | int]


class SendOptions(TypedDict, total=False):
    """What may be given with a payload that is sent."""

    key: Key | None
    headers: Headers | None
    partition: int | None
    delay: Duration


def seconds_of(name: str, value: Any) -> float:
    """A duration, as seconds: a number of them, or a timedelta. Raises TypeError and ValueError."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be seconds or a timedelta (got {value!r})")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be 0 or more seconds (got {value!r})")
    return float(value)


def bytes_of(name: str, value: Any) -> bytes:
    """A key, or a header's value, as it is sent. Raises TypeError."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        # As a key that is taken from a field of the payload.
        return b"%d" % value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{name} must be bytes, text or an integer (got {value!r})")
