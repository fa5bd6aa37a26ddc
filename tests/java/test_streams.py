"""Kafka Streams with exactly-once on, killed and started again, over a broker that is killed too; and Kafka Connect.

Streams is the most demanding of Kafka's own clients: transactions of several topics and a group's offsets, repartition
topics whose records it deletes, compacted changelogs from which it restores its state.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from bench.peers import jars
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.java.conftest import SECONDS
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

WORD_COUNT = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
INPUT, OUTPUT = "streams-plaintext-input", "streams-wordcount-output"
REPARTITION = "words-KSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition"
PARTITIONS = 2


class JavaProcess:
    """A main class of Streams or Connect beside the test."""

    def __init__(self, main: str, *arguments: str, log: Path) -> None:
        try:
            self._command = [
                jars.java(),
                "-XX:TieredStopAtLevel=1",
                "-Xmx300m",
                "-cp",
                jars.streams(),
                main,
                *arguments,
            ]
        except jars.Missing as reason:
            pytest.skip(str(reason))
        self._log = log
        self.start()

    def __enter__(self) -> JavaProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(SECONDS)

    def words(self) -> str:
        """What it logged, the last of it."""
        return self._log.read_text()[-4000:]


class Words:
    """Lines of words for the count, and how often each word was sent."""

    def __init__(self, broker: ServeProcess) -> None:
        self.sent: Counter[str] = Counter()
        self._random = Random(7)
        self._producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True, "log_level": 0})

    def send(self, lines: int) -> None:
        for _ in range(lines):
            words = [f"w{self._random.randrange(20)}" for _ in range(5)]
            self.sent.update(words)
            self._producer.produce(INPUT, " ".join(words))
        assert self._producer.flush(SECONDS) == 0


class Counts:
    """The counts that a reader of committed records sees, in the order in which it sees them."""

    def __init__(self, broker: ServeProcess) -> None:
        self.seen: dict[str, list[int]] = {}
        self._consumer = Consumer(
            {"bootstrap.servers": broker.kafka, "group.id": "x", "isolation.level": "read_committed", "log_level": 0}
        )
        self._consumer.assign([TopicPartition(OUTPUT, index, 0) for index in range(PARTITIONS)])

    def come_to(self, sent: Counter[str]) -> bool:
        for message in self._consumer.consume(1000, 0.2):
            key, value = message.key(), message.value()
            if not message.error() and key is not None and value is not None:
                self.seen.setdefault(key.decode(), []).append(int.from_bytes(value, "big"))
        return {word: counts[-1] for word, counts in self.seen.items()} == sent


def test_words_are_counted_exactly_once(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", "--checkpoint-ms", "700") as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
        for made in admin.create_topics([NewTopic(INPUT, PARTITIONS, 1), NewTopic(OUTPUT, PARTITIONS, 1)]).values():
            made.result(SECONDS)
        settings = {
            "bootstrap.servers": broker.kafka,
            "application.id": "words",
            "processing.guarantee": "exactly_once_v2",
            "state.dir": tmp_path / "state",
            "commit.interval.ms": 100,
            "repartition.purge.interval.ms": 500,
            "session.timeout.ms": 6000,
            "transaction.timeout.ms": 6000,
            "num.stream.threads": 2,
        }
        properties = tmp_path / "words.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        words, counts = Words(broker), Counts(broker)
        with JavaProcess(WORD_COUNT, str(properties), log=tmp_path / "log") as app:

            def counted() -> None:
                wait_until(lambda: counts.come_to(words.sent), app.words, seconds=90)

            words.send(200)
            counted()
            # Neither of the two has finished what it was given.
            words.send(1_000)
            wait_until(lambda: counts.come_to(words.sent) or sum(map(len, counts.seen.values())) > 1_500, app.words)
            app.kill()
            app.start()
            words.send(1_000)
            wait_until(
                lambda: counts.come_to(words.sent) or sum(map(len, counts.seen.values())) > 6_500, app.words, seconds=90
            )
            broker.kill()
            broker.start()
            words.send(500)
            counted()
            # What was read of the repartition topic is deleted.
            wait_until(lambda: _start(broker, REPARTITION) > 0, app.words)
        # Each word's count went up by one each time, through both kills: nothing was lost, nothing counted twice.
        assert counts.seen == {word: list(range(1, count + 1)) for word, count in words.sent.items()}
        broker.stop()


def _start(broker: ServeProcess, topic: str) -> int:
    """The sum of the first offsets."""
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "x", "log_level": 0})
    try:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        return sum(consumer.get_watermark_offsets(each, SECONDS)[0] for each in partitions)
    finally:
        consumer.close()


def test_connect_copies_a_file_through_a_topic(broker: ServeProcess, tmp_path: Path) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    source.write_text("".join(f"line {number}\n" for number in range(500)))
    plugin = "org.apache.kafka.connect"
    settings = {
        "worker": {
            "bootstrap.servers": broker.kafka,
            "key.converter": f"{plugin}.storage.StringConverter",
            "value.converter": f"{plugin}.storage.StringConverter",
            "offset.storage.file.filename": tmp_path / "offsets",
            "offset.flush.interval.ms": 200,
            "listeners": "HTTP://127.0.0.1:0",
        },
        "source": {
            "name": "source",
            "connector.class": f"{plugin}.file.FileStreamSourceConnector",
            "file": source,
            "topic": "connected",
            "topic.creation.default.partitions": 1,
            "topic.creation.default.replication.factor": 1,
        },
        "sink": {
            "name": "sink",
            "connector.class": f"{plugin}.file.FileStreamSinkConnector",
            "file": sink,
            "topics": "connected",
        },
    }
    for name, values in settings.items():
        (tmp_path / name).write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    paths = [str(tmp_path / name) for name in settings]
    with JavaProcess(f"{plugin}.cli.ConnectStandalone", *paths, log=tmp_path / "log") as connect:
        wait_until(lambda: sink.exists() and sink.read_text() == source.read_text(), connect.words, seconds=SECONDS)
