"""Following a leader: one session, from the connection to its end.

The follower says what it has, cuts off what the leader does not have, stores what it is sent, and acknowledges what its
device has. It applies frames once the leader says that they are committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

import structlog

from headrace.cluster.connection import PeerConnection
from headrace.cluster.peer_network import PeerNetwork
from headrace.cluster.records import Incarnation
from headrace.cluster.versions import APPLIED
from headrace.cluster.wire import Acknowledgement, Frame, Heartbeat, Hello, Message, Refusal, Welcome
from headrace.errors import CorruptLog
from headrace.log.group_frames import header_of, version_of
from headrace.log.replicated_journal import ReplicatedJournal
from headrace.runtime.clock import Clock

logger = structlog.get_logger("headrace.cluster")

# Longer than any round trip: a machine that does not answer may have another address by the next attempt.
CONNECT_S = 3.0


class Link(Enum):
    """How a follower stands with its leader."""

    CONNECTING = "connecting"
    OPEN = "open"
    REFUSED = "refused"
    """Nothing listens at the leader's address: its process is gone."""
    CLOSED = "closed"


class Following:
    """A session with a leader."""

    def __init__(
        self,
        network: PeerNetwork,
        journal: ReplicatedJournal,
        clock: Clock,
        hello: Hello,
        leader: Incarnation,
        address: tuple[str, int],
        frame_max_bytes: int,
        level: int,
        on_committed: Callable[[int], None],
        on_newer_epoch: Callable[[int], None],
        on_lost: Callable[[], None],
        on_must_copy: Callable[[str], None],
    ) -> None:
        """`level` is the highest feature level that this node knows."""
        self._network = network
        self._level = level
        # Of the protocol, once the leader has said which.
        self._version = 0
        self._journal = journal
        self._clock = clock
        self.leader = leader
        self._on_lost = on_lost
        self._on_must_copy = on_must_copy
        self._hello = hello
        self._address = address
        self._on_committed = on_committed
        self._on_newer_epoch = on_newer_epoch
        self._connection = PeerConnection(self, frame_max_bytes)
        self._aligned = False
        self._aligning: asyncio.Task[None] | None = None
        self.epoch = hello.caller.epoch
        self.link = Link.CONNECTING
        self.heartbeat: Heartbeat | None = None
        """The leader's last one."""
        self._waits_since = loop_time()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._network.connect(self._connection, self._address)
        except ConnectionRefusedError:
            if self.link is Link.CONNECTING:
                self.link = Link.REFUSED
                self._on_lost()
        except OSError as error:
            logger.debug("the leader cannot be reached", address=self._address, error=str(error))
            self.link = Link.CLOSED
        else:
            if self.link is Link.CLOSED:
                self._connection.close()
            else:
                self.link = Link.OPEN
                self._connection.send(self._hello)

    @property
    def is_open(self) -> bool:
        """Whether leader and follower have agreed on what both have."""
        return self._aligned

    @property
    def heard_at(self) -> float:
        """The loop's time at which the leader was last heard; 0 if it never was."""
        return self._connection.heard_at

    @property
    def stalled_s(self) -> float:
        """For how long nothing has been committed, though this node has frames that wait for it."""
        return loop_time() - self._waits_since

    def on_message(self, connection: PeerConnection, message: Message) -> None:
        match message:
            case Welcome():
                if message.epoch < self.epoch:
                    self.close()
                    return
                self.epoch, self._version = message.epoch, message.version
                self._aligning = asyncio.get_running_loop().create_task(self._align(message.common_end))
            case Frame() if self._aligned:
                self._store(message.data)
            case Heartbeat() if self._aligned:
                self.heartbeat = message
                if message.committed >= self._journal.last.sequence:
                    self._waits_since = loop_time()
                self._commit(message.committed)
                # Also what keeps the leader from taking this node for silent.
                self._acknowledge()
            case Refusal():
                if count := self._network.due(message.reason):
                    logger.info("the leader refuses this node", reason=message.reason, count=count)
                self.close()
                self._on_newer_epoch(message.epoch)
                if message.must_copy:
                    self._on_must_copy(message.reason)
            case _:
                logger.warning("the leader sent what does not belong here", message=type(message).__name__)
                self.close()

    async def _align(self, common_end: int) -> None:
        if common_end < self._journal.committed:
            logger.error("the leader lacks what was committed here", here=self._journal.committed, common=common_end)
            self.close()
            self._on_must_copy(f"the leader lacks what was committed here behind frame {common_end}")
            return
        await self._journal.truncate(common_end)
        if self._journal.last.sequence < common_end:
            # A write had failed, and with it went what this node said that it has: say anew what there is.
            self.close()
            self._on_lost()
            return
        if self.link is Link.OPEN:
            self._aligned = True
            self._acknowledge()

    def _store(self, data: bytes) -> None:
        head = header_of(data)
        if head is not None and head.epoch > self.epoch:
            logger.warning("the leader sent a frame of a later epoch than its own", epoch=head.epoch, own=self.epoch)
            self.close()
            return
        if version_of(data) > self._level:
            logger.error("the leader sent a frame of a later feature level. Use a newer Headrace.", own=self._level)
            self.close()
            return
        try:
            frame = self._journal.store(data)
        except CorruptLog as error:
            logger.warning("the session with the leader ends", error=str(error))
            self.close()
            return
        self._commit(frame.committed)

    def _commit(self, sequence: int) -> None:
        # What is not on this device yet is applied with the next word from the leader.
        reach = min(sequence, self._journal.flushed)
        if reach > self._journal.committed:
            self._journal.commit(reach)
            self._waits_since = loop_time()
            self._on_committed(reach)

    def on_flushed(self) -> None:
        """This node's device has more of the journal."""
        if self._aligned:
            self._acknowledge()

    def _acknowledge(self) -> None:
        applied = self._journal.applied if self._version >= APPLIED else None
        self._connection.send(Acknowledgement(self._journal.flushed, self._clock.now_ms(), applied))

    def on_closed(self, connection: PeerConnection) -> None:
        self._aligned = False
        self.link = Link.CLOSED
        self._on_lost()

    def on_drained(self, connection: PeerConnection) -> None:
        """A follower has little to say."""

    def close(self) -> None:
        """End the session."""
        self.link = Link.CLOSED
        self._aligned = False
        self._connection.close()
        if self._aligning is not None:
            self._aligning.cancel()


def loop_time() -> float:
    return asyncio.get_running_loop().time()
