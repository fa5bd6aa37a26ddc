"""What has come from a client and is not handled yet.

All connections of a door receive into one buffer, since a loop fills it and hands it over in the same turn; only what
is left of a cut command is kept per connection, so an idle one holds nothing. A large command has a buffer of its own,
which grows as its bytes arrive. Where the stream is packed, it is unpacked a slice at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.doors.nsq.nsqd.compression import Unpacker

if TYPE_CHECKING:
    from headrace.doors.nsq.nsqd.door import Nsqd

# What may be kept for a held connection before its socket is no longer read.
HELD_BYTES = 65_536
# A command above this is received into a buffer of its own.
LARGE = 131_072
# The least that the buffer has at first, when no spare one is there.
FIRST = 8_192
# Plain bytes taken from a packed stream at once.
SLICE = 262_144


class Inbox:
    """The bytes of one connection."""

    __slots__ = ("_door", "_filled", "_fresh", "_need", "_own", "_unpacker")

    def __init__(self, door: Nsqd) -> None:
        self._door = door
        # A cut command: exactly its bytes, or for a large one a buffer of which `_filled` bytes are there.
        self._own: bytearray | None = None
        self._filled = 0
        self._need = 0
        # How many bytes of the shared buffer are worth a look; -1: what is kept is.
        self._fresh = 0
        self._unpacker: Unpacker | None = None

    @property
    def kept(self) -> int:
        """Bytes that are kept, or for which there is room."""
        return len(self._own or b"") + (self._unpacker.waiting if self._unpacker is not None else 0)

    @property
    def packed(self) -> bool:
        """The stream is a packed one."""
        return self._unpacker is not None

    def room(self) -> memoryview:
        """Where to receive into."""
        own = self._own
        view = self._door.view
        if own is None or self._unpacker is not None:
            return view
        if self._need > LARGE:
            if self._filled == len(own):
                own = self._own = self._door.buffers.grow(own, self._need)
            return memoryview(own)[self._filled : self._need]
        kept = len(own)
        if kept >= len(view):
            raise BufferError("a held connection was read past its bound")
        view[:kept] = own
        return view[kept:]

    def received(self, count: int) -> None:
        """So many bytes have come into the room."""
        if self._unpacker is not None:
            self._unpacker.feed(self._door.view[:count])
        elif self._own is None:
            self._fresh = count
        elif self._need > LARGE:
            self._filled += count
            self._fresh = -1 if self._filled == self._need else 0
        else:
            self._fresh = len(self._own) + count

    def look_again(self) -> None:
        """What is kept may be handled now: something else than its bytes was waited for."""
        if self._own is not None and (self._need <= LARGE or self._unpacker is not None):
            self._fresh = -1

    def next(self) -> tuple[bytearray, int] | None:
        """Bytes to handle, and where they end; None where more must come first. What is not handled of them must be
        given to `keep`, in the same turn. Raises Broken."""
        fresh, self._fresh = self._fresh, 0
        if self._unpacker is not None:
            return self._unpack(self._unpacker, fresh < 0)
        if fresh > 0:
            return self._door.buffer, fresh
        if fresh == 0 or self._own is None:
            return None
        return self._own, self._filled if self._need > LARGE else len(self._own)

    def _unpack(self, unpacker: Unpacker, again: bool) -> tuple[bytearray, int] | None:
        own = self._own if self._own is not None else bytearray()
        while not again or len(own) < self._need:
            data = unpacker.read(SLICE)
            if not data:
                self._own = own or None
                return None
            own += data
            again = True
        self._own = own
        return own, len(own)

    def keep(self, buffer: bytearray, position: int, end: int, needed: int) -> bool:
        """Keep what is left from `position` on; `needed` are the bytes of the cut command there, as far as they are
        known. False: there is no room for more, and the socket must not be read until `next` has been asked again."""
        left = end - position
        if self._unpacker is not None:
            del buffer[:position]
            self._own = buffer or None
            self._need = needed
            return self._unpacker.waiting < HELD_BYTES
        if left == 0:
            if self._need > LARGE:
                self._door.buffers.give_back(buffer)
            self.clear()
            return True
        if needed > LARGE:
            own = self._door.buffers.take(max(2 * left, FIRST), needed)
            own[:left] = memoryview(buffer)[position:end]
            self._own = own
            self._filled = left
            self._need = needed
            return True
        self._own = buffer[position:end]
        self._need = 0
        return left < HELD_BYTES

    def unpack_with(self, unpacker: Unpacker) -> None:
        """From here on the stream is packed."""
        if self._own is not None:
            # What came behind the IDENTIFY was packed already.
            unpacker.feed(bytes(self._own))
        self.clear()
        self._unpacker = unpacker

    def clear(self) -> None:
        """Forget what is kept."""
        self._own = None
        self._filled = 0
        self._need = 0
        self._fresh = 0
