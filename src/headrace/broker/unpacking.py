"""Unpacker compressed batches without holding the loop.

A few kilobytes can unpack to a hundred megabytes, and the size is not known before. So a batch is first unpacked
to at most `INLINE_BYTES`, on the loop, since a hand-over would cost more than most batches do. What does not fit is
unpacked in a thread, one at a time, and lies ready for the kernels (`compression.AHEAD`) until what they do with it is
done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from headrace.errors import HeadraceError, InvalidRecords, UnpacksTooLarge
from headrace.format.batch import COMPRESSION_MASK, HEADER_BYTES, header_at
from headrace.format.compression import AHEAD, decompress
from headrace.runtime.offload import Offload

INLINE_BYTES = 262_144

Batch = bytes | bytearray | memoryview
Packed = tuple[int, bytes]
T = TypeVar("T")


def prepare(batch: Batch, ready: list[Packed]) -> Packed | None:
    """Unpack a batch that is small, for the kernels that read it before the caller discards what is `ready`. What is
    returned is large, and is to be unpacked off the loop."""
    packed = packed_of(batch)
    if packed is None or packed in AHEAD:
        return None
    try:
        AHEAD[packed] = decompress(*packed, INLINE_BYTES)
    except UnpacksTooLarge:
        return packed
    except HeadraceError:
        # A kernel will say what is wrong with it.
        return None
    ready.append(packed)
    return None


def discard(ready: Iterable[Packed]) -> None:
    """Forget what was unpacked for one reader; what others have ready stays."""
    for packed in ready:
        AHEAD.pop(packed, None)


def packed_of(batch: Batch) -> Packed | None:
    """The codec of a batch and what is compressed with it; None where nothing is."""
    if len(batch) <= HEADER_BYTES:
        return None
    codec = header_at(batch).attributes & COMPRESSION_MASK
    return (codec, bytes(batch[HEADER_BYTES:])) if codec else None


class Unpacker:
    """Large batches, unpacked off the loop."""

    def __init__(self, offload: Offload, max_bytes: int) -> None:
        self._offload = offload
        self._max_bytes = max_bytes
        # What lies ready is memory: no two of them at a time.
        self._turn = asyncio.Lock()

    async def read(self, kernel: Callable[..., T], batch: bytes, *more: object) -> T:
        """What a kernel makes of a batch and the bound on what that unpacks to; off the loop where it is large."""
        packed = packed_of(batch)
        if packed is None or packed in AHEAD:
            return kernel(batch, self._max_bytes, *more)
        try:
            AHEAD[packed] = decompress(*packed, min(INLINE_BYTES, self._max_bytes))
        except UnpacksTooLarge:
            async with self.ahead([packed]):
                return kernel(batch, self._max_bytes, *more)
        except HeadraceError:
            # The kernel will report what is wrong with it.
            pass
        try:
            return kernel(batch, self._max_bytes, *more)
        finally:
            AHEAD.pop(packed, None)

    @asynccontextmanager
    async def ahead(self, large: Sequence[Packed]) -> AsyncIterator[None]:
        """Have large batches ready for the kernels within. Together they are as large as one may be: what is beyond
        that is refused."""
        if not large:
            yield
            return
        async with self._turn:
            left = self._max_bytes
            found: dict[Packed, bytes | InvalidRecords] = {}
            for packed in large:
                found[packed] = body = await self._offload.run(_unpack, packed, left)
                left -= len(body) if isinstance(body, bytes) else 0
            AHEAD.update(found)
            try:
                yield
            finally:
                discard(found)


def _unpack(packed: Packed, max_bytes: int) -> bytes | InvalidRecords:
    try:
        return decompress(*packed, max_bytes)
    except InvalidRecords as error:
        return error
