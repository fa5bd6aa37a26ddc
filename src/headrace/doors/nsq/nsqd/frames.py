"""What goes to a client: frames of a size, a kind and data. Frames of messages are a kernel's business."""

from __future__ import annotations

from struct import Struct

RESPONSE = 0
ERROR = 1
MESSAGE = 2

_HEAD = Struct(">ii")


def frame(kind: int, data: bytes) -> bytes:
    """One frame."""
    return _HEAD.pack(len(data) + 4, kind) + data


def error(code: str, text: str) -> bytes:
    """The frame that refuses a command."""
    return frame(ERROR, f"{code} {text}".encode("utf-8", "replace"))


OK = frame(RESPONSE, b"OK")
HEARTBEAT = frame(RESPONSE, b"_heartbeat_")
CLOSE_WAIT = frame(RESPONSE, b"CLOSE_WAIT")
# Before there is a protocol, there is no text behind the code.
BAD_PROTOCOL = frame(ERROR, b"E_BAD_PROTOCOL")
