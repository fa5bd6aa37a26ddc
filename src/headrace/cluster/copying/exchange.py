"""What a replica has to do with copies: it gives them while it leads, and takes one while its identity says so.

The mark in the identity is durable before anything of the directory is touched, and goes when the copy is whole and
synced. As long as it is there the log has no topics, and the node neither stands for leader nor opens a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from headrace.cluster import identity
from headrace.cluster.connection import PeerConnection
from headrace.cluster.copying.copier import Copier
from headrace.cluster.copying.copies import Copies
from headrace.cluster.copying.messages import Ask
from headrace.cluster.copying.receiver import ReceiverProgress
from headrace.cluster.node import Node, NodeSettings
from headrace.cluster.wire import Refusal
from headrace.errors import DataDirectoryInvalid, HeadraceError
from headrace.log.replicated import ReplicatedLog
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.cluster")


class CopyExchange:
    """A replica's copies, given and taken."""

    def __init__(
        self,
        runtime: Runtime,
        settings: NodeSettings,
        node: Node,
        log: ReplicatedLog,
        on_broken: Callable[[str], None],
    ) -> None:
        """`on_broken` is called when the replica must be started again: to copy, or because its disk failed."""
        self._runtime = runtime
        self._settings = settings
        self._node = node
        self._log = log
        self._on_broken = on_broken
        self.given = Copies(log, settings.copy_bytes_per_second, self._refusal)
        """What other nodes are copying from this one."""
        self.progress = ReceiverProgress()
        """How far this node is with its own copy."""
        self.on_copied: Callable[[], None] = lambda: None
        """Called when a copy has been adopted."""
        self.must_copy = False
        """Whether the replica has only to be started again, to copy."""
        self._tasks: set[asyncio.Task[None]] = set()
        node.reception.serve_copy = self.given.open
        node.on_must_copy = self._must_copy

    async def open(self) -> None:
        """See whether the directory is to become a copy: before the log is started. Raises DataDirectoryInvalid."""
        known = await self._runtime.offload.run(identity.load, self._runtime.disk)
        self._node.is_copying = self._log.is_copying = known is not None and known.is_copying

    def start(self) -> None:
        """Begin to copy, if that is to be done."""
        if self._log.is_copying:
            self._spawn(self._copy())

    async def stop(self) -> None:
        """End what is under way."""
        self.given.close("the node stops")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _must_copy(self, reason: str) -> None:
        """What this node lacks is in no journal any more, or it has what the leader never had."""
        if not self._node.is_copying:
            self._node.is_copying = True
            logger.warning("this replica copies the group's log anew", reason=reason)
            self._spawn(self._mark(reason))

    async def _mark(self, reason: str) -> None:
        try:
            await self._runtime.offload.run(partial(identity.change, self._runtime.disk, is_copying=True))
        except (OSError, DataDirectoryInvalid) as error:
            reason = f"{reason}, and that could not be noted: {error}"
        else:
            self.must_copy = True
        self._on_broken(f"it must copy: {reason}")

    async def _copy(self) -> None:
        node = self._node
        copier = Copier(
            self._runtime,
            node.network,
            self._settings.frame_max_bytes,
            self._log.cluster_id,
            self._find_leader,
            node.learn_epoch,
            self._adopt,
            lambda: node.following is not None and node.following.is_open,
            self.progress,
        )
        try:
            await copier.run()
        except (OSError, HeadraceError) as error:
            self._on_broken(f"the data directory cannot take a copy: {error}")

    async def _adopt(self) -> None:
        """The data directory has a whole copy, synced, and its checkpoint."""
        await self._runtime.offload.run(partial(identity.change, self._runtime.disk, is_copying=False))
        try:
            await self._log.adopt_copy()
        except (OSError, HeadraceError) as error:
            self._on_broken(f"the copy cannot be used: {error}")
            return
        self._node.is_copying = False
        self.on_copied()
        logger.info("the copy is whole", sequence=self._log.frames.applied, topics=len(self._log.topics))

    def _find_leader(self) -> tuple[tuple[str, int], Ask] | None:
        group = self._node.group
        if group is None or group.leader is None:
            return None
        address = self._node.address_of(group.leader)
        return None if address is None else (address, Ask(self._node.introduction()))

    def _refusal(self, ask: Ask, connection: PeerConnection) -> Refusal | None:
        refusal = self._node.reception.refusal(ask.caller, connection)
        if refusal is None and self._node.leadership is None:
            refusal = "this node does not lead its group"
        return None if refusal is None else Refusal(refusal, self._node.epoch)
