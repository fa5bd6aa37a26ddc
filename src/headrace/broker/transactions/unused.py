"""Transactional ids that never had a transaction, oldest first.

InitProducerId alone makes an id known, so a client that only ever asks for ids must not use up those of all others:
each client (the address that it comes from) has a bounded number of unused ids, where a new one discards its oldest,
and an unused id is soon forgotten. The id that a connection took last is spared for as long as the connection is open:
a producer has one id, and may wait for hours before its first transaction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.transactions.store import Entry


@dataclass(slots=True, eq=False)
class Holder:
    """A connection on which transactional ids are taken."""

    address: str
    is_open: bool = True
    latest: str = ""

    def spares(self, transactional_id: str) -> bool:
        """Whether the id may yet have its first transaction on this connection."""
        return self.is_open and self.latest == transactional_id


# Of ids whose connection is not known, as after a start.
NO_HOLDER = Holder("")


class UnusedIds:
    """The unused ids of each client."""

    def __init__(self) -> None:
        self._clients: dict[str, OrderedDict[str, Entry]] = {}
        self._address: dict[str, str] = {}

    def update(self, entry: Entry) -> None:
        """Take up an id that is unused in its newest state; drop one that is not."""
        self.discard(entry.id)
        if entry.now is not None and not entry.now.is_used:
            address = self._address[entry.id] = entry.holder.address
            self._clients.setdefault(address, OrderedDict())[entry.id] = entry

    def discard(self, transactional_id: str) -> None:
        """Drop an id, if it is here."""
        address = self._address.pop(transactional_id, None)
        if address is not None:
            known = self._clients[address]
            del known[transactional_id]
            if not known:
                del self._clients[address]

    def count(self, address: str) -> int:
        """How many unused ids a client has."""
        return len(self._clients.get(address, ()))

    def of(self, address: str) -> Iterator[Entry]:
        """The unused ids of a client in the order in which it can spare them: the oldest first, those last that an open
        connection may still use."""
        known = self._clients.get(address, OrderedDict()).values()
        yield from (each for each in known if not each.holder.spares(each.id))
        yield from (each for each in known if each.holder.spares(each.id))

    def taken_before(self, limit_ms: int) -> list[str]:
        """Unused ids that were taken before a time, and that no open connection may still use."""
        found = []
        for known in self._clients.values():
            for entry in known.values():
                if entry.now is None or entry.now.updated_ms >= limit_ms:
                    break
                if not entry.holder.spares(entry.id):
                    found.append(entry.id)
        return found
