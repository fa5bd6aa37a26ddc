"""Since when a group has not read a record: the time of the batch that its position points to.

It is read from the log, so of many groups only some are looked at in a round, and a position that has not moved is not
read for again.
"""

from __future__ import annotations

from headrace.broker.reading import bytes_now, bytes_of, chunk_at
from headrace.errors import HeadraceError
from headrace.format.batch import HEADER_BYTES, header_at
from headrace.log.interface import Partition
from headrace.runtime import Runtime

READS_A_ROUND = 200
PLACES_MAX = 20_000


class UnreadSince:
    """Times of unread records, by group and partition."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[tuple[str, Partition], tuple[int, int]] = {}
        self._left = 0

    def begin_round(self) -> None:
        """Some may be read again."""
        self._left = READS_A_ROUND
        if len(self._known) > PLACES_MAX:
            self._known.clear()

    @property
    def may_read(self) -> bool:
        """There is something left of this round."""
        return self._left > 0

    def known(self, group: str, partition: Partition, position: int) -> int | None:
        """The time of the first unread record, if it need not be read."""
        found = self._known.get((group, partition))
        return found[1] if found is not None and found[0] == position else None

    async def find(self, group: str, partition: Partition, position: int) -> int | None:
        """The same, read if it must be; None where too many were read in this round, or it cannot be."""
        known = self.known(group, partition, position)
        if known is not None or not self.may_read:
            return known
        self._left -= 1
        time = await time_at(self._runtime, partition, position)
        if time is not None:
            self._known[group, partition] = position, time
        return time


async def time_at(runtime: Runtime, partition: Partition, offset: int) -> int | None:
    """When the batch that holds an offset was written, by its own time."""
    try:
        chunk = await chunk_at(runtime, partition, offset, 1, False)
        data = bytes_now(chunk)
        data = await bytes_of(runtime, chunk) if data is None else data
    except (HeadraceError, OSError):
        return None
    return header_at(data).base_timestamp if len(data) >= HEADER_BYTES else None
