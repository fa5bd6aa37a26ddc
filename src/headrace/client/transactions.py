"""Requests about transactions: list, describe and abort them, and find hanging ones.

The coordinator knows a transaction by its transactional id; the leader of a partition knows an open one by its
producer. A transaction that a leader has and no coordinator knows hangs: it never ends, and committed readers stop
before it. Only such a one is ended by a marker that is written to the partition directly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.client.admin import indexes_by_topic
from headrace.client.cluster import TRANSACTION, Cluster, Partition
from headrace.client.connection import Connection
from headrace.client.coordinator import Coordinator
from headrace.client.errors import ClientError, check
from headrace.client.messages import request
from headrace.format.schema import EPOCH, MILLISECOND

# The states of a transactional id that has a transaction to end.
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in the list of ids."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id, and its transaction where one is open."""

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    timeout_ms: int
    started: int
    """When the transaction, or the last one, began (ms); -1: there was none."""
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer that the leader of a partition remembers."""

    topic: str
    partition: int
    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    first_offset: int
    """Where its open transaction begins in the partition; -1: it has none."""


class Transactions:
    """The transactions of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list_all(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int = -1
    ) -> list[TransactionListing]:
        """All transactional ids, or those in these states, of these producers, with a transaction begun so long ago.

        Brokers remember when the last transaction began: with an age, ask for OPEN_STATES.
        """
        filters = {"state_filters": list(states), "producer_id_filters": list(producer_ids)}
        if longer_than_ms >= 0:
            asked = request("list_transactions", 1, duration_filter=longer_than_ms, **filters)
        else:
            asked = request("list_transactions", 0, **filters)
        found = []
        for reply in await self._cluster.call_all(asked):
            check(reply.error_code, "transactions")
            if reply.unknown_state_filters:
                raise ClientError(f"the broker does not know the state {', '.join(reply.unknown_state_filters)}")
            found += [
                TransactionListing(str(each.transactional_id), int(each.producer_id), each.transaction_state)
                for each in reply.transaction_states
            ]
        return sorted(found, key=lambda each: each.transactional_id)

    async def describe(self, transactional_id: str) -> TransactionDescription:
        asked = request("describe_transactions", 0, transactional_ids=[transactional_id])
        reply = await self._cluster.call_coordinator(
            transactional_id, asked, lambda reply: reply.transaction_states[0].error_code, TRANSACTION
        )
        return describe_state(reply.transaction_states[0])

    async def producers(self, partitions: Iterable[Partition]) -> list[ActiveProducer]:
        """The producers that the leaders of these partitions remember."""
        found: dict[Partition, list[ActiveProducer]] = {}

        async def ask(connection: Connection, led: list[Partition]) -> None:
            reply = await connection.call(request("describe_producers", 0, topics=indexes_by_topic(led)))
            for topic in reply.topics:
                for each in topic.partitions:
                    check(each.error_code, f"producers of {topic.name}-{each.partition_index}", each.error_message)
                    found[str(topic.name), int(each.partition_index)] = [
                        ActiveProducer(
                            str(topic.name),
                            int(each.partition_index),
                            int(producer.producer_id),
                            int(producer.producer_epoch),
                            int(producer.last_sequence),
                            int(producer.last_timestamp),
                            int(producer.coordinator_epoch),
                            int(producer.current_txn_start_offset),
                        )
                        for producer in each.active_producers
                    ]

        await self._cluster.ask_leaders(partitions, ask)
        return [each for place in sorted(found) for each in sorted(found[place], key=lambda each: each.producer_id)]

    async def abort(self, transactional_id: str) -> None:
        """Abort what is open under a transactional id, and fence its producer."""
        known = await self.describe(transactional_id)
        coordinator = Coordinator(self._cluster, transactional_id, known.timeout_ms / 1000)
        await coordinator.agree()
        await coordinator.init()

    async def find_hanging(
        self, partitions: Iterable[Partition], older_than_ms: int, now_ms: int
    ) -> list[ActiveProducer]:
        """Open transactions on these partitions that no coordinator knows.

        One that has just begun may be known to the leader first: only those without a batch for `older_than_ms` count.
        """
        candidates = [
            each
            for each in await self.producers(partitions)
            if each.first_offset >= 0 and each.last_timestamp <= now_ms - older_than_ms
        ]
        if not candidates:
            return []
        listed = await self.list_all(producer_ids=sorted({each.producer_id for each in candidates}))
        held: set[tuple[int, Partition]] = set()
        for each in listed:
            description = await self.describe(each.transactional_id)
            held.update((description.producer_id, partition) for partition in description.partitions)
        return [each for each in candidates if (each.producer_id, (each.topic, each.partition)) not in held]

    async def abort_hanging(self, hanging: ActiveProducer) -> None:
        """Write the abort marker of a hanging transaction to its partition."""
        marker = {
            "producer_id": hanging.producer_id,
            "producer_epoch": hanging.epoch,
            "transaction_result": False,
            "topics": [{"name": hanging.topic, "partition_indexes": [hanging.partition]}],
            "coordinator_epoch": max(hanging.coordinator_epoch, 0),
        }
        asked = request("write_txn_markers", 1, markers=[marker])
        on = f"the transaction of producer {hanging.producer_id} on {hanging.topic}-{hanging.partition}"

        async def write(connection: Connection, _: list[Partition]) -> None:
            for each in (await connection.call(asked)).markers:
                for topic in each.topics:
                    for partition in topic.partitions:
                        check(partition.error_code, on)

        await self._cluster.ask_leaders([(hanging.topic, hanging.partition)], write)


def describe_state(found: Any) -> TransactionDescription:
    """What a reply to DescribeTransactions has of one transactional id."""
    started = found.transaction_start_time
    return TransactionDescription(
        found.transactional_id,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout // MILLISECOND,
        -1 if started is None else (started - EPOCH) // MILLISECOND,
        tuple((topic.topic, partition) for topic in found.topics for partition in topic.partitions),
    )
