"""The follower's side of a copy: ask the leader, store what it sends, and say what is there already."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

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
from headrace.cluster.json_messages import PeerProtocolError
from headrace.cluster.peer_network import PeerNetwork
from headrace.cluster.wire import Copy, Message, Refusal
from headrace.errors import HeadraceError
from headrace.log.copy.parts import CopiedPartition
from headrace.log.copy.source import CopyFailed
from headrace.log.copy.target import CopyTarget
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.cluster")

T = TypeVar("T")


@dataclass(slots=True)
class ReceiverProgress:
    """How far a node is with its copy."""

    round: int = 0
    done: int = 0
    """Bytes of this round that it has."""
    size: int = 0
    """About how many bytes the round has."""
    received: int = 0
    """Bytes that were sent, in all rounds and attempts."""


class CopyReceiver:
    """One attempt."""

    def __init__(
        self,
        runtime: Runtime,
        network: PeerNetwork,
        frame_max_bytes: int,
        progress: ReceiverProgress,
        on_epoch: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_epoch`: called with the latest epoch that the other node knows of, when it refuses."""
        self._offload = runtime.offload
        self._network = network
        self._target = CopyTarget(runtime.disk)
        self._on_epoch = on_epoch
        self._connection = PeerConnection(self, frame_max_bytes)
        self._messages: asyncio.Queue[CopyMessage | HeadraceError] = asyncio.Queue()
        self._progress = progress
        self._beating: asyncio.Task[None] | None = None

    # --- the connection ---

    def on_message(self, connection: PeerConnection, message: Message) -> None:
        """The leader has said something."""
        if isinstance(message, Copy):
            try:
                decoded = decode(message.body)
                if not isinstance(decoded, Alive):
                    self._messages.put_nowait(decoded)
            except PeerProtocolError as error:
                self._messages.put_nowait(error)
        elif isinstance(message, Refusal):
            self._on_epoch(message.epoch)
            self._messages.put_nowait(CopyFailed(f"the leader refuses it: {message.reason}"))

    def on_closed(self, connection: PeerConnection) -> None:
        """The leader is gone."""
        self._messages.put_nowait(CopyFailed("the connection is closed"))

    def on_drained(self, connection: PeerConnection) -> None:
        """A follower has little to say."""

    def close(self) -> None:
        """The leader need not keep anything for this node any more."""
        self._connection.close()
        if self._beating is not None:
            self._beating.cancel()

    def _send(self, message: CopyMessage) -> None:
        self._connection.send(Copy(encode(message)))

    async def _next(self) -> CopyMessage:
        message = await self._messages.get()
        if isinstance(message, HeadraceError):
            raise message
        return message

    # --- the copy ---

    async def run(self, address: tuple[str, int], ask: Ask, cluster_id: str) -> None:
        """Copy, and leave the data directory as one that is whole, of the log's `cluster_id`; the mark of the copy is
        the caller's to take away.
        The connection stays open until `close`. Raises CopyFailed, PeerProtocolError, OSError."""
        await self._network.connect(self._connection, address)
        self._beating = asyncio.get_running_loop().create_task(beat(self._connection, self._on_silent))
        self._send(ask)
        try:
            while not await self._receive_round(cluster_id):
                pass
        finally:
            self._target.close()

    def _on_silent(self) -> None:
        self._messages.put_nowait(CopyFailed("the leader has been silent for too long"))

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        running = self._offload.run(partial(function, *args))
        try:
            return await asyncio.shield(running)
        finally:
            # It cannot be called back, and another attempt must not meet it.
            await asyncio.wait([running])

    async def _receive_round(self, cluster_id: str) -> bool:
        """Whether it was the last one."""
        begin = await self._next()
        if not isinstance(begin, Round):
            raise PeerProtocolError(f"the leader begins a copy with a {type(begin).__name__}")
        target, progress = self._target, self._progress
        progress.round, progress.done, progress.size = begin.number, 0, begin.size
        await self._run(target.begin, begin.head)
        logger.info("copies", round=begin.number, sequence=begin.head.sequence, bytes=begin.size, rate=begin.rate)
        partitions: list[CopiedPartition] = []
        gone: set[str] = set()
        current: CopiedPartition | None = None
        while True:
            message = await self._next()
            match message:
                case Part():
                    current = message.partition
                    self._send(Want(tuple(await self._run(target.compare, current))))
                case FileBegin() if current is not None:
                    await self._receive_file(current, message)
                case PartEnd() if current is not None:
                    await self._run(target.finish, current)
                    partitions.append(current)
                    progress.done += current.size
                    current = None
                    self._send(Done())
                case Gone():
                    gone.add(message.topic)
                    current = None
                    self._send(Done())
                case RoundEnd() if current is None:
                    break
                case _:
                    raise PeerProtocolError(f"the leader sent a {type(message).__name__} that does not belong there")
        if message.is_last:
            head = replace(begin.head, topics=tuple(each for each in begin.head.topics if each["id"] not in gone))
            await self._run(target.install, head, partitions, cluster_id)
        self._send(Done())
        return message.is_last

    async def _receive_file(self, partition: CopiedPartition, begin: FileBegin) -> None:
        target, position = self._target, begin.position
        if begin.name not in {each.name for each in partition.files}:
            raise PeerProtocolError(f"the leader sends {begin.name!r}, which it did not offer")
        await self._run(target.begin_file, partition, begin.name, position)
        while position < begin.size:
            message = await self._next()
            if not isinstance(message, Data):
                raise PeerProtocolError(f"the leader sent a {type(message).__name__} in the middle of a file")
            await self._run(target.write, message.data)
            position += len(message.data)
            self._progress.received += len(message.data)
            self._send(Done())
        await self._run(target.end_file)
