"""One node of a group in the simulator, with a producer and a reader that sit on it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.cluster import identity
from headrace.cluster.changes import configure
from headrace.cluster.errors import ChangeRefused, EtcdError, StartRefused
from headrace.cluster.etcd import Etcd
from headrace.cluster.node import Node, NodeSettings
from headrace.cluster.records import Incarnation, Keys
from headrace.cluster.records import Node as NodeRecord
from headrace.cluster.swaps import change_group
from headrace.errors import CorruptLog, NotLeading, TransferFailed
from headrace.log.group_frames import header_of, payload_of
from headrace.log.journal import FOLDER
from headrace.log.replicated_journal import FramesGone
from headrace.runtime import Runtime
from simulation.group.history import GroupHistory

KEYS = Keys("simulated")
GROUP = "g"
ETCD = ("etcd", 2379)
PORT = 7000
# So small that every path is met.
SETTINGS = NodeSettings(
    "",
    KEYS,
    GROUP,
    Incarnation(0, "", 0),
    journal_file_bytes=20_000,
    journal_memory_bytes=2_000,
    preferred_after_s=8.0,
    admission_max_s=4.0,
)
OPERATOR_S = 5.0


async def start_node(runtime: Runtime, number: int, **changed: Any) -> Node | None:
    """A node that takes part in the group; None if it cannot be started now. `changed`: settings of its own."""
    disk, etcd, name = runtime.disk, Etcd([ETCD]), runtime.hostname
    try:
        found = await identity.start(runtime, etcd, KEYS, GROUP, number)
        if not disk.exists(FOLDER):
            disk.mkdir(FOLDER)
            disk.sync_dir("")
    except (EtcdError, StartRefused, OSError):
        return None
    me = Incarnation(number, found.directory_id, found.starts)
    settings = replace(SETTINGS, cluster_id=found.cluster_id, me=me, **changed)
    node = Node(runtime, etcd, settings, lambda _: None)
    try:
        await node.journal.open()
        await node.listen(name, PORT)
    except OSError:
        return None
    addresses = {"peer": f"{name}:{PORT}"}
    await node.join(NodeRecord(me.directory_id, me.starts, GROUP, "", addresses, runtime.boot_id, 1, 1))
    return node


class Replica:
    """The clients of one node, for one life of it."""

    def __init__(
        self, name: str, node: Node, history: GroupHistory, rng: random.Random, is_alive: Callable[[], bool]
    ) -> None:
        self._name = name
        self.node = node
        self._history = history
        self._rng = rng
        self._is_alive = is_alive
        self._led = 0

    async def run(self) -> None:
        """Until an operator stops the node."""
        tasks = [asyncio.ensure_future(each) for each in (self._produce(), self._read())]
        await operate(self.node, self._rng, self._history.counts, lambda: self._history.is_calm)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.node.retire()
        await self.node.stop()

    async def _produce(self) -> None:
        node = self.node
        while True:
            await asyncio.sleep(self._rng.choice((0.002, 0.01, 0.05, 0.2)))
            if node.leadership is not None and node.leadership.epoch != self._led:
                self._led = node.leadership.epoch
                self._history.lead(self._name, self._led)
            if not node.serves:
                continue
            value = self._history.next_value()
            try:
                committed = node.append(value, 1)
            except (NotLeading, CorruptLog):
                continue
            committed.add_done_callback(lambda done, value=value: self._on_committed(done, value))  # type: ignore[misc]

    def _on_committed(self, done: asyncio.Future[int], value: bytes) -> None:
        # What a dying process still hears never reached a client.
        if self._is_alive() and not done.cancelled() and done.exception() is None:
            self._history.acknowledge(done.result(), value)

    async def _read(self) -> None:
        journal = self.node.journal
        while True:
            await asyncio.sleep(self._rng.choice((0.05, 0.2, 0.5)))
            end = min(journal.committed, journal.flushed)
            if not end:
                continue
            try:
                frames = await journal.read(self._rng.randint(1, end), 300)
            except FramesGone:
                continue
            for data in frames:
                frame = header_of(data)
                assert frame is not None
                if frame.sequence <= journal.committed and self._is_alive():
                    self._history.read(self._name, frame, payload_of(data))


async def operate(node: Node, rng: random.Random, counts: Counter[str], is_calm: Callable[[], bool]) -> None:
    """Ask for transfers and change min_isr now and then, until the node is to stop."""
    etcd = Etcd([ETCD])
    while True:
        await asyncio.sleep(rng.expovariate(1 / OPERATOR_S))
        if is_calm():
            continue
        if rng.random() < 0.1:
            counts["retired"] += 1
            return
        if rng.random() < 0.2:
            with suppress(EtcdError, ChangeRefused):
                await change_group(etcd, KEYS.group(GROUP), partial(configure, min_isr=rng.choice((1, 2))))
        if not node.serves:
            continue
        try:
            await node.transfers.transfer(rng.choice((None, 0, 1, 2)))
            counts["transferred"] += 1
        except TransferFailed:
            counts["transfer failed"] += 1
