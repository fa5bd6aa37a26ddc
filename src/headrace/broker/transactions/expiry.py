"""Forgetting transactional ids: those that were not used for long, and soon those that never were (`unused.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence

import structlog

from headrace.broker.settings import BrokerSettings
from headrace.broker.transactions.store import Entry, Store
from headrace.broker.transactions.transaction import Status, Transaction
from headrace.broker.turns import Turns
from headrace.errors import HeadraceError
from headrace.runtime import Runtime

log = structlog.get_logger("headrace.transactions")

EXPIRY_CHECK_SECONDS = 60.0
# Ids that are looked at between two turns of the loop, and that are forgotten in one flush.
STEP_IDS = 256


class Expiry:
    """What makes room for other ids. `in_turn` does something when it is the turn of an id; `write` makes a state
    durable."""

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        turns: Turns,
        config: BrokerSettings,
        in_turn: Callable[[str, Coroutine[object, object, None]], Awaitable[None]],
        write: Callable[[Entry, Transaction | None], Awaitable[None]],
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._turns = turns
        self._config = config
        self._in_turn = in_turn
        self._write = write

    async def expire(self) -> None:
        """Forget the ids that have had their time."""
        now = self._runtime.clock.now_ms()
        unused = self._store.unused.taken_before(now - self._config.transactional_id_unused_expiration_ms)
        for at in range(0, len(unused), STEP_IDS):
            await self._forget_all(unused[at : at + STEP_IDS], None)
        limit = now - self._config.transactional_id_expiration_ms
        known = list(self._store.entries.values())
        for at in range(0, len(known), STEP_IDS):
            step = known[at : at + STEP_IDS]
            await self._forget_all([each.id for each in step if each.now and each.now.updated_ms < limit], limit)
            await asyncio.sleep(0)

    async def make_room(self, address: str) -> None:
        """Forget the oldest unused ids of a client that has as many as it may have."""
        unused = self._store.unused
        while unused.count(address) >= self._config.transactional_ids_unused_max:
            # Not one that is just being used: its turn is taken.
            oldest = next((each.id for each in unused.of(address) if each.id not in self._turns), None)
            if oldest is None:
                return
            await self._in_turn(oldest, self._forget(oldest, None))

    async def _forget_all(self, ids: Sequence[str], limit: int | None) -> None:
        """Forget ids together: one flush serves them all."""
        tasks = [self._in_turn(each, self._forget(each, limit)) for each in ids]
        for each, error in zip(ids, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
            if isinstance(error, HeadraceError | OSError):
                log.warning("could not forget a transactional id", id=each, error=str(error))
            elif error is not None:
                raise error

    async def _forget(self, transactional_id: str, limit: int | None) -> None:
        """Forget an id, if it was not used since `limit` (None: if it was never used)."""
        entry = self._store.entries.get(transactional_id)
        state = entry.now if entry is not None else None
        if entry is None or state is None or state.status is Status.ONGOING:
            return
        if (state.updated_ms < limit) if limit is not None else not state.is_used:
            await self._write(entry, None)
            self._store.drop(transactional_id)
