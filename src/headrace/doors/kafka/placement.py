"""Where partitions live: this node leads all of them and is their only replica. Shared by the APIs that describe
topics."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.log.interface import Partition

# "Nobody asked, so nobody looked."
NOT_ASKED = -(1 << 31)
# Bit sets of Kafka's access control operations. There is no access control: everything that the kind of resource has.
TOPIC_OPERATIONS = 3576
CLUSTER_OPERATIONS = 8096


def describe(partition: Partition, node_id: int) -> dict[str, Any]:
    """One partition of a Metadata or DescribeTopicPartitions reply."""
    here = [node_id]
    offline = partition.offline is not None
    return {
        "error_code": ErrorCode.leader_not_available if offline else ErrorCode.none,
        "partition_index": partition.index,
        "leader_id": -1 if offline else node_id,
        "leader_epoch": partition.epoch,
        "replica_nodes": here,
        "isr_nodes": here,
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": here if offline else (),
    }
