"""The fast way of produce and fetch in one process and without sockets, so that nothing but the door and the broker is
measured: connections of the Kafka door are given the same requests again and again.

One door has no users and no rights; the other one's client has authenticated by SCRAM, among rules for many users, and
has quotas that it never reaches.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench import requests
from headrace.broker.broker import Broker
from headrace.broker.quotas.entities import make_entity
from headrace.broker.quotas.kinds import Kind
from headrace.broker.security import OWN, Identity, Operation, Resource
from headrace.broker.security.rules import Rule, allow
from headrace.config import Config
from headrace.doors.door import DoorContext
from headrace.doors.kafka.connection import Connection
from headrace.doors.kafka.door import KafkaDoor
from headrace.log.native import NativeLog
from headrace.runtime.real import real_runtime

OFF, SAME, ON = "off", "off, once more", "on"
REQUESTS = {"produce": 40_000, "fetch": 8_000}
IN_A_BUFFER = 40
USERS = 100
TOPIC = "orders"
USER = "user-7"
QUOTAS = {Kind.PRODUCE: 1e12, Kind.CONSUME: 1e12, Kind.REQUEST: 1e6}


class Client(asyncio.Transport):
    """Takes replies, and keeps none."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.protocol: asyncio.BaseProtocol | None = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        pass

    def writelines(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self.protocol is not None:
            protocol, self.protocol = self.protocol, None
            asyncio.get_running_loop().call_soon(protocol.connection_lost, None)


class Scene:
    """A door with one client, and the requests that it sends."""

    def __init__(self, door: KafkaDoor) -> None:
        self.connection: Connection = door.listeners[0].connect()
        self.connection.connection_made(Client(self.connection))
        made = requests.batch_of(1)
        produce = requests.produce(TOPIC, [(0, made)], acks=1)
        fetch = bytes(requests.fetch(TOPIC, [0], max_wait_ms=0, partition_bytes=4_096).frame)
        self.buffers = {"produce": bytearray(produce * IN_A_BUFFER), "fetch": bytearray(fetch * IN_A_BUFFER)}

    def run(self, kind: str) -> float:
        """CPU seconds for some requests."""
        buffer = self.buffers[kind]
        began = time.process_time()
        for _ in range(REQUESTS[kind] // IN_A_BUFFER):
            position = self.connection._consume(buffer, len(buffer))
            assert position == len(buffer), f"{kind}: a request waits"
        return time.process_time() - began


@asynccontextmanager
async def opened(is_secured: bool) -> AsyncIterator[Scene]:
    """A broker with a door; its topic is in memory, and every user of many has rules."""
    settings = {"authorization": "on", "audit": "off", "kafka_mechanisms": "SCRAM-SHA-256"} if is_secured else {}
    with tempfile.TemporaryDirectory() as data:
        config = Config(data=data, kafka="127.0.0.1:0", durability="memory", **settings)
        runtime = real_runtime(data)
        log = NativeLog(runtime, config)
        await log.start()
        broker = Broker(runtime, log, config)
        await broker.start()
        topic = await broker.topics.create(TOPIC, 1)
        await topic.partitions[0].load()
        door = KafkaDoor(DoorContext(broker, config, config))  # type: ignore[arg-type]
        await door.start()
        scene = Scene(door)
        if is_secured:
            await broker.security.grants.add_rules(OWN, [rule for n in range(USERS) for rule in rules(f"user-{n}")])
            assert scene.connection.sasl is not None
            scene.connection.sasl.close()
            scene.connection.gate = None
            scene.connection.login(Identity(USER, "SCRAM-SHA-256"))
            broker.quotas.apply(make_entity([("user", USER)]), QUOTAS)
        try:
            yield scene
        finally:
            await door.stop()
            await broker.stop()
            await log.stop()
            runtime.offload.close()


def rules(user: str) -> list[Rule]:
    return [
        allow(user, operation, Resource.TOPIC, name)
        for operation in (Operation.READ, Operation.WRITE)
        for name in (TOPIC, f"{user}-own")
    ]


async def measured(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds of CPU for a request, of each round: by kind, and by server. They take turns."""
    async with opened(False) as off, opened(False) as same, opened(True) as on:
        scenes = {OFF: off, SAME: same, ON: on}
        found: dict[str, dict[str, list[float]]] = {}
        for kind in ("produce", "fetch"):
            taken = found[kind] = {name: [] for name in scenes}
            for scene in scenes.values():
                scene.run(kind)
            for _ in range(rounds):
                for name, scene in scenes.items():
                    taken[name].append(scene.run(kind) / REQUESTS[kind] * 1e6)
                    await asyncio.sleep(0.05)
        return found
