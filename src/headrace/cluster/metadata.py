"""What etcd has of the group, as this node last saw it, and the one way in which this node changes it.

What is read is taken as if it were new each time, so lost answers, watches that hang and restarts need no rules of
their own. One change of the group's record is under way at a time; the next is made of what the one before it left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from headrace.cluster.errors import EtcdError, RecordInvalid
from headrace.cluster.etcd import Entry, Etcd, Refused, Swapped, View
from headrace.cluster.maximal_isr import MaximalIsr
from headrace.cluster.records import Group, Keys, parse_cluster, parse_group, parse_node, read_numbers
from headrace.cluster.records import Node as NodeRecord
from headrace.cluster.watcher import Watcher

logger = structlog.get_logger("headrace.cluster")

# Reads one after the other that found an older record than is known: the first may have been overtaken by a swap.
STALE_READS = 3


class Metadata:
    """Of one group."""

    def __init__(
        self,
        etcd: Etcd,
        keys: Keys,
        group: str,
        lease_s: float,
        known_level: int,
        on_group: Callable[[], None],
        on_read: Callable[[], None],
    ) -> None:
        """`known_level` is the highest feature level that this node knows. `on_group` is called with each record that
        is newer, `on_read` after each read."""
        self._etcd = etcd
        self._keys = keys
        self._name = group
        self._key = keys.group(group)
        self._lease_s = lease_s
        self._known_level = known_level
        self._on_group = on_group
        self._on_read = on_read
        self._loop = asyncio.get_running_loop()
        self.group: Group | None = None
        """The group's record."""
        self.revision = 0
        """Of that record."""
        self.feature_level = 0
        """Of the cluster, once it was read. It never falls."""
        self.alive: dict[str, NodeRecord] = {}
        """The nodes of the group that live, by their directory ids."""
        self.numbers: dict[str, int] = {}
        """The nodes that have, or had last, these data directories."""
        self.admin: Entry | None = None
        """An administrator that waits to be taken."""
        self.heard_at = 0.0
        """The loop's time at which etcd last answered."""
        self.maximal: MaximalIsr | None = None
        """While this node leads: which replicas it counts."""
        self.problem = ""
        """Why nothing that etcd has can be used; logged once."""
        self._stale_reads = 0
        self._changing = asyncio.Lock()
        self._watcher: Watcher | None = None

    def start(self) -> None:
        """Begin to read."""
        self._watcher = Watcher(self._etcd, self._keys.prefix, self._lease_s / 4, self._see, self._miss)
        self._watcher.start()

    async def stop(self) -> None:
        """Read no more."""
        if self._watcher is not None:
            await self._watcher.stop()

    def hurry(self) -> None:
        """Read now."""
        if self._watcher is not None:
            self._watcher.hurry()

    @property
    def silent_s(self) -> float:
        """Since etcd last answered."""
        return self._loop.time() - self.heard_at

    @property
    def is_reached(self) -> bool:
        """Whether etcd could be read within the last lease."""
        return self.silent_s < self._lease_s

    @property
    def is_changing(self) -> bool:
        """Whether a change of the record is under way."""
        return self._changing.locked()

    # --- reading ---

    def _see(self, view: View) -> None:
        self.heard_at = self._loop.time()
        try:
            self._read(view)
        except RecordInvalid as error:
            self._report(f"a record in etcd cannot be used: {error}")
        self._on_read()

    def _read(self, view: View) -> None:
        if (cluster := view.entries.get(self._keys.cluster)) is not None:
            level = parse_cluster(cluster.value, cluster.key, self._known_level).feature_level
            self.feature_level = max(self.feature_level, level)
        nodes = f"{self._keys.prefix}nodes/"
        found = [parse_node(each.value, key) for key, each in view.entries.items() if key.startswith(nodes)]
        self.alive = {each.directory_id: each for each in found if each.group == self._name}
        self.numbers = read_numbers(view, self._keys)
        self.admin = view.entries.get(self._keys.admin(self._name))
        entry = view.entries.get(self._key)
        if entry is None:
            self._report(f"etcd has no record of group {self._name!r} any more: headrace cluster init --from-nodes.")
            return
        group = parse_group(entry.value, entry.key)
        known = self.group
        if known is not None and (group.version, group.epoch) < (known.version, known.epoch):
            self._stale_reads += 1
            if self._stale_reads >= STALE_READS:
                self._report(
                    f"etcd went back in time: group {self._name!r} has version {group.version} there, and this node "
                    f"has seen {known.version}. Restore its newest state, or headrace cluster init --from-nodes."
                )
            return
        self._stale_reads = 0
        if self.problem:
            logger.info("what etcd has can be used again")
        self.problem = ""
        self.take(group, entry.revision)

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            logger.error("etcd's records cannot be used", problem=problem)
            self.problem = problem

    def _miss(self, error: EtcdError) -> None:
        logger.debug("etcd cannot be read", error=str(error))
        self._on_read()

    def take(self, group: Group, revision: int) -> None:
        """The record is this, or was: an answer that comes late has an older one."""
        known = self.group
        # By its version: revisions begin anew in an etcd that was made anew.
        if known is not None and group.version < known.version:
            return
        self.group, self.revision = group, revision
        if self.maximal is not None:
            self.maximal.see(revision, group.isr)
        self._on_group()

    # --- changing ---

    async def change(self, change: Callable[[Group], Group]) -> Group | None:
        """Put what `change` makes of the record in its place; the new record if it is known to be there. Raises
        ChangeRefused."""
        async with self._changing:
            assert self.group is not None
            changed = change(self.group)
            maximal = self.maximal
            # One that joins counts before the swap is sent, and one that leaves until it is confirmed.
            if maximal is not None:
                maximal.propose(changed.isr)
            try:
                outcome = await self._etcd.swap(self._key, self.revision, changed.encode())
            except EtcdError as error:
                logger.debug("etcd does not take a change of the group", error=str(error))
                if maximal is not None:
                    maximal.withdraw(changed.isr)
                return None
            finally:
                self.hurry()
            if isinstance(outcome, Swapped):
                self.take(changed, outcome.revision)
                return changed
            if isinstance(outcome, Refused) and outcome.current is not None:
                self._take_entry(outcome.current)
            return None

    def _take_entry(self, entry: Entry) -> None:
        try:
            self.take(parse_group(entry.value, self._key), entry.revision)
        except RecordInvalid as error:
            self._report(f"a record in etcd cannot be used: {error}")
