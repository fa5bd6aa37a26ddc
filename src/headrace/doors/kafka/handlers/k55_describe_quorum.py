"""DescribeQuorum (55), versions 0 to 2: who decides about the cluster's metadata. It is the nodes of the
group, of which one leads.

Kafka keeps its metadata in the topic `__cluster_metadata`, and no other has a quorum. Headrace keeps it in its journal,
which has no offsets: they are 0. How far a voter is behind shows in the times, which the leader knows; a node that is
not asked in its place (-1).
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.internal import CLUSTER_METADATA
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.placement import endpoints, leader_of

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
    brokers = endpoints(call.broker, call.way) if known else []
    nodes = [
        {"node_id": each.node_id, "listeners": [{"name": LISTENER, "host": each.host, "port": each.port}]}
        for each in brokers
    ]
    return {"error_code": ErrorCode.none, "error_message": "", "topics": topics, "nodes": nodes}


def _quorum(call: Call) -> dict[str, Any]:
    now, group = call.broker.runtime.clock.now_ms(), call.broker.membership
    lags = {**group.lags, group.node_id: 0.0} if group.leads else group.lags

    def voter(number: int) -> dict[str, Any]:
        caught_up = now - int(lags[number] * 1000) if number in lags else -1
        return {
            "replica_id": number,
            "log_end_offset": 0,
            "last_fetch_timestamp": caught_up,
            "last_caught_up_timestamp": caught_up,
        }

    return {
        "partition_index": 0,
        "error_code": ErrorCode.none,
        "error_message": "",
        "leader_id": leader_of(call.broker, call.listener),
        "leader_epoch": max(call.broker.log.epoch, group.epoch),
        "high_watermark": 0,
        "current_voters": [voter(each) for each in group.replicas],
        "observers": [],
    }
