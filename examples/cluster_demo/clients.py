"""Clients that go on through everything: an idempotent producer, a group of consumers, and messages for later."""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import pairwise

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

ORDERS = "orders"
REMINDERS = "reminders"
PARTITIONS = 6
RATE = 500
# A reminder is due so long after its order.
REMIND_SECONDS = 8.0
REMIND_EVERY = 25

FAILOVER = {
    # A client learns of another leader by an error, or by looking now and then.
    "topic.metadata.refresh.interval.ms": 1_000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    # Brokers that are gone are what this is about.
    "log_level": 0,
}


def create_topics(bootstrap: str) -> None:
    """`orders`, and `reminders`, whose messages may have a time."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **FAILOVER})
    topics = [NewTopic(ORDERS, PARTITIONS), NewTopic(REMINDERS, 1, config={"delay": "true"})]
    for made in admin.create_topics(topics).values():
        made.result(30)


class Shop:
    """Sends numbered orders of several customers, and for some of them a reminder that is delivered later."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 1}
        self._producer = Producer({**settings, **FAILOVER, "message.timeout.ms": 120_000})
        self.sent = 0
        self.reminded: dict[int, float] = {}
        """When each reminder that was acknowledged is due."""
        self.acknowledged: list[tuple[float, int]] = []
        """When each order was, and its number."""
        self.failed: list[KafkaError] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._stopping.is_set():
            while self.sent < (time.monotonic() - begin) * RATE:
                self._send(self.sent)
                self.sent += 1
            self._producer.poll(0.002)

    def _send(self, number: int) -> None:
        value = b"%d" % number
        self._producer.produce(ORDERS, value, b"customer-%d" % (number % 100), on_delivery=self._ordered)
        if number % REMIND_EVERY == 0:
            due = time.time() + REMIND_SECONDS
            headers: dict[str, str | bytes | None] = {"headrace-deliver-at": str(int(due * 1000))}
            self._producer.produce(
                REMINDERS,
                value,
                headers=headers,
                on_delivery=lambda error, message: self._reminded(error, message, due),
            )

    def _ordered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged.append((time.monotonic(), int(message.value() or b"")))

    def _reminded(self, error: KafkaError | None, message: Message, due: float) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.reminded[int(message.value() or b"")] = due

    def gap(self, since: float) -> float:
        """The longest time since then in which no order was acknowledged."""
        times = [since, *(at for at, _ in self.acknowledged if at > since)]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def stop(self) -> None:
        """Send no more, and wait for what is under way."""
        self._stopping.set()
        self._thread.join()
        self._producer.flush(120)


class Reader:
    """A member of a group, in a thread of its own."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.found: dict[int, list[tuple[int, int, float]]] = {}
        """Partition, offset and time of each number, as often as it came."""
        self.regressed = 0
        """Orders that came behind a later one of the same partition that was not read again."""
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**settings, **FAILOVER, "session.timeout.ms": 10_000})
        self._consumer.subscribe([topic])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        highest: dict[int, tuple[int, int]] = {}
        while not self._stopping.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is not None:
                    continue
                number, partition, offset = int(message.value() or b""), message.partition() or 0, message.offset() or 0
                self.found.setdefault(number, []).append((partition, offset, time.time()))
                last = highest.get(partition, (-1, -1))
                if offset > last[0]:
                    self.regressed += number < last[1]
                    highest[partition] = offset, number
        self._consumer.close()

    def stop(self) -> None:
        """Commit, and leave the group."""
        self._stopping.set()
        self._thread.join()


def read_whole(bootstrap: str, topic: str, enough: int) -> Counter[int]:
    """How often each number is in a topic, read from its beginning until nothing more comes."""
    reader = Reader(bootstrap, f"audit-{topic}", topic)
    quiet, last = time.monotonic(), -1
    while time.monotonic() - quiet < (3.0 if last >= enough else 30.0):
        if (count := sum(map(len, list(reader.found.values())))) != last:
            quiet, last = time.monotonic(), count
        time.sleep(0.1)
    reader.stop()
    return Counter({number: len(each) for number, each in reader.found.items()})
