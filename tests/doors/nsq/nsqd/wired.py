"""An NSQ door with sockets, and a client that speaks single commands and frames."""

from __future__ import annotations

import asyncio
import inspect
import json
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests import brokers
from tests.device import Device
from tests.waiting import SECONDS

from headrace.doors.door import DoorContext
from headrace.doors.nsq.nsqd.connection import Connection
from headrace.doors.nsq.nsqd.listener import Nsqd
from headrace.doors.nsq.nsqd.topics import NsqTopics

RESPONSE, ERROR, MESSAGE = 0, 1, 2
OK = b"\0\0\0\x06\0\0\0\0OK"


@asynccontextmanager
async def open_door(data: Path | Device, tls: ssl.SSLContext | None = None, **settings: Any) -> AsyncIterator[Nsqd]:
    """A broker on `data` with an open NSQ door."""
    async with brokers.running(data, **{"durability": "async", **settings}) as broker:
        door = Nsqd(DoorContext(broker, broker.config, broker.config, tls=tls), NsqTopics(broker, broker.config))
        await door.listen("127.0.0.1", 0)
        try:
            yield door
        finally:
            await door.stop()


def kept(connection: Connection) -> int:
    """Bytes that have come and are not handled yet, or for which there is room."""
    packed = connection._decompressor
    return len(connection._own or b"") + (packed.waiting if packed is not None else 0)


class Message:
    """A message frame."""

    def __init__(self, data: bytes) -> None:
        self.timestamp, self.attempts, self.id = struct.unpack_from(">qH16s", data)
        self.body = data[26:]


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, door: Nsqd, magic: bytes = b"  V2", **identify: Any) -> Wire:
        """Connect, and say IDENTIFY if there is anything to say."""
        wire = cls(*await asyncio.open_connection(*door.address))
        wire.writer.write(magic)
        if identify:
            wire.told = json.loads(await wire.ask(identify_command(**identify)))
        return wire

    @classmethod
    async def subscribed(cls, door: Nsqd, topic: str, channel: str, ready: int = 100, **identify: Any) -> Wire:
        """A connection that has subscribed, and takes messages."""
        wire = await cls.open(door, **identify)
        assert await wire.ask(f"SUB {topic} {channel}\n".encode()) == b"OK"
        wire.send(f"RDY {ready}\n".encode())
        return wire

    told: dict[str, Any]

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def frame(self, heartbeats: bool = False) -> tuple[int, bytes]:
        """The next frame: its kind and data."""
        while True:
            size, kind = struct.unpack(">ii", await asyncio.wait_for(self.reader.readexactly(8), SECONDS))
            data = await asyncio.wait_for(self.reader.readexactly(size - 4), SECONDS)
            if heartbeats or data != b"_heartbeat_":
                return kind, data

    async def response(self) -> bytes:
        """The next frame, which must be a response."""
        kind, data = await self.frame()
        assert kind == RESPONSE, (kind, data)
        return data

    async def error(self) -> str:
        """The next frame, which must be an error."""
        kind, data = await self.frame()
        assert kind == ERROR, (kind, data)
        return data.decode()

    async def message(self) -> Message:
        """The next frame, which must be a message."""
        kind, data = await self.frame()
        assert kind == MESSAGE, (kind, data)
        return Message(data)

    async def ask(self, command: bytes) -> bytes:
        """Say something that is answered with a response."""
        self.send(command)
        return await self.response()

    async def refused(self, command: bytes) -> str:
        """Say something that is answered with an error."""
        self.send(command)
        return await self.error()

    async def closed(self) -> bytes:
        """Whatever comes before the door closes the connection."""
        return await asyncio.wait_for(self.reader.read(), SECONDS)


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def identify_command(**fields: Any) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps({"feature_negotiation": True, **fields}).encode())


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + sized(body)


def mpub(topic: str, *bodies: bytes) -> bytes:
    return f"MPUB {topic}\n".encode() + sized(struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies)))


def dpub(topic: str, delay_ms: int | str, body: bytes) -> bytes:
    return f"DPUB {topic} {delay_ms}\n".encode() + sized(body)


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on asyncio's loop and on uvloop, which hand a connection over to TLS each in its own way."""

    def run(loop: str, **given: Any) -> None:
        factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(test(**given))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    signature = inspect.signature(test)
    loop = inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = signature.replace(parameters=[loop, *signature.parameters.values()])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop", ["asyncio", "uvloop"])(run)
