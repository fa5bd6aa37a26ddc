"""Topics, queues and groups of a broker that is worth watching."""

from __future__ import annotations

import http.client
import json

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BATCH = 1_000
SECONDS = 120
# Of one group.
POSITIONS = 4


def fill(kafka: str, address: str, topics: int, queues: int, groups: int) -> None:
    """Topics with a record each, queues of the first of them, and groups that have a position in four each."""
    admin = AdminClient({"bootstrap.servers": kafka})
    names = [f"topic-{number:05}" for number in range(topics)]
    for begin in range(0, topics, BATCH):
        for done in admin.create_topics([NewTopic(name, 1, 1) for name in names[begin : begin + BATCH]]).values():
            done.result(SECONDS)
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 50, "queue.buffering.max.messages": 2 * topics})
    for name in names:
        producer.produce(name, b"a message")
    assert producer.flush(SECONDS) == 0, "the broker did not take the first messages in time"
    connection = http.client.HTTPConnection(address, timeout=SECONDS)
    for name in names[:queues]:
        connection.request("PUT", f"/v1/topics/{name}/queues/queue", "{}", {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 201, json.loads(body)
    connection.close()
    for number in range(groups):
        places = [
            TopicPartition(names[(number * POSITIONS + each) % topics], 0, 0) for each in range(min(POSITIONS, topics))
        ]
        asked = [ConsumerGroupTopicPartitions(f"group-{number:03}", places)]
        for committed in admin.alter_consumer_group_offsets(asked).values():
            committed.result(SECONDS)
