"""A node that has no whole copy of its group's log gets one: from whichever node leads, until it has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from headrace.cluster.copying.messages import Ask
from headrace.cluster.copying.receiver import CopyReceiver, ReceiverProgress
from headrace.cluster.peer_network import PeerNetwork
from headrace.errors import HeadraceError
from headrace.log.copy.target import prepare
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.cluster")

# Between two looks for a leader, and two attempts.
PAUSE_S = 0.2
# How long the leader is to keep the rest in its journal, once the copy is whole.
SESSION_S = 10.0

Address = tuple[str, int]


class Copier:
    """The work of a node while its identity says that it is copying."""

    def __init__(
        self,
        runtime: Runtime,
        network: PeerNetwork,
        frame_max_bytes: int,
        cluster_id: str,
        leader: Callable[[], tuple[Address, Ask] | None],
        on_epoch: Callable[[int], None],
        on_whole: Callable[[], Awaitable[None]],
        has_session: Callable[[], bool],
        progress: ReceiverProgress,
    ) -> None:
        """`leader`: where the leader is now, and what to ask of it. `on_whole`: called when the directory has all of
        it. `has_session`: whether the node has a session with its leader since."""
        self._runtime = runtime
        self._network = network
        self._frame_max_bytes = frame_max_bytes
        self._cluster_id = cluster_id
        self._leader = leader
        self._on_epoch = on_epoch
        self._on_whole = on_whole
        self._has_session = has_session
        self._progress = progress

    async def run(self) -> None:
        """Until the node has a copy and follows. Raises OSError, CorruptLog of this node's own disk."""
        await self._runtime.offload.run(prepare, self._runtime.disk)
        while True:
            found = self._leader()
            if found is not None:
                receiver = CopyReceiver(
                    self._runtime, self._network, self._frame_max_bytes, self._progress, self._on_epoch
                )
                try:
                    if await self._copy(receiver, *found):
                        await self._on_whole()
                        await self._wait_for_session()
                        return
                except (OSError, HeadraceError) as error:
                    logger.warning("a copy from the leader ends, and begins again", error=str(error))
                finally:
                    receiver.close()
            await asyncio.sleep(PAUSE_S)

    async def _copy(self, receiver: CopyReceiver, address: Address, ask: Ask) -> bool:
        """Copy for as long as that node leads; whether it came to an end."""
        copying = asyncio.ensure_future(receiver.run(address, ask, self._cluster_id))
        try:
            while not copying.done():
                await asyncio.wait([copying], timeout=PAUSE_S)
                now = self._leader()
                if not copying.done() and (now is None or now[0] != address):
                    return False
            await copying
            return True
        finally:
            copying.cancel()
            # What runs off the loop cannot be called back: the next attempt begins behind it.
            with suppress(asyncio.CancelledError, OSError, HeadraceError):
                await copying

    async def _wait_for_session(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + SESSION_S
        while loop.time() < end and not self._has_session():  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)
