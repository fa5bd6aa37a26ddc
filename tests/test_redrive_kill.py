"""kill -9 in a loop while dead letters are sent back: each of them arrives once."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.serve_process import ServeProcess

LETTERS = 1_500
PARTITIONS = 3
DEAD = "orders.mail.dead"


def ask(address: str, method: str, path: str, body: Any = None) -> Any:
    host, port = address.rsplit(":", 1)
    connection = HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status < 300, answer
        return answer
    finally:
        connection.close()


class Driver:
    """Redrives from the beginning until it is through, or the broker is gone."""

    def __init__(self, address: str) -> None:
        self.said: list[tuple[int, int]] = []
        self.through = False
        self._address = address
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        place = None
        try:
            while True:
                order = {"topic": DEAD, "rate": 1_000, "limit": 150, "next": place}
                step = ask(self._address, "POST", "/v1/redrive", order)
                for each in step["results"]:
                    assert each["outcome"] == "redriven", each
                    self.said.append((each["partition"], each["offset"]))
                place = step["next"]
                if place is None:
                    self.through = True
                    return
        except (OSError, HTTPException):
            return

    def join(self) -> None:
        self._thread.join()


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_each_letter_arrives_once(tmp_path: Path, durability: str):
    random = Random(7)
    # A snapshot of the queues' state now and then, between the settlements.
    settings = ("--queue-flush-ms", "50", "--queue-snapshot-bytes", "1")
    flags = ("--http", "127.0.0.1:0", "--durability", durability, *settings)
    with ServeProcess(tmp_path / "data", *flags) as serving:
        prepare(serving)
        said: Counter[tuple[int, int]] = Counter()
        kills = 0
        while True:
            driver = Driver(serving.addresses["http"])
            if kills < 8:
                time.sleep(random.uniform(0.02, 0.35))
                serving.kill()
                kills += 1
            driver.join()
            said.update(driver.said)
            if driver.through:
                break
            if kills:
                serving.start()
        assert set(said.values()) <= {1}
        serving.kill()
        serving.start()
        assert Counter(values(serving.kafka, "orders")) == Counter(b"%d" % n for n in range(LETTERS))
        shown = ask(serving.addresses["http"], "GET", f"/v1/topics/{DEAD}/queues/redrive")
        assert shown["depth"] == 0


def prepare(serving: ServeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": serving.kafka})
    topics = [NewTopic("orders", PARTITIONS), NewTopic(DEAD, 2)]
    for made in admin.create_topics(topics).values():
        made.result(30)
    ask(serving.addresses["http"], "PUT", "/v1/topics/orders/queues/mail")
    producer = Producer({"bootstrap.servers": serving.kafka})
    for number in range(LETTERS):
        origin = {"topic": "orders", "partition": number % PARTITIONS, "offset": number, "queue": "mail"}
        headers = {f"headrace-origin-{name}": str(value).encode() for name, value in origin.items()}
        producer.produce(DEAD, b"%d" % number, key=b"k", partition=number % 2, headers=headers)
    assert producer.flush(30) == 0


def values(address: str, topic: str) -> list[bytes]:
    """All values of a topic."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "check", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    found: list[bytes] = []
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(20)
        assert message is not None
        if message.error():
            ends += 1
        else:
            found.append(message.value() or b"")
    consumer.close()
    return found
