"""The books of a bank, and the processes' common runtime: what is in the database, and dying in between.

A transfer is two acts in two transactions: the teller takes the amount from one account, and later somebody else puts
it into another, told by a message. In between it is on its way. At every moment, in one look at all the books, accounts
and transfers on their way add up to the same sum.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, String, Table, func, insert, select
from sqlalchemy.exc import DBAPIError

from headrace.inbox import Inbox
from headrace.outbox import Outbox

ACCOUNTS = 20
OPENING = 1_000_000
TOTAL = ACCOUNTS * OPENING
# Transfers go one of two ways: to a consumer group, or to a queue.
GROUP_TOPIC, QUEUE_TOPIC = "transfers.group", "transfers.queue"
TOPICS = (GROUP_TOPIC, QUEUE_TOPIC)
CLEARING = "clearing"

metadata = MetaData()
accounts = Table(
    "accounts",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("balance", BigInteger, nullable=False),
)
transfers = Table(
    "transfers",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("topic", String(50), nullable=False),
    Column("amount", BigInteger, nullable=False),
)
# Nothing here keeps a transfer from being applied twice: that is the inbox's work.
applied = Table(
    "applied",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("transfer", String(32), nullable=False, index=True),
    Column("amount", BigInteger, nullable=False),
)
outbox = Outbox(metadata)
inbox = Inbox(metadata)


def open_bank(engine: Engine) -> None:
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(accounts), [{"id": each, "balance": OPENING} for each in range(ACCOUNTS)])


@dataclass(frozen=True)
class Audit:
    """The books at one moment."""

    sum: int
    """Of accounts and of what is on its way."""
    on_its_way: int
    """Transfers that were begun and not applied."""
    transfers: int
    twice: int
    """Transfers that were applied more than once."""
    phantoms: int
    """Transfers that were applied and never begun."""

    def check(self) -> None:
        assert self.phantoms == 0, f"{self.phantoms} transfers were applied that nobody made: {self}"
        assert self.twice == 0, f"{self.twice} transfers were applied twice: {self}"
        assert self.sum == TOTAL, f"the sum was {TOTAL} and is {self.sum}: {self}"


def audit(engine: Engine) -> Audit:
    """All of the books in one look."""
    begun = select(transfers.c.id)
    done = select(applied.c.transfer)
    on_its_way = transfers.c.id.not_in(done)
    twice = select(applied.c.transfer).group_by(applied.c.transfer).having(func.count() > 1).subquery()
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        kept = connection.scalar(select(func.sum(accounts.c.balance)))
        amount, count = connection.execute(
            select(func.coalesce(func.sum(transfers.c.amount), 0), func.count()).where(on_its_way)
        ).one()
        return Audit(
            int(kept or 0) + int(amount),
            count,
            connection.scalar(select(func.count()).select_from(transfers)) or 0,
            connection.scalar(select(func.count()).select_from(twice)) or 0,
            connection.scalar(select(func.count()).where(applied.c.transfer.not_in(begun))) or 0,
        )


def perhaps_die(chance: float) -> None:
    """kill -9, at a step where it matters."""
    if random.random() < chance:
        os.kill(os.getpid(), signal.SIGKILL)


def in_the_end(act: Callable[[], None]) -> None:
    """Do it again until the database lets it be done."""
    while True:
        try:
            return act()
        except DBAPIError:
            time.sleep(0.05)
