"""A node that finds nothing of its group in etcd, or less than it has seen: it serves nothing, answers those who ask
what it knows (`headrace cluster init --from-nodes`), and starts once the record is there."""

from __future__ import annotations

import asyncio

import structlog

from headrace.cluster import identity
from headrace.cluster.connection import PeerConnection
from headrace.cluster.errors import EtcdError, EtcdWentBack, NotInitialized
from headrace.cluster.etcd import Etcd
from headrace.cluster.figures import Figures
from headrace.cluster.identity import Identity
from headrace.cluster.peer_network import PeerNetwork
from headrace.cluster.peer_tls import PeerTls
from headrace.cluster.records import Keys
from headrace.cluster.wire import OPENING_MAX_BYTES, Inquiry, Message, Refusal, Report
from headrace.log import checkpoint as checkpoints
from headrace.log.group_frames import NOTHING, Position
from headrace.log.replicated_journal import ReplicatedJournal
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.cluster")

PAUSE_S = 1.0


async def start(
    runtime: Runtime,
    etcd: Etcd,
    keys: Keys,
    group: str,
    node: int,
    level: int,
    tls: PeerTls | None,
    peer: tuple[str, int],
) -> Identity:
    """`identity.start`, as soon as etcd has a record of the group that is not older than what the data directory has
    seen. A directory that belongs to no group does not wait. `peer` is where the node listens for others. Raises what
    `identity.start` raises, OSError, CorruptLog."""
    try:
        return await identity.start(runtime, etcd, keys, group, node, level)
    except (NotInitialized, EtcdWentBack) as error:
        known = await runtime.offload.run(identity.load, runtime.disk)
        if known is None or (known.group, known.node) != (group, node):
            raise
        logger.error("waits for etcd's records to be rebuilt: headrace cluster init --from-nodes", reason=str(error))
    network = PeerNetwork(tls, Figures())
    reception = _Reception(await _report(runtime, known))
    await network.listen(lambda: PeerConnection(reception, OPENING_MAX_BYTES), *peer)
    try:
        while True:
            await asyncio.sleep(PAUSE_S)
            try:
                return await identity.start(runtime, etcd, keys, group, node, level)
            except (NotInitialized, EtcdWentBack):
                continue
            except EtcdError as error:
                logger.debug("etcd cannot be read", error=str(error))
    finally:
        network.close()


class _Reception:
    """Answers questions, and nothing else."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def on_message(self, connection: PeerConnection, message: Message) -> None:
        refusal = Refusal("this node waits for the group's record in etcd", self._report.epoch)
        connection.close(self._report if isinstance(message, Inquiry) else refusal)

    def on_closed(self, connection: PeerConnection) -> None:
        """It has its answer."""

    def on_drained(self, connection: PeerConnection) -> None:
        """An answer is short."""


async def _report(runtime: Runtime, known: Identity) -> Report:
    end = NOTHING if known.is_copying else await _end_of_journal(runtime, known.group)
    return Report(
        known.cluster_id,
        known.feature_level,
        known.group,
        known.node,
        known.directory_id,
        known.starts,
        known.is_copying,
        False,
        max(known.seen.epoch, end.epoch),
        end,
        0,
        known.seen,
    )


async def _end_of_journal(runtime: Runtime, group: str) -> Position:
    """The last frame that the journal has. Raises OSError, CorruptLog."""
    found = await runtime.offload.run(checkpoints.load, runtime.disk)
    if found is None:
        return NOTHING
    journal = ReplicatedJournal(runtime, group, 1 << 20, 1 << 20, lambda _: None, lambda _: None)
    await journal.open(found.journal_from, found.history)
    try:
        return journal.last
    finally:
        journal.close()
