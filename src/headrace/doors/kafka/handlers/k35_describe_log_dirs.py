"""DescribeLogDirs (35), versions 1 to 5: the one data directory and what each partition takes of it.

Null topics mean all; an empty list none; what does not exist is left out. The size is of the batches kept, without
indexes, as in Kafka. A cold partition is warmed to be measured. The size of the device is not known here (-1), its
free space is.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.codec import STRUCTS_A_TURN
from headrace.errors import HeadraceError
from headrace.log.interface import Partition, Topic
from headrace.log.local import LocalPartition

_UNKNOWN = -1


async def handle(call: Call, request: Any) -> dict[str, Any]:
    broker = call.broker
    topics = []
    for topic, partitions in _select(call, request.topics):
        sizes = []
        for partition in partitions:
            sizes.append(
                {
                    "partition_index": partition.index,
                    "partition_size": await _size(broker.log.local(partition)),
                    "offset_lag": 0,
                }
            )
            if len(sizes) % STRUCTS_A_TURN == 0:
                await asyncio.sleep(0)
        # The topic may have gone while its partitions were warmed.
        if sizes and not topic.deleted:
            topics.append({"name": topic.name, "partitions": sizes})
    free = await broker.runtime.offload.run(broker.runtime.disk.free_bytes)
    return {
        "error_code": ErrorCode.none,
        "results": [
            {
                "error_code": ErrorCode.none,
                "log_dir": broker.config.data,
                "topics": topics,
                "total_bytes": _UNKNOWN,
                "usable_bytes": free,
                "is_cordoned": False,
            }
        ],
    }


def _select(call: Call, asked: Any) -> list[tuple[Topic, list[Partition]]]:
    if asked is None:
        return [(topic, list(topic.partitions)) for topic in call.broker.topics.all.values()]
    wanted = []
    for each in asked:
        topic = call.broker.topics.get(each.topic)
        if topic is not None:
            indexes = dict.fromkeys(index for index in each.partitions if 0 <= index < len(topic.partitions))
            wanted.append((topic, [topic.partitions[index] for index in indexes]))
    return wanted


async def _size(partition: LocalPartition) -> int:
    if not partition.loaded:
        try:
            await partition.load()
        except HeadraceError:
            return _UNKNOWN
    return partition.size()
