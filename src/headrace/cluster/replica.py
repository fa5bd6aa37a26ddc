"""A replica: a node of a group, and the log of its data directory.

The node says who leads and what is committed; the log has the partitions. Here they meet: what is committed goes to the
log, and once this node leads and its log has everything from before its leadership, appends become frames. What the
server does in each role is its own business (`on_role`).
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from enum import Enum
from uuid import UUID

import structlog

from headrace.cluster.copying.exchange import CopyExchange
from headrace.cluster.etcd import Etcd
from headrace.cluster.handover import Steps
from headrace.cluster.node import Node, NodeSettings
from headrace.cluster.records import Node as NodeRecord
from headrace.cluster.versions import OFFSET_BLOCKS
from headrace.log.replicated import ReplicatedLog
from headrace.log.settings import LogSettings
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.cluster")

# Bytes that may wait for the other replicas before appends are refused.
UNCOMMITTED_MAX_BYTES = 128 << 20


class Role(Enum):
    """What a replica is in its group."""

    FOLLOWER = "follower"
    LEADER = "leader"


class Replica:
    """One member of a group."""

    def __init__(
        self,
        runtime: Runtime,
        etcd: Etcd,
        settings: NodeSettings,
        log_settings: LogSettings,
        on_role: Callable[[Role], None],
        uncommitted_max_bytes: int = UNCOMMITTED_MAX_BYTES,
    ) -> None:
        """`on_role` is called on the loop each time the role changes; it begins as a follower."""
        self.role = Role.FOLLOWER
        self.broken = asyncio.Event()
        """Set when the replica cannot go on, because its disk failed (`log.broken`): stop it, and start it again."""
        self.flush_state: Callable[[Callable[[], None]], Awaitable[None]] = _nothing_to_flush
        """Writes down what the broker has in memory alone, and calls what it is given behind its last append."""
        self.problem = ""
        """Why."""
        self._on_role = on_role
        self._held = False
        self.node = Node(runtime, etcd, settings, self._on_committed, self._on_deposed, self._on_isr)
        self.node.transfers.steps = Steps(self.pause, self.resume)
        self.log = ReplicatedLog(
            runtime,
            log_settings,
            self.node.journal,
            kafka_cluster_id(settings.cluster_id),
            uncommitted_max_bytes,
            self._on_applied,
            self._on_broken,
        )
        self.node.on_removed = self._on_removed
        self.copies = CopyExchange(runtime, settings, self.node, self.log, self._on_broken)
        self.log.trusts_clock = lambda: self.node.duties.trusts_clock
        self.node.on_level = self._on_level
        self._on_level(settings.feature_level)

    async def start(self, host: str, port: int) -> str:
        """Open the data directory, recover what the last stop left, and listen for other nodes; HOST:PORT of that.
        Raises OSError, CorruptLog, DataDirectoryInvalid."""
        await self.copies.open()
        await self.log.start()
        return await self.node.listen(host, port)

    async def join(self, record: NodeRecord) -> None:
        """Begin to take part. `record` is what the node says of itself in etcd."""
        await self.node.join(record)
        self.copies.start()

    async def stop(self) -> None:
        """Take no part any more, and leave the data directory."""
        await self.copies.stop()
        await self.node.stop()
        await self.log.stop()

    def hold(self) -> None:
        """Do not lead, though elected, until `release`: what stood on the last leadership must be gone, or it would
        append in the next one what was never committed."""
        self._held = True

    def release(self) -> None:
        """Nothing stands on a leadership that has ended."""
        self._held = False
        self._on_applied()

    def fail(self, reason: str) -> None:
        """What stands on this replica cannot go on."""
        self._on_broken(reason)

    async def pause(self) -> None:
        """The second step of a transfer: write down what the broker has in memory, and append nothing behind it. On
        return that is committed."""
        await self.flush_state(self.log.pause)

    def resume(self) -> None:
        """Undo `pause`: the other node did not take over."""
        self.log.resume()

    async def transfer(self, to: int | None) -> None:
        """Have another node lead: `to`, or the preferred one. Returns once it does. Raises TransferFailed."""
        await self.node.transfers.transfer(to)

    async def retire(self) -> None:
        """Leave the group in good order, before a stop: a leader hands over, or else resigns, a follower leaves the
        ISR. Takes seconds at most; the node takes no part from then on but for `stop`."""
        await self.node.retire()

    # --- what the node reports ---

    def _on_committed(self, sequence: int) -> None:
        self.log.on_committed(sequence)

    def _on_deposed(self, reason: str) -> None:
        self.copies.given.close(reason)
        self.log.follow(reason)
        self._change(Role.FOLLOWER)

    def _on_isr(self, has_enough: bool) -> None:
        self.log.set_enough(has_enough)

    def _on_applied(self) -> None:
        leadership = self.node.leadership
        if leadership is None or not leadership.serves or self.role is Role.LEADER or self._held:
            return
        if self.log.frames.applied >= leadership.begin:
            self.log.lead(leadership.epoch, leadership.append)
            self._change(Role.LEADER)

    def _on_level(self, level: int) -> None:
        # A node that knows less would take what reserves them for something else.
        self.log.reserve_offsets = self.log.blocks.reserve if level >= OFFSET_BLOCKS else None

    def _on_broken(self, reason: str) -> None:
        logger.error("this replica cannot go on until it is started again", reason=reason)
        self.problem = reason
        self.node.give_up(reason)
        self.broken.set()

    def _on_removed(self, reason: str) -> None:
        if not self.broken.is_set():
            self._on_broken(reason)

    def _change(self, role: Role) -> None:
        if role is not self.role:
            self.role = role
            self._on_role(role)


async def _nothing_to_flush(seal: Callable[[], None]) -> None:
    seal()


def kafka_cluster_id(cluster_id: str) -> str:
    """The id of a cluster as Kafka writes one: 22 characters of base64."""
    return urlsafe_b64encode(UUID(cluster_id).bytes).decode().rstrip("=")
