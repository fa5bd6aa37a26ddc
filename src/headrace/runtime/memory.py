"""Memory of large buffers goes back to the operating system when they are freed.

glibc gives a large allocation pages of its own, which go back at once. But each one that is freed raises the size from
which an allocation counts as large, up to 32 MiB: from then on such buffers come from the heap, and there one small
object that was made behind them keeps all of them with the process.
"""

from __future__ import annotations

# From this size on an allocation has pages of its own. Getting those costs more than copying into them, so it lies
# above the batches and requests of every day.
LARGE_BYTES = 2 << 20
# As much may be free at the end of the heap before it is cut; glibc's own measure is twice the size above, too.
SPARE_BYTES = 2 * LARGE_BYTES

# Of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def return_large_buffers() -> None:
    """Hold the allocator of this process to it. Where that is not glibc's, nothing happens."""
    # Imported here: a command that serves no clients never pays for it.
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
    mallopt(_TRIM_THRESHOLD, SPARE_BYTES)
