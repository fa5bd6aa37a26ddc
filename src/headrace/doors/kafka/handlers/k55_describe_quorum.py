"""DescribeQuorum (55), versions 0 to 2: who decides about the cluster's metadata. It is this one node.

Kafka keeps its metadata in the topic `__cluster_metadata`, and no other has a quorum. Headrace keeps it in its journal,
which has no offsets: they are 0, and the one voter is caught up with itself.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.internal import CLUSTER_METADATA
from headrace.doors.kafka.call import Call

LISTENER = "CONTROLLER"


async def handle(call: Call, request: Any) -> dict[str, Any]:
    topics = []
    known = False
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            index = partition.partition_index
            if topic.topic_name == CLUSTER_METADATA and index == 0:
                known = True
                partitions.append(_quorum(call))
            else:
                partitions.append(
                    {
                        "partition_index": index,
                        "error_code": ErrorCode.unknown_topic_or_partition,
                        "error_message": f"{topic.topic_name} partition {index} has no quorum: ask about "
                        f"{CLUSTER_METADATA} partition 0",
                    }
                )
        topics.append({"topic_name": topic.topic_name, "partitions": partitions})
    listener = {"name": LISTENER, "host": call.listener_host, "port": call.listener_port}
    nodes = [{"node_id": call.broker.node_id, "listeners": [listener]}] if known else []
    return {"error_code": ErrorCode.none, "error_message": "", "topics": topics, "nodes": nodes}


def _quorum(call: Call) -> dict[str, Any]:
    now = call.broker.runtime.clock.now_ms()
    voter = {
        "replica_id": call.broker.node_id,
        "log_end_offset": 0,
        "last_fetch_timestamp": now,
        "last_caught_up_timestamp": now,
    }
    return {
        "partition_index": 0,
        "error_code": ErrorCode.none,
        "error_message": "",
        "leader_id": call.broker.node_id,
        "leader_epoch": call.broker.log.epoch,
        "high_watermark": 0,
        "current_voters": [voter],
        "observers": [],
    }
