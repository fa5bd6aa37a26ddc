"""The relay with a chance to die just before and just after each commit to the log, where it matters most.

`--careless` does not ask the broker how far the log has come, and dies after each commit.
"""

from __future__ import annotations

import argparse
import asyncio

from sqlalchemy import create_engine
from tests.bank.books import outbox, perhaps_die

from headrace.client import Client
from headrace.outbox.publisher import KafkaPublisher
from headrace.outbox.relay import Relay, Settings
from headrace.outbox.store import Claim, Message, State, Store


class Mortal(KafkaPublisher):
    """Dies around a commit."""

    before = 0.0
    after = 0.0

    async def publish(self, messages: list[Message], position: int, identity: str) -> None:
        perhaps_die(self.before)
        await super().publish(messages, position, identity)
        if messages:
            perhaps_die(self.after)


class Careless(Relay):
    """Takes what was claimed for not published."""

    def _settle(self, state: State, position: int | None) -> Claim:
        return Claim((), state.claim.before, state.claim.before)


async def run(database: str, broker: str, careless: bool, death: float) -> None:
    store = Store(create_engine(database), outbox.tables)
    async with Client(broker, timeout=10.0) as client:
        publisher = Mortal(client, "default")
        publisher.before, publisher.after = (0.0, 1.0) if careless else (death, death)
        relay = (Careless if careless else Relay)(store, publisher, "default", Settings(poll=0.02))
        await relay.run()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--careless", action="store_true")
    parser.add_argument("--death", type=float, default=0.0)
    given = parser.parse_args()
    asyncio.run(run(given.database, given.broker, given.careless, given.death))
