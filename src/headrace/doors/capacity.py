"""What the doors of one broker share: descriptors for connections, memory for large requests that are being received,
and memory for replies that clients leave unread.

A bound for each connection and each door does not bound the process. So connections of all doors are counted together,
within what the log's own files leave of the descriptors; and so are the bytes of replies, and the files that replies
are sent from, that wait for their clients to read them. Beyond that bound the clients that have waited the longest are
cut off: they can connect again, and lose nothing but an answer.

The memory that large requests are received into is counted as it grows with what arrives. Beyond the bound they wait,
unread in their sockets, except for the one that began first: it is received to its end, and so they all are, one after
the other if need be. Small requests wait for none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

import structlog

from headrace.broker.clients import Clients
from headrace.broker.quotas.connections import Connections
from headrace.broker.rate_limit import RateLimit

log = structlog.get_logger("headrace.doors")


class Abortable(Protocol):
    """What is asked of a connection."""

    def abort(self) -> None: ...


class Capacity:
    """The budgets of one broker."""

    def __init__(
        self,
        *,
        unread_bytes: int = sys.maxsize,
        unread_files: int = sys.maxsize,
        receiving_bytes: int = sys.maxsize,
        descriptors: int = sys.maxsize,
    ) -> None:
        self.limits: Connections | None = None
        self.clients = Clients()
        """Who is connected, for operators."""
        """What the broker's quotas say of connections."""
        self.descriptors_left = descriptors
        """For connections."""
        self.unread_bytes = 0
        """Of replies that wait to be read."""
        self.unread_files = 0
        """That such replies are sent from, each counted for every reply."""
        self.receiving_bytes = 0
        """Of memory for large requests that are being received."""
        self._bytes_max = unread_bytes
        self._receiving_max = receiving_bytes
        # In the order in which they began.
        self._reserved: dict[object, int] = {}
        # Those that wait: to go on, and to begin.
        self._growing: dict[object, tuple[int, Callable[[], None]]] = {}
        self._beginning: dict[object, tuple[int, Callable[[], None]]] = {}
        self.files_max = unread_files
        # In the order in which they began to wait.
        self._waiting: dict[Abortable, tuple[int, int]] = {}
        self._refusing = RateLimit()
        self._delaying = RateLimit()
        self._aborting = RateLimit()

    # --- descriptors --------------------------------------------------------------------------------------------------

    def take(self) -> bool:
        """Take a descriptor for a connection, if one is left."""
        if self.descriptors_left <= 0:
            return False
        self.descriptors_left -= 1
        return True

    def give_back(self) -> None:
        """Return one that was taken."""
        self.descriptors_left += 1

    def refused(self, door: str, now: float) -> None:
        """Log that a connection was refused for want of a descriptor, now and then."""
        if count := self._refusing.count(now):
            log.warning(
                "connections are refused: the others and the log's files need all descriptors that the process may "
                "open. Raise the limit (ulimit -n)",
                door=door,
                count=count,
            )

    # --- large requests -----------------------------------------------------------------------------------------------

    def reserve(self, connection: object, size: int, on_reserved: Callable[[], None], door: str, now: float) -> bool:
        """Have room for `size` bytes of the request that a connection receives; False: there is none, and `on_reserved`
        is called once it is taken."""
        has_begun = connection in self._reserved
        if (has_begun or not self._beginning) and self._fits(connection, size):
            self._take_room(connection, size)
            return True
        line = self._growing if has_begun else self._beginning
        if connection not in line and (count := self._delaying.count(now)):
            log.warning(
                "large requests wait: more may not be received at once (receiving_max_bytes)", door=door, count=count
            )
        line[connection] = (size, on_reserved)
        return False

    def release(self, connection: object) -> None:
        """Give the room of a request back that is handled, or will not come; those in line have it."""
        self._growing.pop(connection, None)
        self._beginning.pop(connection, None)
        self.receiving_bytes -= self._reserved.pop(connection, 0)
        for line in (self._growing, self._beginning):
            while line:
                first, (size, on_reserved) = next(iter(line.items()))
                if not self._fits(first, size):
                    # Whatever begins would take what those need that have begun.
                    return
                del line[first]
                self._take_room(first, size)
                on_reserved()

    def _fits(self, connection: object, size: int) -> bool:
        """The first to have begun always has room, however large it is: so there is one that does not wait."""
        if next(iter(self._reserved), connection) is connection:
            return True
        return self.receiving_bytes + size - self._reserved.get(connection, 0) <= self._receiving_max

    def _take_room(self, connection: object, size: int) -> None:
        self.receiving_bytes += size - self._reserved.get(connection, 0)
        self._reserved[connection] = size

    # --- replies that clients leave unread --------------------------------------------------------------------------

    def note_unread(self, connection: Abortable, size: int, files: int, door: str, now: float) -> int:
        """What waits for a client to be read is now `size` bytes, sent from so many files; how many connections were
        cut off for it."""
        had_bytes, had_files = self._waiting.get(connection, (0, 0))
        self.unread_bytes += size - had_bytes
        self.unread_files += files - had_files
        if size or files:
            self._waiting[connection] = (size, files)
        else:
            self._waiting.pop(connection, None)
        aborted = 0
        # A reply may be larger than the bound; alone, it does no harm.
        while (self.unread_bytes > self._bytes_max or self.unread_files > self.files_max) and len(self._waiting) > 1:
            oldest = next(iter(self._waiting))
            taken_bytes, taken_files = self._waiting.pop(oldest)
            self.unread_bytes -= taken_bytes
            self.unread_files -= taken_files
            oldest.abort()
            aborted += 1
        if aborted and (count := self._aborting.count(now, aborted)):
            log.warning(
                "clients that do not read their replies were cut off: more may not wait (unread_max_bytes)",
                door=door,
                count=count,
            )
        return aborted
