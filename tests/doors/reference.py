"""The side from which the conformance suite looks at a broker, whichever door it tests: Kafka's, and HTTP's.

The log is one: what a door was given must be here, and what is put here must come out of the door.
"""

from __future__ import annotations

import json
import re
from http.client import HTTPConnection
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.cimpl import Message
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS, wait_until

GROUP = "readers"
"""The group whose lag counts where a topic's overflow does."""


class Reference:
    """Topics are made and read here. It outlives restarts of the broker."""

    def __init__(self, broker: ServeProcess) -> None:
        self._broker = broker
        settings = {"bootstrap.servers": broker.kafka, "log_level": 0, "reconnect.backoff.max.ms": 200}
        self._admin = AdminClient(settings)
        self._consumer = Consumer(
            settings
            | {
                "group.id": GROUP,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "topic.metadata.refresh.fast.interval.ms": 20,
            }
        )

    def close(self) -> None:
        self._consumer.close()

    # --- topics ---

    def make_topic(self, name: str, partitions: int = 1, **config: object) -> None:
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        self._admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(SECONDS)

    def topics(self) -> set[str]:
        return set(self._consumer.list_topics(timeout=SECONDS).topics)

    # --- messages ---

    def messages(self, topic: str) -> list[Message]:
        """All that a topic holds now, partition by partition."""
        found: dict[int, list[Message]] = {
            index: [] for index in self._consumer.list_topics(timeout=SECONDS).topics[topic].partitions
        }
        left = set(found)
        self._consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in found])
        while left:
            message = self._consumer.poll(SECONDS)
            assert message is not None, f"the log of {topic} cannot be read to its end"
            error = message.error()
            if error is None:
                found[message.partition() or 0].append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())  # type: ignore[arg-type]
            else:
                assert error.retriable() or error.code() == KafkaError._ALL_BROKERS_DOWN, error
        self._consumer.unassign()
        return [message for index in sorted(found) for message in found[index]]

    def values(self, topic: str, count: int = 0) -> list[bytes]:
        """The values of a topic, once there are so many."""
        seen: list[bytes] = []

        def enough() -> bool:
            seen[:] = [message.value() or b"" for message in self.messages(topic)]
            return len(seen) >= count

        wait_until(enough, lambda: f"{len(seen)} of {count} messages in {topic}")
        return list(seen)

    def read_up_to(self, topic: str, offset: int) -> None:
        """Let the group have read so far."""
        self._consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)

    def publish(self, topic: str, *values: bytes) -> None:
        self.ask("POST", f"/v1/topics/{topic}/messages", {"messages": [{"value": each.decode()} for each in values]})

    # --- the management side ---

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What the HTTP door answers, which must be no error."""
        connection = HTTPConnection(self._broker.addresses["http"], timeout=SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            raw = response.read()
            assert response.status < 300, raw
            return raw.decode() if path == "/metrics" else json.loads(raw)
        finally:
            connection.close()

    def queue(self, topic: str, queue: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"/v1/topics/{topic}/queues/{queue}"))

    def metric(self, name: str, **labels: str) -> float:
        """A figure of the broker's; 0 where it has none."""
        wanted = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        found = re.search(rf"^{name}{{{re.escape(wanted)}}} (\S+)$", self.ask("GET", "/metrics"), re.MULTILINE)
        return float(found[1]) if found else 0.0
