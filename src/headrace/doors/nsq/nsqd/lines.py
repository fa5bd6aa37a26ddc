"""Lines of text into the body of an MPUB: one message for each line, none for an empty one."""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.libc.string import memchr, memcpy

NEWLINE = cython.declare(cython.int, 10)


def mpub_body(text: bytes, size_max: int) -> bytearray | None:
    """Count, then length and bytes of each line, as NSQ's binary form has them; None where a line is longer than
    `size_max`."""
    at: cython.p_const_uchar = text
    end: cython.Py_ssize_t = len(text)
    most: cython.Py_ssize_t = min(size_max, 2_147_483_647)
    body: bytearray = bytearray(4 + 4 * (text.count(b"\n") + 1) + end)
    out: cython.p_uchar = body
    start: cython.Py_ssize_t = 0
    stop: cython.Py_ssize_t
    size: cython.Py_ssize_t
    filled: cython.Py_ssize_t = 4
    count: cython.Py_ssize_t = 0
    while start < end:
        stop = line_end(at, start, end, text)
        size = stop - start
        if size > most:
            return None
        if size:
            put(out, filled, size)
            filled += 4
            if cython.compiled:
                memcpy(out + filled, at + start, size)
            else:
                body[filled : filled + size] = text[start:stop]
            filled += size
            count += 1
        start = stop + 1
    put(out, 0, count)
    del body[filled:]
    return body


@cython.cfunc
@cython.exceptval(check=False)
def line_end(
    at: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t, text: bytes
) -> cython.Py_ssize_t:
    """Where the line that begins at `start` ends."""
    if cython.compiled:
        found: cython.p_const_uchar = cython.cast(cython.p_const_uchar, memchr(at + start, NEWLINE, end - start))
        return end if found == cython.NULL else found - at
    else:
        place: cython.Py_ssize_t = text.find(b"\n", start)
        return end if place < 0 else place


@cython.cfunc
@cython.exceptval(check=False)
def put(out: cython.p_uchar, position: cython.Py_ssize_t, number: cython.Py_ssize_t) -> cython.void:
    """Write a number as four bytes."""
    out[position] = (number >> 24) & 0xFF
    out[position + 1] = (number >> 16) & 0xFF
    out[position + 2] = (number >> 8) & 0xFF
    out[position + 3] = number & 0xFF
