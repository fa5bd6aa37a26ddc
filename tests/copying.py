"""Clients as processes of their own, to be killed: `python -m tests.copying ROLE LIBRARY ADDRESS NAME JOURNAL`.

A source writes transactions to the topic `in`, some of which it aborts. A copier reads `in` as committed, writes an
effect of each record to `out`, and commits how far it has read in the same transaction. What they do goes to a journal
before they do it, and what they are told as soon as they know: line by line, straight to the operating system, so that
the journal outlives them. `read_journals` makes one history of all journals.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PyPartition

from simulation.transactions.history import Attempt, Owner, Progress, TransactionHistory

PARTITIONS = 2
GROUP, IN, OUT = "copiers", "in", "out"
SOURCE_RECORDS = 5
TIMEOUT_MS = 10_000

Position = tuple[int, int]
"""A partition of `in`, and where to go on in it."""


class Journal:
    """What one process did."""

    def __init__(self, path: str, name: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._name = name
        self._transactions = 0
        self._number = 0
        self.attempt = ""

    def say(self, what: str, **facts: Any) -> None:
        line = {"at": time.monotonic_ns(), "what": what, "who": self._name, "attempt": self.attempt, **facts}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def begin(self) -> None:
        self._transactions += 1
        self.attempt = f"{self._name}.{self._transactions}"
        self.say("begun")

    def send(self, topic: str, partition: int, cause: str | None = None) -> bytes:
        """The value of the next record."""
        self._number += 1
        value = f"{self.attempt}/{self._number}"
        self.say("sending", topic=topic, partition=partition, value=value, number=self._number, cause=cause)
        return value.encode()

    def progress(self, first: dict[int, int], following: dict[int, int]) -> None:
        for partition, at in following.items():
            self.say("progress", partition=partition, first=first[partition], next=at)


def read_journals(paths: Iterable[Path]) -> TransactionHistory:
    """One history of what all processes did, in the order of time."""
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines() if line.endswith("}")]
    history = TransactionHistory()
    owners: dict[str, Owner] = {}
    reached: dict[tuple[str, str, int], int] = {}
    for line in sorted(lines, key=lambda each: int(each["at"])):
        who, attempt = line["who"], history.attempts.get(line["attempt"])
        match line["what"]:
            case "taking":
                owners[who] = history.claim(line["id"], who)
            case "taken":
                history.on_claimed(owners[who])
            case "begun":
                history.begin(line["attempt"], owners[who])
            case "sending":
                cause = None if line["cause"] is None else (GROUP, line["cause"])
                history.send(known(attempt), (line["topic"], line["partition"]), line["value"], line["number"], cause)
            case "progress":
                place = IN, line["partition"]
                known(attempt).progress.append(Progress(GROUP, place, line["first"], line["next"]))
            case "committing":
                history.start_commit(known(attempt))
            case "committed":
                history.commit(known(attempt))
            case "aborted":
                history.abort(known(attempt))
            case "read":
                reader = who, line["topic"], line["partition"]
                offset = line["offset"]
                asked = reached.get(reader, 0)
                history.read(reader[1:], asked, [(offset, line["value"])], offset + 1, offset + 1)
                reached[reader] = offset + 1
    return history


def known(attempt: Attempt | None) -> Attempt:
    assert attempt is not None
    return attempt


# --- librdkafka -------------------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    # When all brokers are down, librdkafka forgets them and asks the bootstrap servers anew; what a transaction waits
    # for from the one that was forgotten never comes.
    "metadata.recovery.strategy": "none",
    # A machine that was cut off says nothing; a request to it must not take a minute. Less than a transaction may.
    "socket.timeout.ms": 9_000,
    "log_level": 0,
}


def confluent_producer(address: str, transactional_id: str, journal: Journal) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TIMEOUT_MS,
            "linger.ms": 0,
            "retry.backoff.ms": 20,
            **QUICK,
        }
    )
    journal.say("taking", id=transactional_id)
    patiently(lambda: producer.init_transactions(30))
    journal.say("taken")
    return producer


def patiently(step: Callable[[], Any]) -> Any:
    """Do a step again while the client says that it may be done again."""
    while True:
        try:
            return step()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            print(error, file=sys.stderr, flush=True)


def confluent_source(address: str, name: str, journal: Journal) -> None:
    chance = random.Random(name)
    producer = confluent_producer(address, name.partition("@")[0], journal)
    while True:
        journal.begin()
        producer.begin_transaction()
        for _ in range(SOURCE_RECORDS):
            partition = chance.randrange(PARTITIONS)
            producer.produce(IN, journal.send(IN, partition), partition=partition)
        confluent_end(producer, journal, chance.random() < 0.8)
        time.sleep(0.02)


def confluent_end(producer: Producer, journal: Journal, commit: bool) -> None:
    try:
        # What has not left when a transaction is aborted never leaves: there would be nothing to see.
        patiently(lambda: producer.flush(30))
        if commit:
            journal.say("committing")
            patiently(lambda: producer.commit_transaction(30))
            journal.say("committed")
            return
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
    patiently(lambda: producer.abort_transaction(30))
    journal.say("aborted")


def confluent_copier(address: str, name: str, journal: Journal, isolation: str = "read_committed") -> None:
    chance = random.Random(name)
    positions: dict[int, int] = {}

    def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        positions.clear()

    instance = name.partition("@")[0]
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "group.instance.id": instance,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
            **QUICK,
        }
    )
    producer = confluent_producer(address, instance, journal)
    consumer.subscribe([IN], on_assign=assigned, on_revoke=assigned)
    while True:
        got = consumer.consume(chance.choice((1, 5, 20)), 0.2)
        for error in (each.error() for each in got):
            if error is not None and (error.fatal() or error.code() == KafkaError._FATAL):
                # Nothing more comes, for instance because a late request has fenced this member: begin anew.
                raise KafkaException(error)
        found = [each for each in got if each.error() is None]
        if not found:
            continue
        for each in found:
            if each.partition() not in positions:
                [at] = patiently(partial(consumer.committed, [TopicPartition(IN, each.partition())], 10))
                positions[each.partition()] = max(0, at.offset)
        following = {each.partition(): each.offset() + 1 for each in found}
        journal.begin()
        producer.begin_transaction()
        try:
            for each in found:
                partition = chance.randrange(PARTITIONS)
                cause = each.value().decode()
                producer.produce(OUT, journal.send(OUT, partition, cause), partition=partition)
            journal.progress(positions, following)
            offsets = [TopicPartition(IN, partition, at) for partition, at in following.items()]
            patiently(partial(producer.send_offsets_to_transaction, offsets, consumer.consumer_group_metadata(), 30))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            patiently(lambda: producer.abort_transaction(30))
            journal.say("aborted")
            raise
        commit = chance.random() < 0.9
        confluent_end(producer, journal, commit)
        if not commit:
            # Where to go on is what was committed: the simplest way back there is a new process.
            return
        positions |= following


# --- aiokafka ---------------------------------------------------------------------------------------------------------


async def aiokafka_copier(address: str, name: str, journal: Journal) -> None:
    chance = random.Random(name)
    transactional_id = name.partition("@")[0]
    producer = AIOKafkaProducer(
        bootstrap_servers=address,
        transactional_id=transactional_id,
        transaction_timeout_ms=TIMEOUT_MS,
        retry_backoff_ms=20,
    )
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address,
        group_id=GROUP,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        retry_backoff_ms=20,
    )
    places = [AioPartition(IN, index) for index in range(PARTITIONS)]
    journal.say("taking", id=transactional_id)
    await producer.start()
    journal.say("taken")
    await consumer.start()
    consumer.assign(places)
    positions = {place.partition: await consumer.committed(place) or 0 for place in places}
    for place in places:
        consumer.seek(place, positions[place.partition])
    while True:
        got = await consumer.getmany(timeout_ms=200, max_records=chance.choice((1, 5, 20)))
        found = [each for some in got.values() for each in some]
        if not found:
            continue
        following = {each.partition: each.offset + 1 for each in found}
        journal.begin()
        await producer.begin_transaction()
        for each in found:
            partition = chance.randrange(PARTITIONS)
            await producer.send(OUT, journal.send(OUT, partition, each.value.decode()), partition=partition)
        journal.progress(positions, following)
        await producer.flush()
        offsets = {AioPartition(IN, partition): at for partition, at in following.items()}
        await producer.send_offsets_to_transaction(offsets, GROUP)
        if chance.random() < 0.1:
            await producer.abort_transaction()
            journal.say("aborted")
            return
        journal.say("committing")
        await producer.commit_transaction()
        journal.say("committed")
        positions |= following


# --- kafka-python -----------------------------------------------------------------------------------------------------


def kafka_python_copier(address: str, name: str, journal: Journal) -> None:
    chance = random.Random(name)
    transactional_id = name.partition("@")[0]
    producer = KafkaProducer(
        bootstrap_servers=address,
        transactional_id=transactional_id,
        transaction_timeout_ms=TIMEOUT_MS,
        retry_backoff_ms=20,
    )
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        group_id=GROUP,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        retry_backoff_ms=20,
    )
    journal.say("taking", id=transactional_id)
    producer.init_transactions()
    journal.say("taken")
    places = [PyPartition(IN, index) for index in range(PARTITIONS)]
    consumer.assign(places)
    positions = {place.partition: consumer.committed(place) or 0 for place in places}
    for place in places:
        consumer.seek(place, positions[place.partition])
    while True:
        got = consumer.poll(timeout_ms=200, max_records=chance.choice((1, 5, 20)))
        found = [each for some in got.values() for each in some]
        if not found:
            continue
        following = {each.partition: each.offset + 1 for each in found}
        journal.begin()
        producer.begin_transaction()
        for each in found:
            partition = chance.randrange(PARTITIONS)
            producer.send(OUT, journal.send(OUT, partition, each.value.decode()), partition=partition)
        journal.progress(positions, following)
        producer.flush()
        offsets = {PyPartition(IN, partition): OffsetAndMetadata(at, "", -1) for partition, at in following.items()}
        producer.send_offsets_to_transaction(offsets, GROUP)
        if chance.random() < 0.1:
            producer.abort_transaction()
            journal.say("aborted")
            return
        journal.say("committing")
        producer.commit_transaction()
        journal.say("committed")
        positions |= following


# --- a reader ---------------------------------------------------------------------------------------------------------


def reader(address: str, name: str, journal: Journal) -> None:
    """Says what it reads as committed, from the beginning of both topics."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": name, "isolation.level": "read_committed", **QUICK})
    consumer.assign([TopicPartition(topic, index, 0) for topic in (IN, OUT) for index in range(PARTITIONS)])
    while True:
        for each in consumer.consume(100, 0.2):
            if each.error() is None:
                value = each.value().decode()
                journal.say("read", topic=each.topic(), partition=each.partition(), offset=each.offset(), value=value)


ROLES = {
    ("copier", "careless"): partial(confluent_copier, isolation="read_uncommitted"),
    ("source", "confluent"): confluent_source,
    ("copier", "confluent"): confluent_copier,
    ("copier", "kafka-python"): kafka_python_copier,
    ("reader", "confluent"): reader,
}


def main(role: str, library: str, address: str, name: str, path: str) -> None:
    journal = Journal(path, name)
    if library == "aiokafka":
        asyncio.run(aiokafka_copier(address, name, journal))
    else:
        ROLES[role, library](address, name, journal)


if __name__ == "__main__":
    main(*sys.argv[1:])
