"""kill -9 in a loop while messages die: each of them becomes one letter."""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cli.nsq import NsqConsumer
from tests.longer import LONGER
from tests.serve_process import ServeProcess
from tests.test_redrive_kill import DEAD, PARTITIONS, ask, values
from tests.waiting import wait_until

QUEUE = "/v1/topics/orders/queues/mail"
MESSAGES = 600
# Every hundredth is as large as its topic takes.
LARGEST = 1_048_588 - 100


class Refuser:
    """Takes all that it gets, and goes: each message has had its one attempt then."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with NsqConsumer(self._address, "orders", "mail", credit=200, seconds=1) as consumer:
                    for _ in range(200):
                        consumer.next()
            except (OSError, struct.error):
                # The broker is gone, or there are no more.
                self._over.wait(0.05)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def value(number: int) -> bytes:
    return b"%d " % number + (b"x" * (LARGEST - 5) if number % 100 == 0 else b"")


@pytest.mark.parametrize("kills", [4, pytest.param(60 * LONGER, marks=pytest.mark.long)])
def test_each_message_dies_once(tmp_path: Path, kills: int) -> None:
    random = Random(kills)
    settings = ("--queue-flush-ms", "20", "--queue-snapshot-bytes", "1", "--consumed-check-ms", "50")
    with ServeProcess(tmp_path / "data", "--http", "127.0.0.1:0", "--nsq", "127.0.0.1:0", *settings) as serving:
        prepare(serving)
        for _ in range(kills):
            refuser = Refuser(serving.addresses["nsq"])
            time.sleep(random.uniform(0.05, 0.4))
            serving.kill()
            refuser.stop()
            serving.start()
        refuser = Refuser(serving.addresses["nsq"])

        def letters() -> Counter[bytes]:
            return Counter(each.split()[0] for each in values(serving.kafka, DEAD))

        wait_until(lambda: sum(letters().values()) >= MESSAGES, lambda: str(sum(letters().values())), seconds=120)
        serving.kill()
        refuser.stop()
        serving.start()
        assert letters() == Counter(b"%d" % number for number in range(MESSAGES))
        queue = ask(serving.addresses["http"], "GET", QUEUE)
        assert [queue[each] for each in ("depth", "in_flight", "condemned", "stuck", "lost")] == [0] * 5


def prepare(serving: ServeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": serving.kafka})
    config = {"max.message.bytes": "1048588", "retention": "consumed"}
    topics = [NewTopic("orders", PARTITIONS, config=config), NewTopic(DEAD, PARTITIONS)]
    for made in admin.create_topics(topics).values():
        made.result(30)
    ask(serving.addresses["http"], "PUT", QUEUE, {"settings": {"max_attempts": 1}})
    producer = Producer({"bootstrap.servers": serving.kafka, "linger.ms": 20, "message.max.bytes": 2_000_000})
    for number in range(MESSAGES):
        producer.produce("orders", value(number), key=b"%d" % number)
        producer.poll(0)
    assert producer.flush(60) == 0
