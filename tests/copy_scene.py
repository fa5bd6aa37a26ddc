"""Clients as processes that copy in transactions, and the check of everything that they did and saw.

A source writes transactions, and aborts some; copiers make an effect of each record that they read as committed, and
commit how far they have read in the same transaction. A process that has ended is started again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests import copying
from tests.copying import GROUP, IN, OUT, PARTITIONS
from tests.serve_process import SECONDS
from tests.waiting import wait_until

from simulation.history import Place
from simulation.transactions.history import Found, State

ROOT = Path(__file__).parent.parent


class Process:
    """One role, that is started again whenever its process has ended."""

    def __init__(self, folder: Path, address: str, role: str, library: str, name: str) -> None:
        self._folder = folder
        self._address = address
        self._role = role
        self._library = library
        self._name = name
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        """Start it unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self._starts += 1
        name = f"{self._name}@{self._starts}"
        command = [sys.executable, "-m", "tests.copying", self._role, self._library, self._address, name]
        with (self._folder / f"{self._name}.stderr").open("ab") as words:
            self._process = subprocess.Popen(
                [*command, str(self._folder / f"{name}.journal")], cwd=ROOT, stderr=words, stdout=words
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Brokers(Protocol):
    """A broker, or the nodes of a group."""

    @property
    def kafka(self) -> str:
        """Where clients begin."""

    def words(self) -> str:
        """The last of what was logged."""


class Scene:
    """A broker and its clients."""

    def __init__(self, folder: Path, broker: Brokers, library: str, copiers: int) -> None:
        self.folder = folder
        self.broker = broker
        self.source = Process(folder, broker.kafka, "source", "confluent", "source")
        self.reader = Process(folder, broker.kafka, "reader", "confluent", "reader")
        self.copiers = [
            Process(folder, broker.kafka, "copier", library, f"copier-{number}") for number in range(copiers)
        ]

    def keep(self) -> None:
        for each in (self.source, self.reader, *self.copiers):
            each.keep()

    def kill(self) -> None:
        for each in (self.source, self.reader, *self.copiers):
            each.kill()

    def words(self) -> str:
        said = [path.read_text()[-1500:] for path in sorted(self.folder.glob("*.stderr"))]
        return "\n".join([*said, self.broker.words()])

    def journals(self) -> list[Path]:
        return sorted(self.folder.glob("*.journal"))

    def committed(self, role: str) -> int:
        """Transactions that were committed so far, by one role."""
        return sum(path.read_text().count('"committed"') for path in self.journals() if path.name.startswith(role))


def read_committed(address: str, topic: str) -> dict[Place, list[tuple[int, str]]]:
    """Offset and value of everything that is committed, by partition."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "check", "enable.partition.eof": True, "log_level": 0}
    )
    found: dict[Place, list[tuple[int, str]]] = {(topic, index): [] for index in range(PARTITIONS)}
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    ended = set()
    try:
        while len(ended) < PARTITIONS:
            message = consumer.poll(20)
            assert message is not None, f"reading {topic} stopped short"
            error, partition = message.error(), message.partition()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(partition)
            else:
                found[topic, partition].append((message.offset(), message.value().decode()))
    finally:
        consumer.close()
    return found


def ends(address: str, topic: str) -> dict[Place, tuple[int, int]]:
    """The last stable offset of each partition, and its end."""
    found = {}
    settings = {"bootstrap.servers": address, "group.id": "check", "log_level": 0}
    committed = Consumer(settings | {"isolation.level": "read_committed"})
    everything = Consumer(settings | {"isolation.level": "read_uncommitted"})
    try:
        for index in range(PARTITIONS):
            place = TopicPartition(topic, index)
            stable, end = [each.get_watermark_offsets(place, SECONDS)[1] for each in (committed, everything)]
            found[topic, index] = stable, end
    finally:
        committed.close()
        everything.close()
    return found


def offsets(address: str) -> dict[tuple[str, Place], int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP, "log_level": 0})
    places = [TopicPartition(IN, index) for index in range(PARTITIONS)]
    try:
        return {(GROUP, (IN, at.partition)): max(-1, at.offset) for at in consumer.committed(places, SECONDS)}
    finally:
        consumer.close()


def caught_up(address: str) -> bool:
    """Whether the copiers have read everything that is committed."""
    stable = ends(address, IN)
    if any(low < high for low, high in stable.values()):
        return False
    at = offsets(address)
    there = read_committed(address, IN)
    return all(not there[place] or at[GROUP, place] > there[place][-1][0] for place in there)


def create_topics(address: str) -> None:
    """The topics that are copied from and to."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for future in admin.create_topics([NewTopic(IN, PARTITIONS), NewTopic(OUT, PARTITIONS)]).values():
        future.result(SECONDS)


def check_copied(scene: Scene) -> int:
    """Hold what is there against everything that the clients did and saw; how many transactions the copiers
    committed."""
    address = scene.broker.kafka
    history = copying.read_journals(scene.journals())
    there = read_committed(address, IN) | read_committed(address, OUT)
    places = ends(address, IN) | ends(address, OUT)
    history.check(Found(there, places, offsets(address)))
    inputs, outputs = [sum(len(there[topic, index]) for index in range(PARTITIONS)) for topic in (IN, OUT)]
    assert inputs == outputs > 0
    return sum(each.state is State.COMMITTED and bool(each.progress) for each in history.attempts.values())


def keeps_on(scene: Scene, before: int) -> bool:
    scene.keep()
    return scene.committed("copier") > before


def settle(scene: Scene, restarts: int = 0) -> None:
    """Wait until the copiers are through. The source may be far ahead of one that dies with each transaction it gives
    up: however long it takes, they must come further. `restarts`: so often they may be started again because they do
    not, as a supervisor would that looks at their progress."""
    while not settled(scene):
        before = scene.committed("copier")
        try:
            wait_until(lambda at=before: settled(scene) or scene.committed("copier") > at, scene.words, seconds=60)
        except AssertionError as error:
            if not restarts:
                raise
            restarts -= 1
            print(f"copiers stand still, and are started again: {describe(scene)}\n{error}")
            for each in scene.copiers:
                each.kill()


def describe(scene: Scene) -> str:
    """The copiers' group, as the broker sees it."""
    line = [
        sys.executable,
        "-m",
        "headrace.cli",
        "group",
        "describe",
        GROUP,
        "--bootstrap",
        scene.broker.kafka.split(",")[0],
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def settled(scene: Scene) -> bool:
    for each in scene.copiers:
        each.keep()
    try:
        return caught_up(scene.broker.kafka)
    except KafkaException as error:
        # Leadership may still move to the node that is preferred, and librdkafka asks for committed offsets once.
        if error.args[0].code() != KafkaError.NOT_COORDINATOR:
            raise
        return False
