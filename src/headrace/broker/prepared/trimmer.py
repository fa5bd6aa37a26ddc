"""Keeping `__half` short: what is decided is forgotten, and what stays undecided makes way.

The log is trimmed up to the first record that is needed: the oldest undecided message, or the oldest outcome that is
remembered. If one message stays undecided while thousands come and go behind it, the log would grow without bound. So
once more than `half_log_bytes` is kept, and less than half of that is of undecided messages, the oldest of them are
written again at the end, with their ids, and outcomes older than they are forgotten.
"""

from __future__ import annotations

import asyncio

import structlog

from headrace.broker.prepared import entries
from headrace.broker.prepared.entries import NEVER, Prepared
from headrace.broker.prepared.store import Store
from headrace.broker.prepared.table import Pending
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import Row
from headrace.errors import HeadraceError

log = structlog.get_logger("headrace.prepared")

# What is moved in one append.
MOVE_MESSAGES = 64
MOVE_BYTES = 262_144
# Outcomes that are forgotten before looking again whether that was enough.
FORGET_OUTCOMES = 16


class Trimmer:
    """Trims, moves, forgets."""

    def __init__(self, store: Store, config: BrokerSettings) -> None:
        self._store = store
        self._config = config
        self.moved = 0

    async def tend(self) -> None:
        """Give back what is not needed."""
        store = self._store
        partition = store.partition
        # Each is moved once at most: should that not be enough, there is something else in the way.
        moved_max = self.moved + len(store.table.pending)
        try:
            while True:
                oldest = store.table.oldest(partition.high_watermark)
                frees = oldest > partition.start and store.log.local(partition).freed_by(oldest)
                if frees and not await store.state.forget(partition, oldest):
                    return
                if not self._too_long() or self.moved > moved_max or not await self._make_way():
                    return
                await asyncio.sleep(0)
        except (HeadraceError, OSError) as error:
            # The next time tries again.
            log.warning("half messages that are decided could not be forgotten", error=str(error))

    def _too_long(self) -> bool:
        """Whether what is kept is more than may be, and most of it for the sake of little."""
        partition = self._store.partition
        # Room comes by whole segments: below a few of them nothing could be gained.
        bound = max(self._config.half_log_bytes, 4 * partition.topic.settings.segment_bytes)
        return self._store.log.local(partition).size() > bound + 2 * self._store.table.bytes

    async def _make_way(self) -> bool:
        """Do something about the first record that is needed; False where nothing can be done now."""
        table = self._store.table
        first = next(iter(table.pending.values()), None)
        outcomes = 0
        while table.decided and outcomes < FORGET_OUTCOMES:
            oldest = next(iter(table.decided.values()))
            if first is not None and oldest.place > first.place:
                break
            del table.decided[oldest.number]
            outcomes += 1
        return outcomes > 0 or await self._move()

    async def _move(self) -> bool:
        """Write the oldest undecided messages again, at the end."""
        store = self._store
        chosen: list[tuple[Pending, Row]] = []
        size = 0
        for entry in self._oldest():
            message = await store.message(entry)
            next_check = entry.next_check_ms if entry.next_check_ms != NEVER else 0
            now = Prepared(entry.number, message, entry.checks, next_check, entry.parked)
            chosen.append((entry, entries.write_moved(now, store.now())))
            size += entry.size
            if size >= MOVE_BYTES:
                break
        # Some were decided, or are about to be, while others were read.
        chosen = [each for each in chosen if self._is_free(each[0])]
        if not chosen:
            return False

        def then(error: Exception | None, base: int) -> None:
            if error is None:
                for index, (entry, _) in enumerate(chosen):
                    if store.table.pending.get(entry.number) is entry:
                        store.table.moved(entry, base + index)
                self.moved += len(chosen)

        await store.append([store.write(*(row for _, row in chosen))], then)
        return True

    def _oldest(self) -> list[Pending]:
        found: list[Pending] = []
        for entry in self._store.table.pending.values():
            if len(found) == MOVE_MESSAGES:
                break
            if self._is_free(entry):
                found.append(entry)
        return found

    def _is_free(self, entry: Pending) -> bool:
        return entry.deciding is None and self._store.table.pending.get(entry.number) is entry
