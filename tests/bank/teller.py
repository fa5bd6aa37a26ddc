"""The application: takes an amount from an account, and tells of it.

`--publish outbox` as it should be. The others are what people do without one: `inside` sends the message itself within
the transaction, which may be rolled back after it was sent; `after` sends it behind the commit, and may die between.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import uuid

from confluent_kafka import Producer
from sqlalchemy import create_engine, insert, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from tests.bank.books import ACCOUNTS, TOPICS, accounts, outbox, perhaps_die, transfers


class ChangedTheirMind(Exception):
    """A customer, at the last moment: the transaction is rolled back."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--publish", default="outbox")
    parser.add_argument("--death", type=float, default=0.0)
    given = parser.parse_args()
    engine = create_engine(given.database)
    producer = Producer({"bootstrap.servers": given.broker, "enable.idempotence": True, "log_level": 0})

    def send(topic: str, message: str, key: str) -> None:
        producer.produce(topic, message, key)
        producer.flush(10)

    while True:
        topic, amount = random.choice(TOPICS), random.randint(1, 100)
        source, target = random.sample(range(ACCOUNTS), 2)
        transfer = uuid.uuid4().hex
        message = json.dumps({"transfer": transfer, "target": target, "amount": amount})
        try:
            with Session(engine) as session, session.begin():
                session.execute(
                    update(accounts).where(accounts.c.id == source).values(balance=accounts.c.balance - amount)
                )
                session.execute(insert(transfers).values(id=transfer, topic=topic, amount=amount))
                if given.publish == "outbox":
                    outbox.add(session, topic, message, key=str(target))
                elif given.publish == "inside":
                    send(topic, message, str(target))
                if given.publish != "after":
                    perhaps_die(given.death)
                if random.random() < 0.1:
                    raise ChangedTheirMind
            perhaps_die(given.death)
            if given.publish == "after":
                send(topic, message, str(target))
        except (ChangedTheirMind, DBAPIError):
            pass
        time.sleep(0.005)
