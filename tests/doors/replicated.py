"""A broker on the log of a replica, whose group is the test: it says when frames are committed, and who leads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.device import Device
from tests.doors.group import FakeMembership

from headrace.broker.broker import Broker
from headrace.broker.settings import BrokerSettings
from headrace.config import Config
from headrace.log.replicated import ReplicatedLog
from headrace.log.replicated_journal import ReplicatedJournal
from headrace.log.settings import LogSettings
from headrace.runtime.real import real_runtime

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class ReplicatedBroker:
    """Node 1 of three."""

    def __init__(self, data: Path | Device, **settings: Any) -> None:
        self.config = Config(data=str(data), node_id=1, **settings)
        self.runtime = data.runtime() if isinstance(data, Device) else real_runtime(self.config.data)
        self.group = FakeMembership(leader=None)
        self.commits = True
        """Whether what this node has flushed is committed at once."""
        self.journal = ReplicatedJournal(
            self.runtime, "main", 1 << 22, 1 << 20, lambda _: self.commits and self.commit(), lambda _: None
        )
        self.log = ReplicatedLog(self.runtime, self.config.part(LogSettings), self.journal, CLUSTER_ID, 1 << 24)
        self.broker = Broker(self.runtime, self.log, self.config.part(BrokerSettings), self.group)

    def commit(self) -> None:
        """The followers have what this node has."""
        self.journal.commit(self.journal.flushed)
        self.log.on_committed(self.journal.committed)

    def lead(self) -> None:
        """This node leads from now on."""
        epoch = self.group.epoch

        def submit(payload: bytes, entries: int) -> int:
            self.journal.append(epoch, payload, entries)
            return self.journal.last.sequence

        self.log.lead(epoch, submit)
        self.group.change(leader=1)

    def follow(self, leader: int | None, epoch: int) -> None:
        """Another node does."""
        self.log.follow("the test says so")
        self.group.change(leader=leader, epoch=epoch)


@asynccontextmanager
async def leading(data: Path | Device, **settings: Any) -> AsyncIterator[ReplicatedBroker]:
    """A broker that leads its group."""
    node = ReplicatedBroker(data, **settings)
    await node.log.start()
    node.lead()
    await node.broker.start()
    try:
        yield node
    finally:
        node.commits = True
        node.commit()
        await node.broker.stop()
        await node.log.stop()
        node.runtime.offload.close()
