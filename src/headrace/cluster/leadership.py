"""Leading a group: one leadership, from the begin frame to its end.

Each frame goes to this node's device and to all sessions at the same time. A session that keeps up is sent frames as
they are made; one that is behind, or whose connection is full, is sent what the journal still has, piece by piece,
until it keeps up again. What is committed follows from what replicas acknowledge (`commitment.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from headrace.cluster.commitment import Commitment
from headrace.cluster.connection import PeerConnection
from headrace.cluster.maximal_isr import MaximalIsr
from headrace.cluster.records import Incarnation
from headrace.cluster.wire import Acknowledgement, Frame, Heartbeat, Hello, Message, Refusal, Welcome
from headrace.errors import NotLeading, TransferFailed
from headrace.log.replicated_journal import FramesGone, ReplicatedJournal
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.cluster")

# How exactly the age of a frame is known.
AGE_STEP_S = 0.05


@dataclass(slots=True, eq=False)
class Session:
    """A follower, as its leader sees it."""

    follower: Incarnation
    connection: PeerConnection
    sent: int
    """The last frame that it was sent."""
    version: int
    """Of the protocol, that both speak."""
    is_aligned: bool = False
    """Whether it has cut off what the leader does not have: it says so by its first acknowledgement."""
    catching_up: asyncio.Task[None] | None = None
    answers: int = 0
    """How often it has acknowledged: each heartbeat too."""
    applied: int | None = None
    """The last frame that its partitions have, if it says so."""
    ahead_ms: int = 0
    """By how much its calendar is ahead of the leader's."""


class Leadership:
    """What a leader does for as long as it is one."""

    def __init__(
        self,
        runtime: Runtime,
        journal: ReplicatedJournal,
        me: str,
        epoch: int,
        min_isr: int,
        isr: MaximalIsr,
        on_committed: Callable[[int], None],
        is_doubtful: Callable[[], bool] = lambda: False,
    ) -> None:
        """While `is_doubtful`, nothing is appended and nothing committed: another may lead."""
        self._runtime = runtime
        self._journal = journal
        self._me = me
        self.epoch = epoch
        self._on_committed = on_committed
        self._is_doubtful = is_doubtful
        self._sessions: dict[str, Session] = {}
        self._loop = asyncio.get_running_loop()
        self.is_over = False
        """Nothing is sent, committed or acknowledged in it any more."""
        # Sequences and when they were appended, a step of time apart.
        self._ages: deque[tuple[int, float]] = deque()
        # Since when an in-sync replica has had no session.
        self._absent_since: dict[str, float] = {}
        self._etcd_ms = 0
        self._began_at = self._loop.time()
        # Those who wait for replicas to get on.
        self._waiters: list[asyncio.Future[None]] = []
        self.begin = journal.last.sequence + 1
        self.commitment = Commitment(me, self.begin, min_isr, isr)
        self.append(b"", 0, begin=True)

    @property
    def serves(self) -> bool:
        """Whether the begin frame is committed, and with it everything before it."""
        return self._journal.committed >= self.begin and not self.is_over

    # --- the journal ---

    def append(self, payload: bytes, entries: int, *, begin: bool = False) -> int:
        """The next frame; its sequence. Raises NotLeading, CorruptLog."""
        if self._is_doubtful():
            raise NotLeading("this node did not run for a while, and another may lead")
        data = self._journal.append(self.epoch, payload, entries, begin=begin)
        sequence, now = self._journal.last.sequence, self._loop.time()
        if not self._ages or now - self._ages[-1][1] >= AGE_STEP_S:
            self._ages.append((sequence, now))
        for session in self._sessions.values():
            if session.is_aligned and session.sent == sequence - 1 and session.catching_up is None:
                if session.connection.is_full:
                    self._catch_up(session)
                else:
                    session.sent = sequence
                    session.connection.send(Frame(data))
        return sequence

    def advance(self) -> None:
        """Commit what can be committed by now."""
        reach = self.commitment.reach(self._journal.flushed)
        if reach > self._journal.committed and not self.is_over and not self._is_doubtful():
            self._journal.commit(reach)
            self._on_committed(reach)
            self._wake_waiters()

    # --- replicas ---

    def acknowledged(self, replica: str) -> int:
        """Up to where a replica has said in this leadership that it has the journal."""
        return self.commitment.acknowledged(replica)

    def follower(self, replica: str) -> Incarnation | None:
        """The follower that has a session with that directory."""
        session = self._sessions.get(replica)
        return None if session is None else session.follower

    def answers(self, replica: str) -> int:
        """How often a replica has acknowledged in its session."""
        session = self._sessions.get(replica)
        return 0 if session is None else session.answers

    def applied(self, replica: str) -> int | None:
        """The last frame that a replica's partitions have, if it says so."""
        session = self._sessions.get(replica)
        return None if session is None else session.applied

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds that acknowledgements and commits bring about. Raises TransferFailed where the
        leadership ends before."""
        while not condition():
            if self.is_over:
                raise TransferFailed("this node leads no more")
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- sessions ---

    def open_session(self, connection: PeerConnection, hello: Hello, version: int) -> None:
        """A follower has connected, and is spoken to in this version of the protocol."""
        caller = hello.caller
        old = self._sessions.pop(caller.directory, None)
        if old is not None:
            self._end(old)
        common = self._journal.common_end(hello.ends)
        if common + 1 < self._journal.first:
            reason = f"the journal begins at frame {self._journal.first}: copy first"
            connection.close(Refusal(reason, self.epoch, must_copy=True))
            return
        follower = Incarnation(caller.node, caller.directory, caller.starts)
        self._sessions[caller.directory] = Session(follower, connection, common, version)
        self._absent_since.pop(caller.directory, None)
        connection.send(Welcome(self.epoch, common, version))

    def on_message(self, connection: PeerConnection, message: Message) -> None:
        """A follower has said something."""
        session = next((each for each in self._sessions.values() if each.connection is connection), None)
        if session is None or not isinstance(message, Acknowledgement):
            return
        if message.flushed > session.sent:
            logger.warning("a follower acknowledges what it was not sent", follower=session.follower.node)
            self.on_closed(connection)
            return
        session.answers += 1
        session.applied = message.applied
        session.ahead_ms = message.time_ms - self._runtime.clock.now_ms()
        self.commitment.acknowledge(session.follower.directory_id, message.flushed)
        self.advance()
        self._wake_waiters()
        if not session.is_aligned:
            session.is_aligned = True
            self._catch_up(session)

    def on_closed(self, connection: PeerConnection) -> None:
        """A follower's connection is gone."""
        for session in list(self._sessions.values()):
            if session.connection is connection:
                del self._sessions[session.follower.directory_id]
                self._end(session)

    def on_drained(self, connection: PeerConnection) -> None:
        """A follower's connection takes more again."""
        for session in self._sessions.values():
            if session.connection is connection and session.sent < self._journal.last.sequence:
                self._catch_up(session)

    def _end(self, session: Session) -> None:
        session.connection.close()
        if session.catching_up is not None:
            session.catching_up.cancel()
        self.commitment.forget(session.follower.directory_id)
        self._absent_since[session.follower.directory_id] = self._loop.time()

    def _catch_up(self, session: Session) -> None:
        if session.catching_up is None and not session.connection.is_full:
            session.catching_up = self._loop.create_task(self._send_rest(session))

    async def _send_rest(self, session: Session) -> None:
        """Send what a follower lacks, until it keeps up or its connection is full."""
        connection = session.connection
        try:
            while session.sent < self._journal.last.sequence and connection.is_open and not connection.is_full:
                frames = self._journal.newest(session.sent + 1)
                if frames is None:
                    frames = await self._journal.read(session.sent + 1)
                for data in frames:
                    session.sent += 1
                    connection.send(Frame(data))
                await asyncio.sleep(0)
        except (FramesGone, OSError) as error:
            logger.warning("a follower fell behind the journal", follower=session.follower.node, error=str(error))
            self.on_closed(connection)
        finally:
            session.catching_up = None

    # --- time ---

    def beat(self, etcd_ms: int) -> None:
        """Let followers know how far the journal is committed, and how this node is."""
        self._etcd_ms = etcd_ms
        self.tell_committed()
        lowest = min((self.commitment.acknowledged(each) for each in self._sessions), default=self._journal.flushed)
        while len(self._ages) > 1 and self._ages[1][0] <= lowest:
            self._ages.popleft()

    def tell_committed(self) -> None:
        """Send a heartbeat to everyone, at once."""
        flush_ms = int(self.age_of(self._journal.flushed + 1) * 1000)
        for session in self._sessions.values():
            if not session.is_aligned:
                continue
            now_ms = self._runtime.clock.now_ms()
            session.connection.send(Heartbeat(self._journal.committed, self._etcd_ms, flush_ms, now_ms))

    def age_of(self, sequence: int) -> float:
        """How long ago a frame was appended, in seconds; 0 if it was not."""
        if sequence > self._journal.last.sequence:
            return 0.0
        appended = next((at for number, at in reversed(self._ages) if number <= sequence), self._began_at)
        return self._loop.time() - appended

    def lag_of(self, replica: str) -> float:
        """For how long a replica has lacked something, in seconds."""
        if replica == self._me:
            return 0.0
        if replica not in self._sessions:
            return self._loop.time() - max(self._absent_since.get(replica, self._began_at), self._began_at)
        return self.age_of(self.commitment.acknowledged(replica) + 1)

    def lagging(self, max_lag_s: float) -> frozenset[str]:
        """In-sync replicas that are to be removed."""
        return frozenset(each for each in self.commitment.isr.confirmed if self.lag_of(each) > max_lag_s)

    def caught_up(self, within_s: float, may_join: Callable[[str], bool]) -> Incarnation | None:
        """A replica that is not in sync by etcd's record and could be: it has the begin frame, and all that is
        committed, and was heard within that time. One without power leaves its session open."""
        enough, now = max(self.begin, self._journal.committed), self._loop.time()
        for directory, session in self._sessions.items():
            is_outside = directory not in self.commitment.isr.members
            is_heard = now - session.connection.heard_at < within_s
            if is_outside and is_heard and self.commitment.acknowledged(directory) >= enough and may_join(directory):
                return session.follower
        return None

    @property
    def silent_s(self) -> float:
        """Since any follower was last heard."""
        heard = max((each.connection.heard_at for each in self._sessions.values()), default=self._began_at)
        return self._loop.time() - max(heard, self._began_at)

    @property
    def has_peers(self) -> bool:
        """Whether another replica is in sync, and could lead."""
        return bool(self.commitment.isr.members - {self._me})

    @property
    def clock_differs_ms(self) -> int:
        """How far this node's calendar is from the nearest of its followers'; 0 without any."""
        return min((abs(each.ahead_ms) for each in self._sessions.values() if each.answers), default=0)

    def end(self) -> None:
        """The leadership is over: nothing more is sent, committed or acknowledged in it."""
        self.is_over = True
        for session in self._sessions.values():
            self._end(session)
        self._sessions.clear()
        self._wake_waiters()
