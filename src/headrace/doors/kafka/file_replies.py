"""Sending a reply that holds ranges of files.

On a plain TCP connection whose transport holds nothing back, the ranges go from the page cache to the socket by
sendfile, behind the bytes before them, on a duplicate of the socket; when the socket is full, the outbox waits on that
duplicate. A range that is not in the page cache is first read off the loop. Under TLS, or where there is no descriptor
to send from, the ranges are read and written in pieces, each after the client has taken the one before.

Every range is unpinned exactly once, whatever happens to the connection.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headrace.runtime.disk import FileRange
from headrace.runtime.sendfile import DirectSocket

if TYPE_CHECKING:
    import asyncio

    from headrace.doors.kafka.connection import Connection

Part = bytes | bytearray | FileRange

# How much is read at a time where sendfile cannot be used, and to warm the page cache where it can.
PIECE = 262_144
WARM = 1_048_576


def release_parts(parts: list[Part]) -> None:
    """Unpin what will not be sent."""
    for part in parts:
        if isinstance(part, FileRange):
            part.release()


def _have_descriptors(parts: list[Part]) -> bool:
    return all(part.file.fileno() >= 0 for part in parts if isinstance(part, FileRange))


class Outbox:
    """One reply at a time, from the first byte to the last."""

    __slots__ = ("_connection", "_direct", "_parts", "_task", "_waiting", "_warm")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._direct: DirectSocket | None = None
        self._parts: deque[Part] = deque()
        self._waiting = False
        # Bytes of the first part that were read ahead: under pressure they may be evicted again, and are sent even so.
        self._warm = 0
        self._task: asyncio.Task[None] | None = None

    def send(self, parts: list[Part]) -> bool:
        """Send the parts in order. True: all are out. False: `release` is called when they are."""
        self._parts.extend(parts)
        connection = self._connection
        if not connection.tls and not connection.unread and _have_descriptors(parts):
            if self._direct is None:
                socket = connection.transport.get_extra_info("socket")
                # None left for a duplicate: then it goes the slower way.
                capacity = connection.door.connections.capacity
                if socket is not None and socket.fileno() >= 0 and capacity.take():
                    try:
                        self._direct = DirectSocket(socket.fileno())
                    except OSError:
                        capacity.give_back()
            if self._direct is not None:
                try:
                    return self._send_directly()
                except OSError:
                    connection.transport.abort()
                    return False
        self._task = connection.door.loop.create_task(self._copy())
        return False

    @property
    def sending(self) -> bool:
        """Something is not out yet."""
        return bool(self._parts)

    @property
    def left(self) -> int:
        """Bytes that are not out yet."""
        return sum(part.length if isinstance(part, FileRange) else len(part) for part in self._parts)

    @property
    def held(self) -> tuple[int, int]:
        """Bytes in memory, and files, that are kept for what is not out yet."""
        files = sum(isinstance(part, FileRange) for part in self._parts)
        return sum(len(part) for part in self._parts if not isinstance(part, FileRange)), files

    def _send_directly(self) -> bool:
        direct, parts = self._direct, self._parts
        assert direct is not None
        while parts:
            part = parts[0]
            if isinstance(part, FileRange):
                if part.warm:
                    self._warm, part.warm = part.warm, 0
                window = min(part.length, self._warm or WARM)
                if not self._warm and not part.file.resident(part.position, window):
                    self._task = self._connection.door.loop.create_task(self._read_ahead(part, window))
                    return False
                sent = direct.sendfile(part.file.fileno(), part.position, window)
                if sent < 0:
                    raise OSError(f"{part.file.path} ends before position {part.position}")
                part.position += sent
                part.length -= sent
                self._warm = max(self._warm - sent, 0)
                if part.length == 0:
                    parts.popleft()
                    part.release()
                if sent == window:
                    continue
            else:
                sent = direct.send(part, len(parts) > 1)
                if sent == len(part):
                    parts.popleft()
                    continue
                parts[0] = part[sent:]
            if not self._waiting:
                self._waiting = True
                self._connection.door.loop.add_writer(direct.fileno(), self._writable)
            return False
        return True

    def _writable(self) -> None:
        self._stop_waiting()
        self._go_on()

    def _go_on(self) -> None:
        try:
            finished = self._send_directly()
        except OSError:
            self._connection.transport.abort()
            return
        if finished:
            self._connection.sent()

    async def _read_ahead(self, part: FileRange, window: int) -> None:
        """Bring a range into the page cache, off the loop."""
        # Pinned once more: the connection may be lost, and its ranges given back, while a thread still reads.
        part.file.pin()
        try:
            await self._connection.door.broker.runtime.offload.run(part.file.read, part.position, window)
        except OSError:
            self._connection.transport.abort()
            return
        finally:
            part.release()
            self._task = None
        if self._parts:
            self._warm = window
            self._go_on()

    async def _copy(self) -> None:
        """Read and write, a piece at a time."""
        connection, parts = self._connection, self._parts
        offload = connection.door.broker.runtime.offload
        try:
            await connection.room()
            while parts:
                part = parts[0]
                if isinstance(part, FileRange):
                    size = min(part.length, PIECE)
                    if part.file.resident(part.position, size):
                        data = part.file.read(part.position, size)
                    else:
                        part.file.pin()
                        try:
                            data = await offload.run(part.file.read, part.position, size)
                        finally:
                            part.release()
                        if not parts:
                            return
                    if not data:
                        raise OSError(f"{part.file.path} ends before position {part.position}")
                    part.position += len(data)
                    part.length -= len(data)
                    if part.length == 0:
                        parts.popleft()
                        part.release()
                    connection.transport.write(data)
                else:
                    parts.popleft()
                    connection.transport.write(part)
                await connection.room()
        except OSError:
            connection.transport.abort()
            return
        finally:
            self._task = None
        connection.sent()

    def _stop_waiting(self) -> None:
        if self._waiting and self._direct is not None:
            self._waiting = False
            self._connection.door.loop.remove_writer(self._direct.fileno())

    def cancel(self) -> None:
        """The connection is lost: give back what was not sent."""
        self._stop_waiting()
        release_parts(list(self._parts))
        self._parts.clear()
        if self._direct is not None:
            self._direct.close()
            self._direct = None
            self._connection.door.connections.capacity.give_back()
