"""The consumers: put the amount into the other account. One is a consumer group's member and knows messages by their
offsets; the other takes from a queue, over the NSQ door, and knows them by their ids.

`--careless` leaves the inbox out.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from contextlib import AbstractContextManager
from struct import error as struct_error
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from sqlalchemy import Engine, create_engine, insert, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from tests.bank.books import CLEARING, GROUP_TOPIC, QUEUE_TOPIC, accounts, applied, in_the_end, inbox, perhaps_die
from tests.cli.nsq import NsqConsumer

from headrace.inbox import nsq_message_id


def credit(session: Session, body: bytes) -> None:
    told = json.loads(body)
    amount = told["amount"]
    session.execute(update(accounts).where(accounts.c.id == told["target"]).values(balance=accounts.c.balance + amount))
    session.execute(insert(applied).values(transfer=told["transfer"], amount=amount))


def handle(session: Session, note: AbstractContextManager[Any], body: bytes) -> None:
    """The effect and the note of it; without a note, the effect each time."""
    with session, note as fresh:
        if fresh:
            credit(session, body)


def by_group(engine: Engine, broker: str, careless: bool, death: float) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": CLEARING,
            # The next process of that name has the partitions at once, and need not wait until this one is given up.
            "group.instance.id": "the only one",
            "session.timeout.ms": 30_000,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        """The database knows best where to go on."""
        if not careless:

            def seek() -> None:
                with Session(engine) as session:
                    positions = inbox.positions(session, CLEARING)
                for each in partitions:
                    each.offset = positions.get((each.topic, each.partition), each.offset)

            in_the_end(seek)
        consumer.assign(partitions)

    def once(message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        session = Session(engine)
        note = session.begin() if careless else inbox.at(session, CLEARING, topic, partition, offset)
        handle(session, note, message.value() or b"")

    consumer.subscribe([GROUP_TOPIC], on_assign=assigned)
    while True:
        got = consumer.consume(20, 0.1)
        if any(error.fatal() for each in got if (error := each.error()) is not None):
            # Nothing more will come: a new process begins anew.
            perhaps_die(1.0)
        messages = [each for each in got if each.error() is None]
        for message in messages:
            in_the_end(lambda message=message: once(message))  # type: ignore[misc]
        perhaps_die(death)
        if messages:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException:
                pass  # Then they come again.


def by_queue(engine: Engine, nsq: list[str], careless: bool, death: float) -> None:
    while True:
        try:
            with NsqConsumer(random.choice(nsq), QUEUE_TOPIC, CLEARING, credit=20) as consumer:
                while True:
                    delivery, body = consumer.next()
                    session = Session(engine)
                    message = nsq_message_id(QUEUE_TOPIC, delivery)
                    try:
                        handle(session, session.begin() if careless else inbox.once(session, CLEARING, message), body)
                    except DBAPIError:
                        consumer.say(f"REQ {delivery} 100")
                        continue
                    perhaps_die(death)
                    consumer.say(f"FIN {delivery}")
        except (OSError, struct_error):
            time.sleep(0.05)  # The broker is away.


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["group", "queue"])
    parser.add_argument("--database", required=True)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--nsq", required=True, help="of one broker, or of each node of a group")
    parser.add_argument("--careless", action="store_true")
    parser.add_argument("--death", type=float, default=0.0)
    given = parser.parse_args()
    engine = create_engine(given.database)
    if given.way == "group":
        by_group(engine, given.broker, given.careless, given.death)
    else:
        by_queue(engine, given.nsq.split(","), given.careless, given.death)
