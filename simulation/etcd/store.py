"""What etcd keeps: keys with their revisions, leases, and the history that watches read.

Every change has a revision, one for all the changes of a transaction. There is one store for all members of an etcd:
whatever reaches it has been agreed on. Compaction is left out: history is kept from the first revision on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

LEAST_TTL_S = 2


class KeyValue(NamedTuple):
    """A key as one revision left it."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


class Event(NamedTuple):
    """A key was put, or deleted: then it has no value and no version."""

    kv: KeyValue
    is_delete: bool


@dataclass(slots=True)
class Lease:
    """Keys that go when its time is over."""

    id: int
    ttl: int
    expires: float
    """By the leader's clock."""
    keys: set[bytes] = field(default_factory=set)


class LeaseNotFound(Exception):
    """The lease is not there, or no longer."""


class Store:
    """Keys, leases and history. Reads see every change before them."""

    def __init__(self) -> None:
        self.revision = 1
        self.leases: dict[int, Lease] = {}
        self._keys: dict[bytes, KeyValue] = {}
        self._events: list[Event] = []

    def copy(self) -> Store:
        """A backup."""
        return deepcopy(self)

    # Keys. Changes belong to the revision that `revision` names, which `commit` makes the current one.

    def range(self, key: bytes, end: bytes) -> list[KeyValue]:
        """The keys of a range: one key if `end` is empty, all from `key` on if it is a zero byte."""
        if not end:
            return [self._keys[key]] if key in self._keys else []
        return [self._keys[name] for name in sorted(self._keys) if name >= key and (end == b"\0" or name < end)]

    def put(self, revision: int, key: bytes, value: bytes, lease: int) -> KeyValue | None:
        """Give a key a value; what it had before."""
        if lease and lease not in self.leases:
            raise LeaseNotFound
        before = self._keys.get(key)
        if before is not None and before.lease:
            self.leases[before.lease].keys.discard(key)
        created, version = (before.create_revision, before.version + 1) if before else (revision, 1)
        kv = self._keys[key] = KeyValue(key, value, created, revision, version, lease)
        if lease:
            self.leases[lease].keys.add(key)
        self._events.append(Event(kv, False))
        return before

    def delete(self, revision: int, key: bytes, end: bytes) -> list[KeyValue]:
        """Delete the keys of a range; what they had."""
        gone = self.range(key, end)
        for kv in gone:
            del self._keys[kv.key]
            if kv.lease:
                self.leases[kv.lease].keys.discard(kv.key)
            self._events.append(Event(KeyValue(kv.key, b"", 0, revision, 0, 0), True))
        return gone

    def commit(self) -> bool:
        """Whether anything has changed since the last time: then there is a new revision."""
        changed = bool(self._events) and self._events[-1].kv.mod_revision > self.revision
        self.revision += changed
        return changed

    def events(self, after: int) -> list[Event]:
        """The changes of all later revisions."""
        return self._events[bisect_right(self._events, after, key=lambda event: event.kv.mod_revision) :]

    # Leases.

    def grant(self, id: int, ttl: int, now: float) -> Lease:
        lease = self.leases[id] = Lease(id, max(ttl, LEAST_TTL_S), now + max(ttl, LEAST_TTL_S))
        return lease

    def lease(self, id: int, now: float) -> Lease:
        """A lease whose time is not over."""
        lease = self.leases.get(id)
        if lease is None or lease.expires <= now:
            raise LeaseNotFound
        return lease

    def renew_all(self, now: float) -> None:
        """Begin the time of every lease anew, as a new leader does."""
        for lease in self.leases.values():
            lease.expires = now + lease.ttl

    def revoke(self, id: int) -> None:
        """End a lease, and with it its keys, in one change."""
        if id not in self.leases:
            raise LeaseNotFound
        for key in sorted(self.leases[id].keys):
            self.delete(self.revision + 1, key, b"")
        del self.leases[id]
        self.commit()

    def expire(self, now: float, on_expired: Callable[[], None]) -> None:
        """End the leases whose time is over."""
        for lease in [each for each in self.leases.values() if each.expires <= now]:
            self.revoke(lease.id)
            on_expired()
