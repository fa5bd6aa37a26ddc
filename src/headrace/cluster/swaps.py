"""Reading records and changing them for good, for commands and for the start of a node, which can wait.

A swap whose outcome is unknown is sent again as it is. That is sound because it expects a revision: of all its copies
etcd carries out one at most. If the record then has the wanted value, one was. If it has another, that may have come on
top of it: the change is tried anew on what is there, and where that refuses it, the error says that it may be done. A
leader cannot wait: see `maximal_isr.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.cluster.errors import ChangeRefused, EtcdUnavailable, NotInitialized
from headrace.cluster.etcd import Entry, Etcd, Refused, Swapped, Unknown
from headrace.cluster.records import Cluster, Group, R, parse_cluster, parse_group
from headrace.cluster.versions import FEATURE_LEVEL

# An election inside of etcd takes a second or two.
TRIES = 5
PAUSE_SECONDS = 0.5


def read_cluster(entry: Entry | None, key: str, known: int = FEATURE_LEVEL) -> Cluster:
    """The cluster's record. Raises NotInitialized, RecordInvalid, also for a feature level above `known`."""
    if entry is None:
        raise NotInitialized(f"etcd has no cluster {key.split('/')[-2]!r}. Run headrace cluster init.")
    return parse_cluster(entry.value, key, known)


def read_group(entry: Entry | None, key: str) -> Group:
    """A group's record. Raises NotInitialized, RecordInvalid."""
    if entry is None:
        raise NotInitialized(f"etcd has no group {key.split('/')[-1]!r} in this cluster. Run headrace cluster init.")
    return parse_group(entry.value, key)


async def change_cluster(etcd: Etcd, key: str, change: Callable[[Cluster], Cluster]) -> Cluster:
    """Change the cluster's record, whatever others change meanwhile; the new record. Raises EtcdError, NotInitialized,
    RecordInvalid, ChangeRefused."""
    return await _change(etcd, key, read_cluster, change)


async def change_group(etcd: Etcd, key: str, change: Callable[[Group], Group]) -> Group:
    """The same for a group's record."""
    return await _change(etcd, key, read_group, change)


async def _change(etcd: Etcd, key: str, read: Callable[[Entry | None, str], R], change: Callable[[R], R]) -> R:
    entry = await etcd.read(key)
    unanswered = 0
    while True:
        try:
            wanted = change(read(entry, key))
        except ChangeRefused as error:
            if not unanswered:
                raise
            raise ChangeRefused(
                f"{error}. An earlier attempt was not answered, and may have made the change."
            ) from None
        outcome = await etcd.swap(key, 0 if entry is None else entry.revision, wanted.encode())
        if isinstance(outcome, Unknown):
            unanswered += 1
            await _pause(outcome, unanswered)
        elif isinstance(outcome, Swapped) or outcome.holds(wanted.encode()):
            return wanted
        else:
            entry = outcome.current


async def swap(etcd: Etcd, key: str, revision: int, value: bytes) -> Refused | None:
    """Swap a key that no other process writes at this time, until the outcome is known: None where the key has the new
    value. Raises EtcdError."""
    unanswered = 0
    while isinstance(outcome := await etcd.swap(key, revision, value), Unknown):
        unanswered += 1
        await _pause(outcome, unanswered)
    return None if isinstance(outcome, Swapped) or outcome.holds(value) else outcome


async def _pause(outcome: Unknown, unanswered: int) -> None:
    """Wait before a swap is sent again. Raises EtcdUnavailable where that was often enough."""
    if unanswered > TRIES:
        raise EtcdUnavailable(f"{outcome.reason}. The change may have been made, or may be made later: look again")
    await asyncio.sleep(PAUSE_SECONDS)
