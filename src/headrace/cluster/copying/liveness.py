"""Seeing that the other side of a copy is gone: either side may work for long without a word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.cluster.connection import PeerConnection
from headrace.cluster.copying.messages import Alive, encode
from headrace.cluster.wire import Copy

BEAT_S = 1.0
SILENCE_S = 10.0


async def beat(connection: PeerConnection, on_silent: Callable[[], None]) -> None:
    """Let the other side know that this one lives, until it has been silent for too long itself."""
    loop = asyncio.get_running_loop()
    while loop.time() - connection.heard_at < SILENCE_S:
        connection.send(Copy(encode(Alive())))
        await asyncio.sleep(BEAT_S)
    on_silent()
