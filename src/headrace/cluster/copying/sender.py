"""The leader's side of copies: one sender for each follower that asks.

A round fixes a position of the journal and sends what the follower lacks of each partition there. Is the rest in the
journal when the round ends, it is kept there until the follower has opened its session; otherwise another round
follows. One file is read at a time, off the loop, and all copies together take no more than the rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import structlog

from headrace.cluster.connection import PeerConnection
from headrace.cluster.copying.liveness import beat
from headrace.cluster.copying.messages import (
    Alive,
    Ask,
    CopyMessage,
    Data,
    Done,
    FileBegin,
    Gone,
    Part,
    PartEnd,
    Round,
    RoundEnd,
    Want,
    decode,
    encode,
)
from headrace.cluster.copying.rate import RateLimit
from headrace.cluster.json_messages import PeerProtocolError
from headrace.cluster.wire import Copy, Message, Refusal
from headrace.errors import CorruptLog, HeadraceError
from headrace.log.copy.parts import CopiedFile, CopiedPartition, digest_cost, digest_of
from headrace.log.copy.source import CopySource
from headrace.log.copy.target import WantedFile
from headrace.log.partition import NativePartition
from headrace.log.replicated import ReplicatedLog
from headrace.runtime.disk import Disk, File

logger = structlog.get_logger("headrace.cluster")

M = TypeVar("M", bound=CopyMessage)

PIECE_BYTES = 256 << 10
# Pieces that the follower has not written yet.
WINDOW = 4
# How long the journal keeps the rest for a follower whose copy is whole, until its session begins.
GRACE_S = 15.0


@dataclass(slots=True)
class CopyProgress:
    """How far a copy is."""

    node: int
    round: int = 0
    done: int = 0
    """Bytes of this round that the follower has, whether they were sent or were there."""
    size: int = 0
    """About how many bytes the round has."""
    sent: int = 0
    """Bytes that were sent in all rounds."""
    rate: float = 0.0
    """Bytes a second since the copy began."""


class CopySender:
    """One copy."""

    def __init__(
        self,
        log: ReplicatedLog,
        limit: RateLimit,
        rate: int,
        connection: PeerConnection,
        ask: Ask,
        on_end: Callable[[CopySender], None],
    ) -> None:
        self._log = log
        self._limit = limit
        self._rate = rate
        self._connection = connection
        self.ask = ask
        self._on_end = on_end
        self._answers: asyncio.Queue[CopyMessage] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._under_way = 0
        self.progress = CopyProgress(ask.caller.node)
        connection.listener = self
        self._task = self._loop.create_task(self._run())
        self._beating = self._loop.create_task(beat(connection, self.close))

    # --- the connection ---

    def on_message(self, connection: PeerConnection, message: Message) -> None:
        """The follower has said something."""
        try:
            if not isinstance(message, Copy):
                raise PeerProtocolError(f"a {type(message).__name__} does not belong into a copy")
            answer = decode(message.body)
            if not isinstance(answer, Alive):
                self._answers.put_nowait(answer)
        except PeerProtocolError as error:
            logger.warning("a copy ends", follower=self.ask.caller.node, error=str(error))
            self.close()

    def on_closed(self, connection: PeerConnection) -> None:
        """The follower is gone, or has what it asked for."""
        self.close()

    def on_drained(self, connection: PeerConnection) -> None:
        """What waits for the follower is bounded by the window."""

    def close(self, reason: str = "") -> None:
        """End it; the follower asks again if it must."""
        self._connection.close(Refusal(reason, 0) if reason else None)
        self._task.cancel()

    def _send(self, message: CopyMessage) -> None:
        self._connection.send(Copy(encode(message)))

    # --- the copy ---

    async def _run(self) -> None:
        try:
            number = 1
            while not await self._send_round(number):
                number += 1
        except (OSError, CorruptLog, HeadraceError) as error:
            logger.warning("a copy to a follower ends", follower=self.ask.caller.node, error=str(error))
            self._connection.close(Refusal(f"the copy ends: {error}", 0))
        finally:
            self._beating.cancel()
            self._on_end(self)

    async def _send_round(self, number: int) -> bool:
        """Whether it was the last one."""
        source = await CopySource.fix(self._log)
        try:
            head = await source.head()
            progress = self.progress
            progress.round, progress.done, progress.size = number, 0, await source.size()
            logger.info(
                "copies to a follower", follower=self.ask.caller.node, round=number, sequence=head.sequence,
                bytes=progress.size,
            )  # fmt: skip
            self._send(Round(number, head, progress.size, self._rate))
            while (found := await source.next()) is not None:
                partition, copied = found
                if copied is not None:
                    await self._limit.take(sum(digest_cost(each.size) for each in copied.files))
                if copied is None or not await self._send_partition(partition, copied):
                    await self._all_written()
                    self._send(Gone(partition.topic.id.hex))
                    await self._wait(Done)
                source.sent(partition)
                progress.done += 0 if copied is None else copied.size
        finally:
            source.close()
        frames = self._log.frames
        if not frames.hold(head.sequence + 1):
            self._send(RoundEnd(is_last=False))
            await self._wait(Done)
            return False
        try:
            self._send(RoundEnd(is_last=True))
            await self._wait(Done)
            # The follower closes the connection of the copy when its session is open.
            await asyncio.sleep(GRACE_S)
        finally:
            frames.release(head.sequence + 1)
        return True

    async def _send_partition(self, partition: NativePartition, copied: CopiedPartition) -> bool:
        """Whether it is still there."""
        self._send(Part(copied))
        want = await self._wait(Want)
        sizes = {each.name: each for each in copied.files}
        for each in want.files:
            if each.name not in sizes or not 0 <= each.have <= sizes[each.name].size:
                raise PeerProtocolError(f"a follower wants {each.name!r} of {partition.folder}, which was not offered")
            try:
                await self._send_file(partition, sizes[each.name], each)
            except FileNotFoundError:
                if partition.topic.deleted:
                    return False
                raise
        await self._all_written()
        self._send(PartEnd())
        await self._wait(Done)
        return True

    async def _send_file(self, partition: NativePartition, copied: CopiedFile, want: WantedFile) -> None:
        offload = self._log.runtime.offload
        path = f"{partition.folder}/{copied.name}"
        with closing(await offload.run(_open, self._log.runtime.disk, path)) as file:
            position = 0
            if want.have:
                await self._limit.take(digest_cost(want.have))
                if await offload.run(digest_of, file, want.have) == want.digest:
                    position = want.have
            self._send(FileBegin(copied.name, position, copied.size))
            while position < copied.size:
                length = min(PIECE_BYTES, copied.size - position)
                await self._limit.take(length)
                data = await offload.run(file.read, position, length)
                if len(data) != length:
                    raise CorruptLog(f"{path} has fewer bytes than {copied.size}")
                while self._under_way >= WINDOW:
                    await self._written()
                self._send(Data(data))
                self._under_way += 1
                position += length
                self.progress.sent += length
                self.progress.rate = self.progress.sent / max(self._loop.time() - self._began_at, 1e-3)

    async def _written(self) -> None:
        await self._wait(Done)
        self._under_way -= 1

    async def _all_written(self) -> None:
        while self._under_way:
            await self._written()

    async def _wait(self, kind: type[M]) -> M:
        answer = await self._answers.get()
        if not isinstance(answer, kind):
            raise PeerProtocolError(f"a follower answers {type(answer).__name__}, not {kind.__name__}")
        return answer


def _open(disk: Disk, path: str) -> File:
    return disk.open(path)
