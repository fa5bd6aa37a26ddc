"""The requests of a transactional producer to its coordinator, in both generations of the protocol.

In the first, partitions and groups must be added to a transaction before something is written to them. In the second
(KIP-890, the feature `transaction.version` at 2) the brokers add both when something is written, and every transaction
ends with a new epoch, so that a late request can never fall into the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.client.admin import entries_by_topic, group_by_topic
from headrace.client.cluster import TRANSACTION, Cluster, Partition
from headrace.client.errors import BrokerError, ClientError, ProducerFenced, TransactionError, check
from headrace.client.messages import request
from headrace.format.error_codes import ErrorCode

Identity = tuple[int, int]

FEATURE, SECOND_GENERATION = "transaction.version", 2
NO_IDENTITY: Identity = (-1, -1)

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
    """The coordinator of one transactional id, at whichever broker it is."""

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

        level = await self._cluster.retry(ask, transaction=self._id)
        self.second = level >= SECOND_GENERATION

    async def init(self, known: Identity = NO_IDENTITY) -> Identity:
        """Take the transactional id: a new epoch. An open transaction is aborted, and earlier owners are fenced.

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
        """Add partitions to the transaction; for the first generation only."""
        topics = group_by_topic(partitions).items()
        asked = request(
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[
                {"name": topic, "partitions": [index for _, index in listed]} for topic, listed in topics
            ],
        )
        await self._ask(asked, _first_refused)

    async def add_offsets(self, producer: Identity, group: str) -> None:
        """Add a group to the transaction; for the first generation only."""
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
        """Commit offsets of a group in the transaction."""

        def entry(each: Partition) -> dict[str, Any]:
            offset, metadata = offsets[each]
            return {"partition_index": each[1], "committed_offset": offset, "committed_metadata": metadata}

        commit = request(
            "txn_offset_commit",
            5 if self.second else 3,
            group_id=group,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            topics=entries_by_topic(offsets, entry),
            **self._named(producer),
        )

        async def attempt() -> None:
            reply = await (await self._cluster.coordinator(group)).call(commit)
            for topic in reply.topics:
                for each in topic.partitions:
                    check(each.error_code, f"offset of group {group} on {topic.name}-{each.partition_index}")

        await self._cluster.retry(attempt, group=group, transaction=self._id)

    async def end(self, producer: Identity, commit: bool) -> Identity:
        """Commit or abort. The identity for the next transaction."""
        asked = request("end_txn", 5 if self.second else 3, committed=commit, **self._named(producer))
        reply = await self._ask(asked, lambda reply: reply.error_code)
        if self.second and reply.producer_id >= 0:
            return int(reply.producer_id), int(reply.producer_epoch)
        return producer

    def _named(self, producer: Identity) -> dict[str, Any]:
        return {"transactional_id": self._id, "producer_id": producer[0], "producer_epoch": producer[1]}

    async def _ask(self, asked: Any, error: Callable[[Any], int]) -> Any:
        return await self._cluster.call_coordinator(self._id, asked, error, TRANSACTION)


def fatal(error: ClientError, transactional_id: str) -> TransactionError | None:
    """The error that ends the producer, where this one does."""
    code = error.error if isinstance(error, BrokerError) else None
    if code in FENCED:
        return ProducerFenced(
            f"{transactional_id} belongs to a newer producer, or the transaction ran into its timeout: {error}"
        )
    if code in FATAL:
        return TransactionError(f"the producer of transactional id {transactional_id} cannot go on: {error}")
    return None


def _first_refused(reply: Any) -> int:
    # Partitions without a fault of their own have OPERATION_NOT_ATTEMPTED.
    codes = [
        int(each.partition_error_code)
        for topic in reply.results_by_topic_v3_and_below
        for each in topic.results_by_partition
        if each.partition_error_code
    ]
    return next((code for code in codes if code != ErrorCode.operation_not_attempted), codes[0] if codes else 0)
