"""A connection whose bytes are compressed from some point on, both ways: unpacked a slice at a time.

A slice is handled before the next is unpacked, so that a few bytes which unpack to gigabytes cost neither memory nor
the turns of other connections.
"""

from __future__ import annotations

from typing import Any

from headrace.doors.connection import CLOSING, HELD_BYTES, LOST, TURN, BufferedConnection
from headrace.doors.nsq.nsqd.compression import Compressor, Decompressor, StreamError

# Slices in one turn of the loop.
TURN_SLICES = 8
# Plain bytes taken from a stream at once.
SLICE = 262_144


class CompressedConnection(BufferedConnection):
    """A client that may ask for compression."""

    __slots__ = ("_compressor", "_decompressor")

    def __init__(self, door: Any) -> None:
        super().__init__(door)
        self._compressor: Compressor | None = None
        self._decompressor: Decompressor | None = None

    def _broken(self, error: StreamError) -> None:
        """What came is not the stream that was negotiated: close the connection."""
        raise NotImplementedError

    @property
    def compressed(self) -> bool:
        """The client speaks a compressed stream."""
        return self._decompressor is not None

    def compress_with(self, compressor: Compressor, decompressor: Decompressor) -> None:
        """Speak a compressed stream from here on, both ways."""
        self._compressor = compressor
        if self._own is not None:
            # What came behind the IDENTIFY was compressed already.
            decompressor.feed(bytes(self._own))
        self._own = None
        self._need = 0
        self._decompressor = decompressor

    def _pack(self, data: bytes | bytearray) -> bytes | bytearray:
        return data if self._compressor is None else self._compressor.pack(data)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._decompressor is not None:
            return self.door.view
        return BufferedConnection.get_buffer(self, sizehint)

    def buffer_updated(self, count: int) -> None:
        if self._decompressor is None:
            BufferedConnection.buffer_updated(self, count)
        elif not self._held & (CLOSING | LOST):
            self._decompressor.feed(self.door.view[:count])
            self._unpack(self._decompressor, again=False)

    def release(self, reason: int) -> None:
        """Go on with what has arrived meanwhile, unless something else holds."""
        if self._decompressor is None:
            BufferedConnection.release(self, reason)
            return
        self._held &= ~reason
        if not self._held:
            self._unpack(self._decompressor, again=self._own is not None)
        self._resume_reading()

    def _go_on_later(self) -> None:
        """Let others have their turn."""
        self._held |= TURN
        self.door.loop.call_soon(self.release, TURN)

    def _unpack(self, decompressor: Decompressor, again: bool) -> None:
        """Unpack a slice at a time and handle it. `again`: what is kept may be handled now; something else than its
        bytes was waited for."""
        own = self._own if self._own is not None else bytearray()
        slices = 0
        while not self._held:
            if slices == TURN_SLICES:
                self._go_on_later()
                return
            try:
                while not again or len(own) < self._need:
                    data = decompressor.read(SLICE)
                    if not data:
                        self._own = own or None
                        return
                    own += data
                    again = True
            except StreamError as error:
                self._broken(error)
                return
            position = self._consume(own, len(own))
            if self._held & (CLOSING | LOST):
                self._own = None
                return
            del own[:position]
            self._own = own or None
            self._need = self._needed(own, 0, len(own))
            again = False
            slices += 1
        if decompressor.waiting >= HELD_BYTES:
            self._pause_reading()
