"""Conversations that make no sense: whatever a client says, the door answers in NSQ's terms and loses nothing."""

from __future__ import annotations

import asyncio
import struct
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doors.nsq.nsqd.wired import Wire, dpub, identify_command, mpub, open_door, pub, sized
from tests.longer import examples

from headrace.doors.nsq.nsqd.listener import Nsqd

CODES = (
    b"E_INVALID",
    b"E_BAD_BODY",
    b"E_BAD_MESSAGE",
    b"E_BAD_TOPIC",
    b"E_BAD_CHANNEL",
    b"E_BAD_PROTOCOL",
    b"E_FIN_FAILED",
    b"E_REQ_FAILED",
    b"E_TOUCH_FAILED",
    b"E_AUTH_DISABLED",
)
ID = b"0123456789ABCDEF"
commands = st.one_of(
    st.sampled_from(
        [
            b"NOP\n",
            b"CLS\n",
            b"RDY 5\n",
            b"RDY -5\n",
            b"RDY 99999\n",
            b"SUB t c\n",
            b"SUB t\n",
            b"SUB t! c\n",
            b"FIN " + ID + b"\n",
            b"TOUCH " + ID + b"\n",
            b"REQ " + ID + b" 5\n",
            b"REQ " + ID + b" x\n",
            b"FIN x\n",
            pub("t", b"good"),
            pub("t", b"good") * 3,
            pub("t!", b"bad"),
            mpub("t", b"good", b"better"),
            dpub("t", 0, b"good"),
            dpub("t", -1, b"bad"),
            identify_command(client_id="x"),
            identify_command(heartbeat_interval=5),
            b"AUTH\n" + sized(b"secret"),
            b"MPUB t\n" + sized(b"\0\0\0\x05abc"),
            b"PUB t\n" + struct.pack(">i", -1),
        ]
    ),
    st.binary(max_size=40),
    st.binary(max_size=20).map(lambda body: b"IDENTIFY\n" + sized(body or b"x")),
    st.binary(min_size=1, max_size=30).map(lambda body: b"MPUB t\n" + sized(body)),
)


def frames_of(data: bytes) -> list[tuple[int, bytes]]:
    """Whole frames and nothing else."""
    found = []
    while data:
        size, kind = struct.unpack_from(">ii", data)
        assert 4 <= size <= len(data) - 4
        found.append((kind, data[8 : size + 4]))
        data = data[size + 4 :]
    return found


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.lists(commands, max_size=12), min_size=1, max_size=4), st.integers(1, 60))
def test_conversations(talks: list[list[bytes]], part: int) -> None:
    asyncio.run(asyncio.wait_for(_converse(talks, part), 60))


async def _converse(talks: list[list[bytes]], part: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with open_door(Path(folder)) as door:
            published = sum(await asyncio.gather(*(_talk(door, talk, part) for talk in talks)))
            # What was answered with OK is there, and the door serves the next client.
            async with await Wire.open(door) as wire:
                assert await wire.ask(pub("t", b"last")) == b"OK"
            topic = door.topics.get("t")
            assert topic is not None
            assert topic.partitions[0].end >= published + 1


async def _talk(door: Nsqd, talk: list[bytes], part: int) -> int:
    wire = await Wire.open(door)
    data = b"".join(talk)
    for start in range(0, len(data), part):
        wire.send(data[start : start + part])
        await asyncio.sleep(0)
    wire.writer.write_eof()
    frames = frames_of(await wire.closed())
    wire.writer.close()
    errors = [each for kind, each in frames if kind == 1]
    assert all(each.startswith(CODES) for each in errors), errors
    for error in errors[:-1]:
        # Only these leave the connection open.
        assert error.startswith((b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"))
    published = [each for each in talk if each.startswith((b"PUB t\n", b"MPUB t\n", b"DPUB t 0\n"))]
    return min(len(published), 1) if published and frames and frames[0] == (0, b"OK") and talk[0] in published else 0
