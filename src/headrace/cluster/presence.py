"""That a node runs: its key in etcd, under a lease that it keeps alive.

The key is created only where there is none, so two processes of one node id never take turns. It tells others whom to
ask and when to stand for election; no promise rests on it, for a lease can end while its holder lives.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from headrace.cluster.errors import EtcdError, EtcdUnavailable, RecordInvalid
from headrace.cluster.etcd import Etcd, Swapped, Unknown
from headrace.cluster.records import Node, parse_node

# Of etcd's shortest, which is a little above its own elections, and short enough to notice a dead machine soon.
LEASE_SECONDS = 3
# How often it is kept alive in its time: one lost answer does not end it.
ROUNDS = 3
# How often its end is asked for at a stop. Beyond that it ends by itself.
REVOCATIONS = 3


class Presence:
    """Keeps the key of one incarnation."""

    def __init__(self, etcd: Etcd, key: str, node: Node, lease_seconds: int = LEASE_SECONDS) -> None:
        self.kept_at = float("-inf")
        """When the last request that was granted left, by the loop's clock: the key lives a lease longer at least."""
        self.problem = ""
        """Why the node is not known to run, or not any longer soon."""
        self._etcd = etcd
        self._key = key
        self._node = node
        self._lease_seconds = lease_seconds
        self._lease = 0
        # Whether the key is known to have lived by that lease.
        self._is_registered = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the lease, and with it the key: others need not wait for it to expire."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if not self._lease:
            return
        for _ in range(REVOCATIONS):
            with suppress(EtcdError):
                await self._etcd.revoke(self._lease)
                return

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sent = loop.time()
            try:
                if not self._is_registered or not await self._etcd.keep_alive(self._lease):
                    self._is_registered = False
                    await self._register()
                    self._is_registered = True
                self.kept_at = sent
                self.problem = ""
            except (EtcdError, RecordInvalid) as error:
                self.problem = str(error)
            await asyncio.sleep(self._lease_seconds / ROUNDS)

    async def _register(self) -> None:
        """Make the key. Raises EtcdError, RecordInvalid."""
        while True:
            # Known before the key may be there: a stop that comes in between has to end it.
            lease = self._lease = await self._etcd.grant(self._lease_seconds)
            outcome = await self._etcd.swap(self._key, 0, self._node.encode(), lease=lease)
            if isinstance(outcome, Swapped):
                return
            if isinstance(outcome, Unknown):
                raise EtcdUnavailable(outcome.reason)
            await self._etcd.revoke(lease)
            if outcome.current is None:
                continue
            found = parse_node(outcome.current.value, self._key)
            if found.directory_id != self._node.directory_id or found.starts > self._node.starts:
                raise EtcdUnavailable(
                    f"{self._key} is held by another process, at {found.addresses.get('peer', 'an unknown address')}. "
                    "Does another node have the same --node-id?"
                )
            # The directory is locked: what made this key is a process that is gone, or a swap whose answer was lost.
            await self._etcd.revoke(outcome.current.lease)
