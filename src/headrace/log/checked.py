"""Small files under a checksum: a line with the CRC-32C of what follows it."""

from __future__ import annotations

from crc32c import crc32c

from headrace.runtime.disk import Disk, read_whole, replace_whole


class ChecksumWrong(Exception):
    """The file is there, and is not what was written."""


def save(disk: Disk, path: str, body: bytes) -> None:
    """Replace the file durably. Blocks."""
    replace_whole(disk, path, b"%08x\n%b" % (crc32c(body), body))


def load(disk: Disk, path: str) -> bytes | None:
    """What was saved, or None where there is no file. Blocks. Raises ChecksumWrong."""
    contents = read_whole(disk, path)
    if contents is None:
        return None
    crc, _, body = contents.partition(b"\n")
    if crc != b"%08x" % crc32c(body):
        raise ChecksumWrong(path)
    return body
