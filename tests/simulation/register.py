"""A replicated register, small enough to be right: what a simulator of several machines must let stand, and break.

It holds the greatest number that was written. A group's record in etcd names epoch, leader and in-sync replicas; a
node's key there lives by a lease. A write is acknowledged once every in-sync replica has it on its disk. Only an
in-sync replica may lead, once the leader's key is gone. A read is answered by the leader alone, and only while its
lease cannot have expired, whatever the drift of clocks.

Three rules can be broken, each as real systems have broken it:

- `acknowledges_unsynced`: a number is acknowledged when it is written, not when it is on the disk.
- `trusts_its_lease`: the leader believes that it leads until etcd answers otherwise.
- `takes_unknown_for_failed`: a swap that got no answer is taken for one that did not happen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from headrace.cluster.errors import EtcdError, OutcomeUnknown
from headrace.cluster.etcd import Entry, Etcd, Refused, Swapped, Unknown
from headrace.runtime import Runtime
from headrace.runtime.disk import read_whole, replace_whole
from simulation.history import require

PORT = 7000
NODES = ("a", "b", "c")
LEASE_S = 2
# The lease is believed for a part of its time, by when it was last asked for: clocks drift.
BELIEVED_S = 0.7 * LEASE_S
TICK_S = 0.5
LAG_S = 1.5
RETRY_S = 60.0
STATE = "state"
GROUP = "register/group"
KEYS = "register/nodes/"

Failed = (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError, EtcdError)


@dataclass(frozen=True)
class Group:
    """The group's record."""

    epoch: int
    leader: str
    isr: tuple[str, ...]
    revision: int = 0


class Stopped(Exception):
    """The disk has failed. Outside of a request, the process ends."""


class Metadata:
    """What a node reads and writes in etcd."""

    def __init__(self) -> None:
        self.etcd = Etcd([("etcd", 2379)])

    async def read(self) -> tuple[Group | None, set[str]]:
        """The group, and the nodes that live."""
        entries = (await self.etcd.read_prefix("register/")).entries
        group = decode(entries[GROUP]) if GROUP in entries else None
        return group, {key.removeprefix(KEYS) for key in entries if key.startswith(KEYS)}

    async def swap(self, expected: int, group: Group) -> tuple[bool, Group | None]:
        """Whether the record was changed, and what it is. Raises OutcomeUnknown."""
        value = json.dumps({"epoch": group.epoch, "leader": group.leader, "isr": group.isr})
        match await self.etcd.swap(GROUP, expected, value.encode()):
            case Swapped(revision):
                return True, replace(group, revision=revision)
            case Refused(current):
                return False, decode(current) if current is not None else None
            case Unknown(reason):
                raise OutcomeUnknown(reason)

    async def register(self, node: str) -> int:
        """A node's key under a new lease."""
        lease = await self.etcd.grant(LEASE_S)
        old = await self.etcd.read(KEYS + node)
        outcome = await self.etcd.swap(KEYS + node, old.revision if old else 0, b"", lease=lease)
        return lease if isinstance(outcome, Swapped) else 0

    async def keep_alive(self, lease: int) -> bool:
        return await self.etcd.keep_alive(lease)


def decode(entry: Entry) -> Group:
    fields = json.loads(entry.value)
    return Group(fields["epoch"], fields["leader"], tuple(fields["isr"]), entry.revision)


class Node:
    """One replica."""

    def __init__(self, runtime: Runtime, broken: str, led: list[int]) -> None:
        self.name = runtime.hostname
        self.broken = broken
        self.led = led
        """The epochs that were led, of all nodes: no two may be the same."""
        self.runtime = runtime
        self.disk = runtime.disk
        self.etcd = Metadata()
        self.epoch = self.value = 0
        self.stored = (0, 0)
        self.storing = asyncio.Lock()
        self.group: Group | None = None
        """As the leader knows it; None for others."""
        self.counted: set[str] = set()
        """Every replica that may be in sync by what etcd has, or will have."""
        self.committed = 0
        self.acknowledged: dict[str, int] = {}
        self.heard: dict[str, float] = {}
        self.lease = 0
        self.believed_until = 0.0
        self.changing_at = 0.0
        self.progress = asyncio.Event()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def run(self) -> None:
        try:
            found = read_whole(self.disk, STATE)
            # What was torn is as good as lost, which the history of clients will tell.
            with suppress(ValueError):
                self.epoch, self.value = json.loads(found or b"[0, 0]")
            await self.store()
            await asyncio.start_server(self.serve, "0.0.0.0", PORT)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.keep_lease())
                tasks.create_task(self.watch_group())
                for name in NODES:
                    if name != self.name:
                        tasks.create_task(self.send_to(name))
        except* Stopped:
            pass

    # The disk.

    async def store(self) -> None:
        """Have epoch and value on the disk."""
        async with self.storing:
            state = self.epoch, self.value
            if state <= self.stored:
                return
            try:
                await self.runtime.offload.run(self.write, json.dumps(state).encode())
            except OSError:
                raise Stopped from None
            self.stored = state

    def write(self, contents: bytes) -> None:
        if self.broken == "acknowledges_unsynced":
            file = self.disk.open(STATE, write=True, create=True)
            file.truncate(0)
            file.write(0, [contents])
            file.close()
        else:
            replace_whole(self.disk, STATE, contents)

    # etcd.

    async def keep_lease(self) -> None:
        while True:
            asked = self.now()
            with suppress(*Failed):
                if self.lease and await self.etcd.keep_alive(self.lease):
                    self.believed_until = asked + BELIEVED_S
                else:
                    self.step_down()
                    self.lease = 0
                    self.lease = await self.etcd.register(self.name)
            await asyncio.sleep(TICK_S)

    async def watch_group(self) -> None:
        while True:
            with suppress(*Failed):
                if self.group is None:
                    await self.maybe_stand()
                else:
                    await self.maybe_change()
            await asyncio.sleep(TICK_S)

    async def maybe_stand(self) -> None:
        group, living = await self.etcd.read()
        if not self.lease:
            return
        if group is None:
            if self.name != NODES[0]:
                return
            wanted, expected = Group(1, self.name, (self.name,)), 0
        elif self.name in group.isr and (group.leader == self.name or group.leader not in living):
            wanted, expected = Group(group.epoch + 1, self.name, (self.name,)), group.revision
        else:
            return
        swapped, now = await self.etcd.swap(expected, wanted)
        if swapped and now is not None:
            await self.lead(now)

    async def lead(self, group: Group) -> None:
        self.led.append(group.epoch)
        self.epoch = max(self.epoch, group.epoch)
        await self.store()
        if self.epoch != group.epoch:
            return
        self.group, self.counted = group, {self.name}
        self.committed = self.value
        self.acknowledged, self.heard = {}, dict.fromkeys(NODES, self.now())

    def step_down(self) -> None:
        self.group = None
        self.progress.set()

    async def maybe_change(self) -> None:
        """Add replicas that have everything, remove those that are silent."""
        group = self.group
        assert group is not None
        silent = {name for name in group.isr if name != self.name and self.now() - self.heard[name] > LAG_S}
        ready = {name for name, value in self.acknowledged.items() if value >= self.committed} - silent
        if silent:
            await self.change([name for name in group.isr if name not in silent])
        elif ready - set(group.isr) and self.now() >= self.changing_at:
            await self.change([*group.isr, *sorted(ready - set(group.isr))])

    async def change(self, isr: Iterable[str]) -> None:
        group = self.group
        assert group is not None
        wanted = replace(group, isr=tuple(isr))
        self.counted |= set(wanted.isr)
        # What is committed before they count may be missing there.
        if any(self.acknowledged.get(name, 0) < self.committed for name in wanted.isr if name != self.name):
            self.counted = set(group.isr)
            return
        try:
            _, now = await self.etcd.swap(group.revision, wanted)
        except OutcomeUnknown:
            if self.broken == "takes_unknown_for_failed":
                self.counted = set(group.isr)
                self.changing_at = self.now() + RETRY_S
                return
            now = await self.resolve(group)
        except EtcdError:
            self.counted = set(group.isr)
            return
        if self.group is not group:
            return
        if now is None or (now.leader, now.epoch) != (self.name, self.epoch):
            self.step_down()
            return
        self.group, self.counted = now, set(now.isr)
        self.commit()

    async def resolve(self, group: Group) -> Group | None:
        """Raise the record's revision, so that an earlier swap cannot happen any more; what it is then."""
        while True:
            await asyncio.sleep(TICK_S)
            with suppress(*Failed):
                return (await self.etcd.swap(group.revision, group))[1]

    # Replicas.

    async def send_to(self, name: str) -> None:
        """While this node leads, bring another up to date and hear from it."""
        while True:
            if self.group is not None:
                with suppress(*Failed):
                    await self.replicate(name)
            await asyncio.sleep(TICK_S)

    async def replicate(self, name: str) -> None:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection(name, PORT)
        try:
            while (group := self.group) is not None:
                sent = self.value
                answer = await call(reader, writer, op="replicate", epoch=group.epoch, value=sent)
                if answer["epoch"] > group.epoch:
                    self.step_down()
                if self.group is None or self.group.epoch != group.epoch:
                    return
                if answer["ok"]:
                    self.acknowledged[name] = max(self.acknowledged.get(name, 0), sent)
                    self.heard[name] = self.now()
                    self.commit()
                if self.value == sent:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(TICK_S):
                            await self.progress.wait()
                    self.progress.clear()
        finally:
            writer.close()

    def commit(self) -> None:
        stored = self.value if self.broken == "acknowledges_unsynced" else self.stored[1]
        reached = [self.acknowledged.get(name, 0) for name in self.counted if name != self.name]
        self.committed = max(self.committed, min([stored, *reached]))

    # What others ask.

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                fields = json.loads(line)
                answer = await getattr(self, f"on_{fields.pop('op')}")(**fields)
                writer.write(json.dumps(answer).encode() + b"\n")
        except (*Failed, Stopped):
            pass
        finally:
            writer.close()

    async def on_replicate(self, epoch: int, value: int) -> dict[str, Any]:
        if epoch < self.epoch:
            return {"ok": False, "epoch": self.epoch}
        if epoch > self.epoch:
            self.step_down()
        # What an older leader has left here and this one does not have was never acknowledged. What this one sent
        # earlier may come later, over another connection.
        self.value = value if epoch > self.epoch else max(self.value, value)
        self.epoch = epoch
        await self.store()
        return {"ok": self.epoch == epoch, "epoch": self.epoch}

    async def on_write(self, value: int) -> dict[str, Any]:
        group = self.group
        if group is None:
            return {"ok": False}
        self.value = max(self.value, value)
        self.progress.set()
        await self.store()
        while self.group is not None and self.group.epoch == group.epoch:
            self.commit()
            if self.committed >= value:
                return {"ok": True}
            await asyncio.sleep(0.01)
        return {"ok": False}

    async def on_read(self) -> dict[str, Any]:
        if self.group is None:
            return {"ok": False}
        if self.now() >= self.believed_until and self.broken != "trusts_its_lease":
            return {"ok": False}
        return {"ok": True, "value": self.committed}


async def call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, **fields: Any) -> Any:
    writer.write(json.dumps(fields).encode() + b"\n")
    async with asyncio.timeout(1.0):
        line = await reader.readline()
    return json.loads(line)


@dataclass
class History:
    """What clients know of the register: it never goes back."""

    sent: int = 0
    floor: int = 0
    writes: int = 0
    reads: int = 0

    def on_written(self, value: int) -> None:
        self.writes += 1
        self.floor = max(self.floor, value)

    def on_read(self, value: int, floor: int) -> None:
        require(value >= floor, f"a read gave {value}, and {floor} was acknowledged or read before it began")
        require(value <= self.sent, f"a read gave {value}, which was never written")
        self.reads += 1
        self.floor = max(self.floor, value)


class Client:
    """Asks one node after the other."""

    def __init__(self, history: History, rng: Any) -> None:
        self.history = history
        self.rng = rng
        self.open: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def ask(self, node: str, **fields: Any) -> Any:
        try:
            if node not in self.open:
                async with asyncio.timeout(0.5):
                    self.open[node] = await asyncio.open_connection(node, PORT)
            return await call(*self.open[node], **fields)
        except Failed:
            if node in self.open:
                self.open.pop(node)[1].close()
            return {"ok": False}

    async def write(self) -> bool:
        """One number, at the first node that takes it."""
        history = self.history
        history.sent += 1
        value = history.sent
        for node in self.rng.sample(NODES, len(NODES)):
            if (await self.ask(node, op="write", value=value))["ok"]:
                history.on_written(value)
                return True
        return False

    async def read(self) -> bool:
        for node in self.rng.sample(NODES, len(NODES)):
            floor = self.history.floor
            answer = await self.ask(node, op="read")
            if answer["ok"]:
                self.history.on_read(answer["value"], floor)
                return True
        return False

    async def run(self, reads: bool) -> None:
        while True:
            await (self.read() if reads else self.write())
            await asyncio.sleep(self.rng.expovariate(1 / 0.15))
