"""The NSQ door on a simulated machine: connections are cut and delayed, the process is killed, the power goes.

Publishers and consumers speak to it over a network that breaks. What was answered with OK must be delivered, in this
life or a later one; what is delivered must have been sent; and what was finished before a clean stop must not come
again.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from tests.doors.nsq.nsqd.wired import Message, mpub, pub

from headrace.broker.broker import Broker
from headrace.doors.door import DoorContext
from headrace.doors.nsq.nsqd.listener import Nsqd
from headrace.doors.nsq.nsqd.topics import NsqTopics
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.faults import Plan
from simulation.life import small_config
from simulation.world import Ending, World

HOST, PORT = "127.0.0.1", 4150
LIVES = 8
FENCE = b"FIN zzzzzzzzzzzzzzzz\n"
MESSAGES = 30


@dataclass
class Account:
    """What the clients know, through all lives."""

    sent: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    delivered: dict[bytes, int] = field(default_factory=dict)
    finished: set[bytes] = field(default_factory=set)
    """In this life, and the broker is known to have done it."""
    settled: set[bytes] = field(default_factory=set)
    """Finished in a life that ended well: never to be delivered again."""


class Lost(Exception):
    """The connection broke."""


class Client:
    """One connection over the simulated network."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls) -> Client:
        try:
            client = cls(*await asyncio.open_connection(HOST, PORT))
            client.writer.write(b"  V2")
            return client
        except OSError:
            raise Lost from None

    async def frame(self) -> tuple[int, bytes]:
        try:
            size, kind = struct.unpack(">ii", await self.reader.readexactly(8))
            return kind, await self.reader.readexactly(size - 4)
        except (OSError, asyncio.IncompleteReadError):
            raise Lost from None

    async def answer(self) -> bytes:
        while True:
            kind, data = await asyncio.wait_for(self.frame(), 300)
            if data == b"_heartbeat_":
                self.writer.write(b"NOP\n")
            else:
                assert kind == 0, data
                return data


class Life:
    """One life of the broker with its clients."""

    def __init__(self, world: World, account: Account, last: bool) -> None:
        self.world = world
        self.account = account
        self.last = last
        self.rng = world.stream(f"clients {world.lives}")

    async def run(self, runtime: Runtime) -> None:
        config = replace(small_config(self.world.stream("config")), auto_create_topics=True)
        log = NativeLog(runtime, config)
        await log.start()
        broker = Broker(runtime, log, config)
        await broker.start()
        door = Nsqd(DoorContext(broker, config, config), NsqTopics(broker, broker.config))
        await door.listen(HOST, PORT)
        network = self.world.network
        network.cut_chance = 0.0 if self.last else self.rng.choice((0.0, 0.01, 0.03))
        tasks = [asyncio.ensure_future(self._publish(number)) for number in range(2)]
        consuming = [asyncio.ensure_future(self._consume()) for _ in range(2)]
        await asyncio.gather(*tasks)
        if self.last:
            async with asyncio.timeout(3600):
                while self.account.acknowledged - self.account.delivered.keys():
                    await asyncio.sleep(1)
        else:
            await asyncio.sleep(self.rng.expovariate(1))
        for task in consuming:
            task.cancel()
        await asyncio.gather(*consuming, return_exceptions=True)
        await door.stop()
        await broker.stop()
        await log.stop()

    async def _publish(self, who: int) -> None:
        client: Client | None = None
        for number in range(MESSAGES):
            bodies = [b"%d-%d-%d-%d" % (self.world.lives, who, number, each) for each in range(self.rng.randint(1, 4))]
            try:
                client = client or await Client.open()
                self.account.sent.update(bodies)
                if len(bodies) == 1 or self.rng.random() < 0.5:
                    client.writer.write(mpub("t", *bodies))
                    answers = 1
                else:
                    client.writer.write(b"".join(pub("t", body) for body in bodies))
                    answers = len(bodies)
                for index in range(answers):
                    assert await client.answer() == b"OK"
                    if answers > 1:
                        self.account.acknowledged.add(bodies[index])
                if answers == 1 and self.world.machine.alive:
                    self.account.acknowledged.update(bodies)
            except Lost:
                client = None
                await asyncio.sleep(self.rng.expovariate(10))
        if client is not None:
            client.writer.close()

    async def _consume(self) -> None:
        while True:
            with suppress(Lost):
                client = await Client.open()
                client.writer.write(b"SUB t c\n")
                assert await client.answer() == b"OK"
                client.writer.write(b"RDY %d\n" % self.rng.randint(1, 20))
                await self._settle(client)
            await asyncio.sleep(self.rng.expovariate(10))

    async def _settle(self, client: Client) -> None:
        # A FIN has no answer, but a wrong one behind it has.
        fenced: deque[bytes] = deque()
        while True:
            kind, data = await client.frame()
            if data == b"_heartbeat_":
                client.writer.write(b"NOP\n")
            elif kind == 1:
                assert data == b"E_FIN_FAILED FIN zzzzzzzzzzzzzzzz failed ID not in flight", data
                self.account.finished.add(fenced.popleft())
            else:
                message = Message(data)
                assert message.attempts >= 1
                assert message.body not in self.account.settled
                self.account.delivered[message.body] = self.account.delivered.get(message.body, 0) + 1
                draw = self.rng.random()
                if draw < 0.8 or self.last:
                    client.writer.write(b"FIN " + message.id + b"\n" + FENCE)
                    fenced.append(message.body)
                elif draw < 0.95:
                    client.writer.write(b"REQ " + message.id + b" %d\n" % self.rng.choice((0, 500)))


@pytest.mark.parametrize("seed", range(12))
def test_what_was_acknowledged_is_delivered(seed: int) -> None:
    world = World(seed)
    account = Account()
    plans = world.stream("plans")
    for _ in range(LIVES):
        plan = Plan(kill=plans.random() < 0.3)
        draw = plans.random()
        if draw < 0.4:
            # Between an operation of the disk and the next: where an answer that comes too soon is found out.
            plan.crash_at = int(2 ** plans.uniform(2, 9))
        elif draw < 0.8:
            plan.crash_after = plans.expovariate(2)
        ending = world.run(Life(world, account, last=False).run, plan)
        if ending is Ending.DONE:
            account.settled |= account.finished
        account.finished.clear()
    assert world.run(Life(world, account, last=True).run) is Ending.DONE
    assert account.acknowledged
    assert account.acknowledged <= account.delivered.keys() <= account.sent
