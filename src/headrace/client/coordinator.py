"""What a transactional producer asks of its coordinator, in both generations of the protocol.

In the first, a partition or a group's offsets must be announced before anything is written to them. In the second
(KIP-890, the feature `transaction.version` at 2) the brokers take both in by themselves when something is written, and
every transaction ends with a new epoch, so that a request that comes late can never fall into the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.client.cluster import TRANSACTION, Cluster
from headrace.client.codes import ErrorCode
from headrace.client.errors import BrokerError, ClientError, ProducerFenced, TransactionError, check
from headrace.client.messages import request

Partition = tuple[str, int]
Identity = tuple[int, int]

FEATURE, SECOND_GENERATION = "transaction.version", 2
NOBODY: Identity = (-1, -1)

FENCED = {ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch}
# After these neither the transaction nor its producer can go on.
FATAL = {
    *FENCED,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.invalid_txn_state,
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.unsupported_version,
}


class Coordinator:
    """The coordinator of one transactional id, wherever it is at the moment."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout: float) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._timeout = timeout
        self.second = False
        """The cluster speaks the second generation."""

    async def agree(self) -> None:
        """Learn which generation the cluster speaks."""

        async def ask() -> int:
            connection = await self._cluster.coordinator(self._id, TRANSACTION)
            return connection.features.get(FEATURE, 0)

        level = await self._cluster.retrying(ask, transaction=self._id)
        self.second = level >= SECOND_GENERATION

    async def init(self, known: Identity = NOBODY) -> Identity:
        """Take the transactional id: an epoch of one's own, with whatever was open aborted and earlier owners fenced.

        With a `known` identity only its owner gets the next epoch; another producer in between means ProducerFenced.
        """
        asked = request(
            "init_producer_id",
            5 if self.second else 4,
            transaction_timeout=int(self._timeout * 1000),
            **self._named(known),
        )
        reply = await self._ask(asked, lambda reply: reply.error_code)
        return int(reply.producer_id), int(reply.producer_epoch)

    async def add_partitions(self, producer: Identity, partitions: Iterable[Partition]) -> None:
        """Announce partitions; for the first generation only."""
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        asked = request(
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[{"name": topic, "partitions": listed} for topic, listed in topics.items()],
        )
        await self._ask(asked, _first_refused)

    async def add_offsets(self, producer: Identity, group: str) -> None:
        """Announce offsets of a group; for the first generation only."""
        asked = request("add_offsets_to_txn", 3, group_id=group, **self._named(producer))
        await self._ask(asked, lambda reply: reply.error_code)

    async def commit_offsets(
        self,
        producer: Identity,
        group: str,
        offsets: Mapping[Partition, tuple[int, str]],
        generation: int,
        member: str,
        instance: str | None,
    ) -> None:
        """Make offsets of a group part of the transaction."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), (offset, metadata) in offsets.items():
            entry = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
            topics.setdefault(topic, []).append(entry)
        commit = request(
            "txn_offset_commit",
            5 if self.second else 3,
            group_id=group,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            topics=[{"name": topic, "partitions": listed} for topic, listed in topics.items()],
            **self._named(producer),
        )

        async def attempt() -> None:
            reply = await (await self._cluster.coordinator(group)).call(commit)
            for topic in reply.topics:
                for each in topic.partitions:
                    check(each.error_code, f"offset of group {group} on {topic.name}-{each.partition_index}")

        await self._cluster.retrying(attempt, group=group, transaction=self._id)

    async def end(self, producer: Identity, commit: bool) -> Identity:
        """Commit or abort; the identity to go on with."""
        asked = request("end_txn", 5 if self.second else 3, committed=commit, **self._named(producer))
        reply = await self._ask(asked, lambda reply: reply.error_code)
        if self.second and reply.producer_id >= 0:
            return int(reply.producer_id), int(reply.producer_epoch)
        return producer

    def _named(self, producer: Identity) -> dict[str, Any]:
        return {"transactional_id": self._id, "producer_id": producer[0], "producer_epoch": producer[1]}

    async def _ask(self, asked: Any, error: Callable[[Any], int]) -> Any:
        async def attempt() -> Any:
            reply = await (await self._cluster.coordinator(self._id, TRANSACTION)).call(asked)
            check(error(reply), f"transactional id {self._id}")
            return reply

        return await self._cluster.retrying(attempt, transaction=self._id)


def fatal(error: ClientError, transactional_id: str) -> TransactionError | None:
    """What an error means for the producer, where it means its end."""
    code = error.error if isinstance(error, BrokerError) else None
    if code in FENCED:
        said = f"{transactional_id} belongs to a newer producer, or the transaction ran into its timeout"
        return ProducerFenced(f"{said}: {error}")
    if code in FATAL:
        return TransactionError(f"the producer of transactional id {transactional_id} cannot go on: {error}")
    return None


def _first_refused(reply: Any) -> int:
    # Partitions that are not to blame say OPERATION_NOT_ATTEMPTED.
    codes = [
        int(each.partition_error_code)
        for topic in reply.results_by_topic_v3_and_below
        for each in topic.results_by_partition
        if each.partition_error_code
    ]
    return next((code for code in codes if code != ErrorCode.operation_not_attempted), codes[0] if codes else 0)
