# cython: boundscheck=False, wraparound=False
"""Whether a batch is one of those that are appended as they come, as most are: one look at its header and checksum.

The layout is in `headrace.format.batch`. A batch that does not pass is looked at again in `admission.py`, which says
what is wrong with it, or that nothing is.
"""

from __future__ import annotations

import cython
from crc32c import crc32c

if cython.compiled:
    from cython.cimports.cpython.buffer import Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

HEADER_BYTES = cython.declare(cython.Py_ssize_t, 61)
LENGTH_AT = cython.declare(cython.Py_ssize_t, 8)
LENGTH_END = cython.declare(cython.Py_ssize_t, 12)
MAGIC_AT = cython.declare(cython.Py_ssize_t, 16)
CRC_AT = cython.declare(cython.Py_ssize_t, 17)
CRC_FROM: int = 21
ATTRIBUTES_AT = cython.declare(cython.Py_ssize_t, 21)
DELTA_AT = cython.declare(cython.Py_ssize_t, 23)
OLDEST_AT = cython.declare(cython.Py_ssize_t, 27)
NEWEST_AT = cython.declare(cython.Py_ssize_t, 35)
PRODUCER_AT = cython.declare(cython.Py_ssize_t, 43)
COUNT_AT = cython.declare(cython.Py_ssize_t, 57)
# All that a plain batch may have in its attributes: a codec and the type of its timestamps.
CODEC = cython.declare(cython.int, 0x07)
PLAIN = cython.declare(cython.int, 0x0F)
ZSTD = cython.declare(cython.int, 4)
# What topics allow where nothing else is configured: no bound on old times, an hour for new ones.
BEFORE_MAX_MS: int = (1 << 63) - 1
AFTER_MAX_MS: int = 3_600_000
_before_max_ms = cython.declare(cython.longlong, BEFORE_MAX_MS)
_after_max_ms = cython.declare(cython.longlong, AFTER_MAX_MS)
UINT32_MAX = cython.declare(cython.longlong, 0xFFFFFFFF)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def number(data: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.int) -> cython.longlong:
    """A signed number of so many bytes."""
    found: cython.longlong = data[at]
    if found > 127:
        found -= 256
    while size > 1:
        at += 1
        size -= 1
        found = found * 256 + data[at]
    return found


def plain(
    batch: bytearray | memoryview,
    size_max: cython.longlong,
    now_ms: cython.longlong,
    before_max_ms: cython.longlong,
    after_max_ms: cython.longlong,
) -> tuple[int, int] | None:
    """Last offset delta and largest timestamp of a batch that nothing is wrong with and no producer has numbered; None
    for any other, and where the times of its records must be looked at."""
    size: cython.Py_ssize_t = len(batch)
    fits: cython.bint
    attributes: cython.int
    delta: cython.longlong
    newest: cython.longlong
    crc: cython.longlong
    if size < HEADER_BYTES or size > size_max:
        return None
    if before_max_ms < _before_max_ms or after_max_ms < _after_max_ms:
        return None
    if cython.compiled:
        held = cython.declare(Py_buffer)
        PyObject_GetBuffer(batch, cython.address(held), PyBUF_SIMPLE)
        data: cython.p_const_uchar = cython.cast(cython.p_const_uchar, held.buf)
    else:
        data = batch
    attributes = data[ATTRIBUTES_AT + 1]
    delta = number(data, DELTA_AT, 4)
    newest = number(data, NEWEST_AT, 8)
    crc = number(data, CRC_AT, 4) & UINT32_MAX
    fits = (
        number(data, LENGTH_AT, 4) + LENGTH_END == size
        and data[MAGIC_AT] == 2
        and data[ATTRIBUTES_AT] == 0
        and attributes & ~PLAIN == 0
        and attributes & CODEC <= ZSTD
        and number(data, PRODUCER_AT, 8) < 0
        and delta >= 0
        and number(data, COUNT_AT, 4) == delta + 1
        and newest >= number(data, OLDEST_AT, 8)
        and (newest <= now_ms or newest - now_ms <= after_max_ms)
    )
    if cython.compiled:
        PyBuffer_Release(cython.address(held))
    if not fits or crc32c(memoryview(batch)[CRC_FROM:]) != crc:
        return None
    return delta, newest
