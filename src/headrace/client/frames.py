"""Frames that are larger than a connection's buffer: where they are received, and how often the loop wakes for them.

One idea: bytes that only pass through should not be paid for twice. New memory is mapped and cleared page by page; so
a frame goes where an earlier one was, once no view of it is left. And the loop need not turn for every piece of a
frame that comes in: a socket option sets how much should be there first.
"""

from __future__ import annotations

import asyncio
import socket
import sys

# A turn of the loop costs as much as a tenth of this takes to be received.
WAKE_BYTES = 1 << 20
# Larger frames are not kept, nor more of them: two wait for a reader, one is read, one comes.
SPARE_BYTES_MAX = 8 << 20
SPARES = 4
# Frames of one reader differ a little, and should fit into the same memory.
ROOM_BYTES = 64 << 10


class LargeFrames:
    """The one large frame that a connection receives at a time."""

    def __init__(self) -> None:
        self.left = 0
        """Bytes that are missing of the frame under way; 0 where none is."""
        self.rest = memoryview(b"")
        """Where they go."""
        self._frame = memoryview(b"")
        self._spares: list[bytearray] = []
        self._socket: socket.socket | None = None
        self._wakes_at = 1

    def arrive_by(self, transport: asyncio.BaseTransport) -> None:
        """Set the transport of the frames. Encrypted ones have another size on the wire: nothing is waited for."""
        if sys.platform == "linux" and transport.get_extra_info("sslcontext") is None:
            self._socket = transport.get_extra_info("socket")

    def begin(self, size: int, first: memoryview) -> None:
        """A frame of `size` bytes begins, of which `first` are there. They must be fewer."""
        if len(first) >= size:
            raise AssertionError(f"a frame of {size} bytes was found whole in a buffer of {len(first)}")
        self._frame = memoryview(self._room(size))[:size]
        self._frame[: len(first)] = first
        self.left = size - len(first)
        self.rest = self._frame[len(first) :]
        self._wake()

    def fill(self, count: int) -> memoryview | None:
        """So many bytes have come. The frame, if these were the last."""
        self.left -= count
        self.rest = self.rest[count:]
        self._wake()
        if self.left:
            return None
        frame, self._frame, self.rest = self._frame, memoryview(b""), memoryview(b"")
        return frame

    def _room(self, size: int) -> bytearray:
        """Memory of at least `size` bytes without a view of it."""
        for spare in self._spares:
            if len(spare) >= size and _is_free(spare):
                return spare
        room = bytearray(-(-size // ROOM_BYTES) * ROOM_BYTES)
        if size <= SPARE_BYTES_MAX:
            # The oldest is dropped: frames have become larger, or a reader keeps it.
            self._spares = [*self._spares[-(SPARES - 1) :], room]
        return room

    def _wake(self) -> None:
        """Let the loop turn when much of the frame is there, or all of it; between frames, for every byte."""
        wanted = min(self.left, WAKE_BYTES) or 1
        if self._socket is not None and wanted != self._wakes_at:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._wakes_at = wanted


def _is_free(memory: bytearray) -> bool:
    """Whether there is no view of it: only then can it change its size."""
    try:
        # Shorter first: to make it longer could move it.
        memory.pop()
    except BufferError:
        return False
    memory.append(0)
    return True
