"""A node of a group: it follows, stands and leads, as etcd and its peers let it.

What etcd has (`metadata.py`) and what peers do is looked at again and again, and acted on each time as if it were new:
whether the last swap arrived, whether this node leads, whether another does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from headrace.cluster import changes
from headrace.cluster.admission import Admissions
from headrace.cluster.connection import PeerConnection
from headrace.cluster.copying.messages import Ask
from headrace.cluster.election import Prospect, should_stand
from headrace.cluster.errors import ChangeRefused
from headrace.cluster.etcd import Etcd
from headrace.cluster.figures import Figures
from headrace.cluster.following import Following, Link
from headrace.cluster.leadership import Leadership
from headrace.cluster.maximal_isr import MaximalIsr
from headrace.cluster.metadata import Metadata
from headrace.cluster.peer_network import PeerNetwork
from headrace.cluster.peer_tls import PeerTls
from headrace.cluster.presence import LEASE_SECONDS, Presence
from headrace.cluster.records import Group, Incarnation, Keys
from headrace.cluster.records import Node as NodeRecord
from headrace.cluster.removal import may_join, next_removal
from headrace.cluster.seen import Seen
from headrace.cluster.transfers import Transfers
from headrace.cluster.vigil import Vigil
from headrace.cluster.wire import VERSION, Copy, Hello, Message, Refusal
from headrace.errors import NotLeading
from headrace.log.replicated_journal import ReplicatedJournal
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.cluster")

# Between two attempts to open a session.
FOLLOW_PAUSE_S = 0.1
# After a write of the journal failed: before it is tried again.
RECOVERY_S = 1.0
# Between the calendars of leader and followers: beyond it nothing expires.
CLOCK_MAX_MS = 10_000
# What a stop takes at most to leave the group in good order.
RETIRE_S = 5.0
RETIRE_STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Who a node is, and how long it waits."""

    cluster_id: str
    keys: Keys
    group: str
    me: Incarnation
    lease_s: int = LEASE_SECONDS
    journal_file_bytes: int = 64 << 20
    journal_max_bytes: int = 1 << 30
    """Of files that recovery no longer needs, as many are kept for followers that are behind."""
    copy_bytes_per_second: int = 50 << 20
    """What all copies to other nodes may take together."""
    journal_memory_bytes: int = 8 << 20
    frame_max_bytes: int = 64 << 20
    preferred_after_s: float = 60.0
    """For how long a preferred leader could lead before it asks to; 0: it never asks."""
    admission_max_s: float = 60.0
    """The longest time that a follower that lags again and again stays out of the ISR."""
    tls: PeerTls | None = None
    """For connections with the other nodes."""


class Node:
    """One replica."""

    def __init__(
        self,
        runtime: Runtime,
        etcd: Etcd,
        settings: NodeSettings,
        on_committed: Callable[[int], None],
        on_deposed: Callable[[str], None] = lambda _: None,
        on_isr: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`on_committed` is called with each new end of what is committed, `on_deposed` with the reason for which this
        node leads no more, before anything else happens, and `on_isr`, while it leads, with whether enough replicas
        are in sync."""
        self._runtime = runtime
        self._etcd = etcd
        self._settings = settings
        self._me = self.me = settings.me.directory_id
        """Its data directory."""
        self._on_applied = on_committed
        self._on_deposed = on_deposed
        self._on_isr = on_isr
        self.on_change: Callable[[], None] = lambda: None
        """Called when anything may have changed of what the group's members show."""
        self.journal = ReplicatedJournal(
            runtime,
            settings.group,
            settings.journal_file_bytes,
            settings.journal_memory_bytes,
            self._on_flushed,
            self._on_journal_failed,
            settings.journal_max_bytes,
        )
        self.metadata = Metadata(etcd, settings.keys, settings.group, settings.lease_s, self._on_group, self._on_read)
        self.is_copying = False
        """What this node has is no whole copy: it neither stands nor follows."""
        self.serve_copy: Callable[[PeerConnection, Copy], None] = lambda connection, _: connection.close()
        """Called with the first message of a connection on which a follower asks for a copy."""
        self.on_must_copy: Callable[[str], None] = lambda _: None
        """Called with the reason for which this node cannot follow from its journal."""
        self.on_removed: Callable[[str], None] = lambda _: None
        """Called, again and again, while this node is no replica of its group any more."""
        self.epoch = 0
        """The latest that this node knows of."""
        # The last epoch that it has led in.
        self._led = 0
        self.leadership: Leadership | None = None
        self.following: Following | None = None
        self.transfers = Transfers(
            self.metadata, self.journal, settings.me, settings.preferred_after_s, lambda: self.leadership
        )
        self.figures = Figures()
        self.network = PeerNetwork(settings.tls, self.figures)
        self._vigil = Vigil(runtime.clock, settings.lease_s)
        self._seen = Seen(runtime)
        self.trusts_clock = True
        """While it leads: whether its calendar is near that of any follower."""
        self._admissions = Admissions(settings.admission_max_s)
        self._presence: Presence | None = None
        self._followed_at = 0.0
        # Until when a node whose journal could not be written does nothing.
        self._unfit_until = 0.0
        self._retiring = False
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stopped = False

    # --- life ---

    async def listen(self, host: str, port: int) -> str:
        """Open the door for other nodes; HOST:PORT of it. The journal must be open. Raises OSError."""
        self.epoch = self.journal.last.epoch
        return await self.network.listen(self._accept, host, port)

    async def join(self, record: NodeRecord) -> None:
        """Begin to take part. `record` is what the node says of itself in etcd."""
        settings = self._settings
        key = settings.keys.node(settings.me.node)
        self._presence = Presence(self._etcd, key, record, settings.lease_s)
        self._presence.start()
        self.metadata.start()
        self._spawn(self._work())
        self._spawn(self._beat())

    async def retire(self) -> None:
        """Leave the group in good order, before a stop: a leader hands over, or resigns, and a follower leaves the
        ISR. What cannot be done in time is left to the others."""
        self._retiring = True
        try:
            async with asyncio.timeout(RETIRE_S):
                await self._retire()
        except TimeoutError:
            logger.warning("the node stops without having left its group", seconds=RETIRE_S)
        self._step_down("the node stops")

    async def _retire(self) -> None:
        group = self.group
        if group is None:
            return
        if self.leadership is not None:
            last = self.journal.last.sequence
            await self.transfers.hand_over_and_stop(group)
            if self.leadership is not None:
                self._step_down("the node stops")
                await self._resign(stays=True)
                return
            # It is left with what it has once it has shown that it leads.
            while self.following is None or (beat := self.following.heartbeat) is None or beat.committed <= last:
                if self.group is not None and self.group.leader not in (None, self._settings.me):
                    self._follow(self.group)
                await asyncio.sleep(RETIRE_STEP_S)
        if self.following is not None:
            self.following.close()
        await self._resign()
        with suppress(ChangeRefused):
            await self.metadata.change(lambda group: changes.leave_isr(group, self._settings.me))

    async def stop(self) -> None:
        """Take no part any more; the group's record is left as it is."""
        self._stopped = True
        self._step_down("the node stops")
        if self.following is not None:
            self.following.close()
        self.network.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.transfers.stop()
        await self._seen.stop()
        if self._presence is not None:
            await self.metadata.stop()
            await self._presence.stop()
        await self._etcd.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what it is ---

    @property
    def group(self) -> Group | None:
        """The group's record, as etcd last had it."""
        return self.metadata.group

    @property
    def alive(self) -> dict[str, NodeRecord]:
        """The nodes of the group that live, by their directory ids."""
        return self.metadata.alive

    @property
    def numbers(self) -> dict[str, int]:
        """The nodes that have, or had last, these data directories."""
        return self.metadata.numbers

    @property
    def reaches_etcd(self) -> bool:
        """Whether etcd could be read within the last lease."""
        return self.metadata.is_reached

    @property
    def serves(self) -> bool:
        """Whether this node leads, and everything before its leadership is committed."""
        return self.leadership is not None and self.leadership.serves

    # --- the log ---

    def append(self, payload: bytes, entries: int) -> asyncio.Future[int]:
        """Add to the group's journal; the future has the sequence once that is committed. Raises NotLeading, and so
        does the future: what became of it is then the next leader's to decide."""
        if self.leadership is None or not self.leadership.serves:
            raise NotLeading("this node does not lead its group")
        sequence = self.leadership.append(payload, entries)
        future: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append((sequence, future))
        return future

    def _on_flushed(self, _: int) -> None:
        if self.leadership is not None:
            self.leadership.advance()
        elif self.following is not None:
            self.following.on_flushed()

    def _on_committed(self, sequence: int) -> None:
        self._on_applied(sequence)
        while self._waiting and self._waiting[0][0] <= sequence:
            number, future = self._waiting.popleft()
            if not future.done():
                future.set_result(number)

    def _on_journal_failed(self, error: BaseException) -> None:
        logger.error("the journal could not be written", error=str(error))
        self._unfit_until = self._loop.time() + RECOVERY_S
        if self.leadership is not None:
            self.give_up("its journal could not be written")
        elif self.following is not None:
            self.following.close()

    def give_up(self, reason: str) -> None:
        """Lead no more, and let others: this node cannot do a leader's work."""
        if self.leadership is not None:
            self._step_down(reason)
            self._spawn(self._resign())

    @property
    def _is_unfit(self) -> bool:
        """Whether this node's device keeps it from any work."""
        return self._loop.time() < self._unfit_until or self.journal.stalled_s > self._settings.lease_s

    # --- peers ---

    def _accept(self) -> PeerConnection:
        return PeerConnection(self, self._settings.frame_max_bytes)

    def on_message(self, connection: PeerConnection, message: Message) -> None:
        """A peer that has connected here has said something."""
        if isinstance(message, Copy):
            self.serve_copy(connection, message)
            return
        if not isinstance(message, Hello):
            if self.leadership is not None:
                self.leadership.on_message(connection, message)
            return
        refusal = self.refusal(message, connection)
        if refusal is not None or self.leadership is None:
            connection.close(Refusal(refusal or "this node does not lead its group", self.epoch))
        else:
            self.leadership.open_session(connection, message)

    def refusal(self, hello: Hello | Ask, connection: PeerConnection) -> str | None:
        """Why a peer is not answered, if it is not."""
        settings = self._settings
        record = self.alive.get(hello.directory)
        refusal = self.network.refusal(connection, hello.node, None if record is None else record.peer)
        if refusal is not None:
            return refusal
        if hello.version != VERSION:
            return f"this node speaks version {VERSION} of the peer protocol, not {hello.version}"
        if (hello.cluster, hello.group) != (settings.cluster_id, settings.group):
            return f"this node belongs to group {settings.group!r} of cluster {settings.cluster_id}"
        if hello.epoch > self.epoch or (self.leadership is not None and hello.epoch > self.leadership.epoch):
            self.learn_epoch(hello.epoch)
            return f"epoch {hello.epoch} is later than this node's"
        return None

    def on_closed(self, connection: PeerConnection) -> None:
        """A peer that had connected here is gone."""
        if self.leadership is not None:
            self.leadership.on_closed(connection)

    def on_drained(self, connection: PeerConnection) -> None:
        """A peer that had connected here reads again."""
        if self.leadership is not None:
            self.leadership.on_drained(connection)

    def learn_epoch(self, epoch: int) -> None:
        """A peer knows of a later epoch than this node."""
        if epoch > self.epoch:
            self.epoch = epoch
            if self.leadership is not None and epoch > self.leadership.epoch:
                self._step_down(f"epoch {epoch} has begun")
            self.metadata.hurry()
            self._wake.set()

    # --- etcd ---

    def _on_read(self) -> None:
        self._wake.set()
        self.on_change()

    def _on_group(self) -> None:
        """The group's record is another one, or was read again."""
        group = self.group
        assert group is not None
        self.epoch = max(self.epoch, group.epoch)
        self._seen.note(group)
        leadership = self.leadership
        if leadership is None:
            return
        if group.epoch != leadership.epoch or group.leader != self._settings.me:
            self._step_down(f"epoch {group.epoch} has begun")
        else:
            leadership.commitment.min_isr = group.min_isr
            self._on_isr(leadership.commitment.has_enough)
            leadership.advance()
        self.on_change()

    async def _work(self) -> None:
        """Act on what etcd has and on what peers do, whenever one of them changes, and now and then."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.lease_s / 8):
                    await self._wake.wait()
            self._wake.clear()
            if self.group is None:
                continue
            try:
                await self._act(self.group)
            except ChangeRefused as error:
                logger.debug("the group's record has changed meanwhile", reason=str(error))
            except Exception as error:
                # A fault in here must be heard, and must not leave a node that does nothing for ever.
                what = {"message": "a node could not act on its group's record", "exception": error}
                self._loop.call_exception_handler(what)

    async def _act(self, group: Group) -> None:
        """Do what follows from the group's record and the peers."""
        if self._stopped or self._retiring or self.metadata.is_changing:
            return
        if self._settings.me.node not in group.replicas:
            self._leave()
        elif self.leadership is not None:
            await self._lead_on(self.leadership, group)
        elif self._is_unfit:
            await self._resign()
        elif self.is_copying:
            return
        elif group.leader == self._settings.me and group.epoch > max(self._led, self.journal.last.epoch):
            # It was handed over to, or the answer to the swap that made it leader was lost.
            await self._lead(group)
        elif self._may_begin(group) or should_stand(self._prospect(group)):
            await self._stand(group)
        elif group.leader is not None and group.leader != self._settings.me:
            self._follow(group)
            await self.transfers.ask(group)

    def _leave(self) -> None:
        """This node was removed."""
        if self.following is not None:
            self.following.close()
            self.following = None
        me, group = self._settings.me, self._settings.group
        self.on_removed(f"node {me.node} was removed from group {group!r} (headrace cluster remove-node)")

    def _may_begin(self, group: Group) -> bool:
        """Whether the group has never had a leader, and this node is to be the first: no other, so that an empty disk
        does not begin a group whose record was lost."""
        return group.epoch == 0 and group.replicas[0] == self._settings.me.node

    def _prospect(self, group: Group) -> Prospect:
        following = self.following
        if following is not None and following.leader != group.leader:
            following = None
        return Prospect(
            self._me,
            group.leader.directory_id if group.leader else None,
            frozenset(group.isr),
            frozenset(group.elr),
            frozenset(self.alive),
            following.link if following else None,
            self._loop.time() - following.heard_at if following else 0.0,
            following.heartbeat if following else None,
            following.stalled_s if following else 0.0,
            self._settings.lease_s,
            group.unclean,
        )

    # --- leading ---

    async def _stand(self, group: Group) -> None:
        # That the leader is gone was seen by more than its lease.
        alive = self.alive.keys() - ({group.leader.directory_id} if group.leader else set())
        me = self._settings.me
        is_clean = group.epoch == 0 or self._me in (*group.isr, *group.elr)
        elect = changes.elect if is_clean else changes.elect_unclean
        elected = await self.metadata.change(lambda group: elect(group, me, alive))
        if elected is not None:
            if not is_clean:
                logger.error("an unclean election: this node may lack committed messages, which are lost")
            self.figures.elections += 1
            self.figures.unclean_elections += not is_clean
            await self._lead(elected)

    async def _lead(self, group: Group) -> None:
        if self.following is not None:
            self.following.close()
            self.following = None
        try:
            async with asyncio.timeout(self._settings.lease_s):
                # Also what makes a journal usable again whose last write failed.
                await self.journal.truncate(self.journal.last.sequence)
        except TimeoutError:
            return  # its device hangs
        if self.group != group or self._stopped or self._retiring:
            return
        self._led = group.epoch
        logger.info("leads", epoch=group.epoch, isr=len(group.isr))
        self.figures.leaderships += 1
        self.metadata.maximal = MaximalIsr(self.metadata.revision, group.isr)
        self.leadership = Leadership(
            self._runtime,
            self.journal,
            self._me,
            group.epoch,
            group.min_isr,
            self.metadata.maximal,
            self._on_committed,
            lambda: self._vigil.slept_s > 0,
        )
        self._on_isr(self.leadership.commitment.has_enough)

    def _step_down(self, reason: str) -> None:
        if self.leadership is None:
            return
        logger.info("steps down", epoch=self.leadership.epoch, reason=reason)
        self.leadership.end()
        self.leadership = None
        self.metadata.maximal = None
        self._on_deposed(reason)
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(NotLeading(f"this node no longer leads its group: {reason}"))
        self._wake.set()

    async def _resign(self, *, stays: bool = False) -> None:
        """Have etcd name this node no more, if it does."""
        me = self._settings.me
        if self.group is not None and self.group.leader == me:
            with suppress(ChangeRefused):
                await self.metadata.change(lambda group: changes.resign(group, me, stays=stays))

    async def _lead_on(self, leadership: Leadership, group: Group) -> None:
        """Bring the record in etcd to what the sessions say, and hand over if that is asked for."""
        me, now = self._settings.me, self._loop.time()
        if not leadership.commitment.isr.is_settled:
            # A swap may still be carried out. Once another has changed the record, it cannot.
            await self.metadata.change(changes.touch)
        elif lagging := leadership.lagging(group.lag_ms / 1000):
            if await self.metadata.change(lambda group: changes.remove_from_isr(group, me, lagging)) is not None:
                logger.warning("replicas lag, and are not in sync any more", nodes=self._named(lagging))
                for each in lagging:
                    self._admissions.removed(each, now)
        elif leaving := next_removal(group, me.node, self.numbers):
            if await self.metadata.change(lambda group: changes.drop_replica(group, me, *leaving)) is not None:
                logger.info("a node was removed from the group", node=leaving[0])
        elif joined := leadership.caught_up(
            lambda each: self._admissions.allows(each, now) and may_join(group, self.numbers.get(each))
        ):
            if await self.metadata.change(lambda group: changes.add_to_isr(group, me, joined)) is not None:
                logger.info("a replica is in sync", node=joined.node)
        elif group.transfer_to is not None and leadership.serves and not self.transfers.is_running:
            self.transfers.begin(group, group.transfer_to)

    def _named(self, directories: frozenset[str]) -> list[int | str]:
        return sorted((self.numbers.get(each, each) for each in directories), key=str)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_s / 8)
            slept_s = self._vigil.slept_s
            self._vigil.tick()
            if self.leadership is not None:
                self._check_leadership(self.leadership, slept_s)

    def _check_leadership(self, leadership: Leadership, slept_s: float) -> None:
        """Lead on only where this node can, and may believe that it does."""
        lease_s = self._settings.lease_s
        if slept_s:
            self._step_down(f"it did not run for {slept_s:.1f} s, and another may lead")
        elif leadership.has_peers and min(leadership.silent_s, self.metadata.silent_s) > lease_s:
            self._step_down("neither etcd nor another replica has been heard for a lease")
        elif leadership.age_of(self.journal.flushed + 1) > lease_s:
            self.give_up("its device does not answer")
        else:
            leadership.beat(int(self.metadata.silent_s * 1000))
            self._judge_clock(leadership.clock_differs_ms)

    def _judge_clock(self, differs_ms: int) -> None:
        is_trusted = differs_ms <= CLOCK_MAX_MS
        if self.trusts_clock and not is_trusted:
            logger.error("this node's clock differs from its followers': nothing expires meanwhile", ms=differs_ms)
        elif is_trusted and not self.trusts_clock:
            logger.info("this node's clock agrees with a follower's again", ms=differs_ms)
        self.trusts_clock = is_trusted

    # --- following ---

    def address_of(self, leader: Incarnation) -> tuple[str, int] | None:
        """Where a node that leads can be reached, if it lives."""
        record = self.alive.get(leader.directory_id)
        if record is None or record.starts != leader.starts:
            return None
        return record.peer

    def _follow(self, group: Group) -> None:
        leader = group.leader
        assert leader is not None
        following = self.following
        if following is not None and following.leader == leader:
            silent = self._loop.time() - following.heard_at > self._settings.lease_s
            if following.link is Link.CONNECTING or (following.link is Link.OPEN and not silent):
                return
        # A node that is refused at once asks again at its leisure.
        if self._loop.time() - self._followed_at < FOLLOW_PAUSE_S:
            return
        self._followed_at = self._loop.time()
        if following is not None:
            following.close()
        address = self.address_of(leader)
        if address is None:
            return
        settings = self._settings
        hello = Hello(
            VERSION,
            settings.cluster_id,
            settings.group,
            settings.me.node,
            self._me,
            settings.me.starts,
            max(self.epoch, group.epoch),
            tuple(self.journal.ends()),
        )
        self.following = Following(
            self.network,
            self.journal,
            self._runtime.clock,
            hello,
            leader,
            address,
            settings.frame_max_bytes,
            self._on_committed,
            self.learn_epoch,
            self._on_lost,
            self.on_must_copy,
        )

    def _on_lost(self) -> None:
        """The session with the leader has ended: another may lead."""
        self.metadata.hurry()
        self._wake.set()
