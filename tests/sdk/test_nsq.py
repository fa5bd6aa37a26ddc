"""NSQ's wire, where the other side is not as it should be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.sdk.in_memory import consumer_config
from tests.waiting import SECONDS

from headrace.sdk import Unsuited
from headrace.sdk import nsq as module
from headrace.sdk.message import Outgoing
from headrace.sdk.nsq import NsqReceiver, NsqTransport
from headrace.sdk.nsq_wire import HEAD, RESPONSE, SIZE
from headrace.sdk.system import parse


class Nsqd:
    """Knows enough of NSQ to be subscribed to, and can be told to hang up."""

    def __init__(self) -> None:
        self.answers = True
        self.connections = 0
        self.published: list[bytes] = []
        self.open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if not self.answers:
            await reader.readexactly(4)
            writer.close()
            return
        self.open.add(writer)
        try:
            await reader.readexactly(4)
            while line := await reader.readline():
                if line == b"IDENTIFY\n":
                    await reader.readexactly(SIZE.unpack(await reader.readexactly(4))[0])
                elif line.startswith(b"MPUB"):
                    self.published.append(await reader.readexactly(SIZE.unpack(await reader.readexactly(4))[0]))
                if not line.startswith(b"RDY"):
                    writer.write(HEAD.pack(6, RESPONSE) + b"OK")
        finally:
            self.open.discard(writer)
            writer.close()

    def hang_up(self) -> None:
        for each in self.open:
            each.close()


@asynccontextmanager
async def nsqd() -> AsyncIterator[tuple[Nsqd, NsqReceiver, str]]:
    one = Nsqd()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname())
    receiver = NsqReceiver(
        NsqTransport(parse(f"nsq://{address}"), "shop"), consumer_config("t", "g"), "g", lambda found: None
    )
    async with server:
        try:
            yield one, receiver, address
        finally:
            await receiver.close()
            one.hang_up()


async def test_an_open_that_fails_leaves_nothing_behind_that_tries_again() -> None:
    async with nsqd() as (server, receiver, address):
        server.answers = False
        with pytest.raises(Unsuited):
            await receiver.open(address)
        await asyncio.sleep(3 * module.BACKOFF_FIRST)
        assert server.connections == 1


async def test_a_server_that_hangs_up_is_connected_to_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_FIRST", 0.02)
    monkeypatch.setattr(module, "BACKOFF_MAX", 0.02)
    async with nsqd() as (server, receiver, address):
        await receiver.open(address)
        server.answers = False
        server.hang_up()
        async with asyncio.timeout(SECONDS):
            while server.connections < 8:
                await asyncio.sleep(0.001)
        server.answers = True
        async with asyncio.timeout(SECONDS):
            while not receiver.connected:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        assert len(server.open) == 1


async def test_no_request_is_larger_than_a_server_takes() -> None:
    async with nsqd() as (server, _, address):
        transport = NsqTransport(parse(f"nsq://{address}"), "shop")
        await transport.open()
        values = [b"%04d" % each + bytes(20_000) for each in range(300)] + [bytes(2_000_000)]
        await asyncio.wait_for(transport.publish([Outgoing("orders", value) for value in values]), SECONDS)
        await transport.close()
    assert b"".join(each[4:] for each in server.published) == b"".join(SIZE.pack(len(one)) + one for one in values)
    assert max(map(len, server.published[:-1])) < 5 * 1_048_576
    assert len(server.published) > 5
