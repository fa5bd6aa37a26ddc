"""Bytes from a file to a socket without passing through Python.

A transport owns its socket, and event loops let no other code watch that descriptor. So the sender holds a duplicate:
the same connection under another number, on which it may send and wait for room while the transport's own buffer is
empty.
"""

from __future__ import annotations

import os
import socket
from typing import Protocol


class DirectSocket:
    """A duplicate of a transport's plain TCP socket."""

    __slots__ = ("_socket",)

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=os.dup(fd))
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """The duplicate's number, to wait on."""
        return self._socket.fileno()

    def send(self, data: bytes | bytearray | memoryview, more: bool) -> int:
        """Send what the connection has room for; how much that was. `more`: something follows at once, so a packet
        that is not full may wait for it."""
        try:
            return self._socket.send(data, socket.MSG_MORE if more else 0)
        except BlockingIOError:
            return 0

    def sendfile(self, fd: int, position: int, length: int) -> int:
        """Send from the file what the connection has room for; how much that was, or -1 at the end of the file."""
        try:
            return os.sendfile(self._socket.fileno(), fd, position, length) or -1
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Give the duplicate back; the connection itself goes on."""
        self._socket.close()


class HasOptions(Protocol):
    """A socket, as a transport shows it."""

    def setsockopt(self, level: int, option: int, value: bytes, /) -> None: ...


def is_same_machine(host: str) -> bool:
    """Whether a peer's address is one of this machine's loopback."""
    return host.startswith("127.") or host == "::1"


def without_pacing(of_transport: HasOptions) -> None:
    """Let a connection within this machine send as fast as it is read. Where the machine's congestion control is BBR, a
    timer is set for every packet, which is half the cost of sending a large reply and has nothing to guard here."""
    try:
        of_transport.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    except OSError:
        pass  # not allowed here: then it is paced
