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
from headrace.cluster.duties import Duties
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
from headrace.cluster.reception import Reception
from headrace.cluster.records import Group, Incarnation, Keys
from headrace.cluster.records import Node as NodeRecord
from headrace.cluster.retirement import retire
from headrace.cluster.seen import Seen
from headrace.cluster.transfers import Transfers
from headrace.cluster.versions import FEATURE_LEVEL, THIS_VERSION, Versions
from headrace.cluster.vigil import Vigil
from headrace.cluster.wire import Caller, Hello
from headrace.errors import NotLeading
from headrace.log.replicated_journal import ReplicatedJournal
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.cluster")

# Between two attempts to open a session.
FOLLOW_PAUSE_S = 0.1
# After a write of the journal failed: before it is tried again.
RECOVERY_S = 1.0


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
    versions: Versions = THIS_VERSION
    """What this node knows."""
    feature_level: int = FEATURE_LEVEL
    """Of the cluster, when this node was started."""


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
        self.metadata = Metadata(
            etcd,
            settings.keys,
            settings.group,
            settings.lease_s,
            settings.versions.level,
            self._on_group,
            self._on_read,
        )
        self.is_copying = False
        """What this node has is no whole copy: it neither stands nor follows."""
        self.on_must_copy: Callable[[str], None] = lambda _: None
        """Called with the reason for which this node cannot follow from its journal."""
        self.on_removed: Callable[[str], None] = lambda _: None
        """Called, again and again, while this node is no replica of its group any more."""
        self.on_level: Callable[[int], None] = lambda _: None
        """Called with the cluster's feature level, when it has risen."""
        self.feature_level = self.journal.frame_version = settings.feature_level
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
        self.reception = Reception(self, settings, self.network)
        self._vigil = Vigil(runtime.clock, settings.lease_s)
        self._seen = Seen(runtime)
        self.duties = Duties(self, settings)
        self._presence: Presence | None = None
        # Before then it asks no leader for a session.
        self._follow_at = 0.0
        # Until when a node whose journal could not be written does nothing.
        self._unfit_until = 0.0
        self.is_retiring = False
        """Whether it leaves the group, before a stop."""
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stopped = False

    # --- life ---

    async def listen(self, host: str, port: int) -> str:
        """Open the door for other nodes; HOST:PORT of it. The journal must be open. Raises OSError."""
        self.epoch = self.journal.last.epoch
        return await self.reception.listen(host, port)

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
        """Leave the group in good order, before a stop: see `retirement.py`."""
        self.is_retiring = True
        await retire(self, self._settings.me)

    async def stop(self) -> None:
        """Take no part any more; the group's record is left as it is."""
        self._stopped = True
        self.step_down("the node stops")
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

    def introduction(self) -> Caller:
        """What this node says of itself to a peer that it connects to."""
        settings, me = self._settings, self._settings.me
        epoch = max(self.epoch, self.group.epoch if self.group is not None else 0)
        versions = settings.versions
        return Caller(
            versions.oldest,
            versions.newest,
            settings.cluster_id,
            settings.group,
            me.node,
            me.directory_id,
            me.starts,
            epoch,
        )

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
            self.step_down(reason)
            self._spawn(self.resign())

    @property
    def _is_unfit(self) -> bool:
        """Whether this node's device keeps it from any work."""
        return self._loop.time() < self._unfit_until or self.journal.stalled_s > self._settings.lease_s

    # --- peers ---

    def learn_epoch(self, epoch: int) -> None:
        """A peer knows of a later epoch than this node."""
        if epoch > self.epoch:
            self.epoch = epoch
            if self.leadership is not None and epoch > self.leadership.epoch:
                self.step_down(f"epoch {epoch} has begun")
            self.metadata.hurry()
            self._wake.set()

    # --- etcd ---

    def _on_read(self) -> None:
        if self.metadata.feature_level > self.feature_level:
            self.feature_level = self.journal.frame_version = self.metadata.feature_level
            logger.info("the cluster has another feature level", level=self.feature_level)
            self.on_level(self.feature_level)
        self._wake.set()
        self.on_change()

    def _on_group(self) -> None:
        """The group's record is another one, or was read again."""
        group = self.group
        assert group is not None
        self.epoch = max(self.epoch, group.epoch)
        self._seen.note(group, self.feature_level)
        leadership = self.leadership
        if leadership is None:
            return
        if group.epoch != leadership.epoch or group.leader != self._settings.me:
            self.step_down(f"epoch {group.epoch} has begun")
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
        if self._stopped or self.is_retiring or self.metadata.is_changing:
            return
        if self._settings.me.node not in group.replicas:
            self._leave()
        elif self.leadership is not None:
            await self.duties.keep_record(self.leadership, group)
        elif self._is_unfit:
            await self._excuse(group)
        elif self.is_copying:
            return
        elif group.leader == self._settings.me and group.epoch > max(self._led, self.journal.last.epoch):
            # It was handed over to, or the answer to the swap that made it leader was lost.
            await self._lead(group)
        elif self._may_begin(group) or should_stand(self._prospect(group)):
            await self._stand(group)
        elif group.leader is not None and group.leader != self._settings.me:
            self.follow(group)
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
        if self.group != group or self._stopped or self.is_retiring:
            return
        maximal = MaximalIsr(self.metadata.revision, group.isr)
        try:
            leadership = Leadership(
                self._runtime,
                self.journal,
                self._me,
                group.epoch,
                group.min_isr,
                maximal,
                self._on_committed,
                lambda: self._vigil.slept_s > 0,
            )
        except NotLeading:
            return  # this process has just gone on after a gap: it looks again in a moment
        self._led = group.epoch
        logger.info("leads", epoch=group.epoch, isr=len(group.isr))
        self.figures.leaderships += 1
        self.metadata.maximal, self.leadership = maximal, leadership
        self._on_isr(self.leadership.commitment.has_enough)

    def step_down(self, reason: str) -> None:
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

    async def resign(self) -> None:
        """Have etcd name this node no more, if it does."""
        me = self._settings.me
        if self.group is not None and self.group.leader == me:
            with suppress(ChangeRefused):
                await self.metadata.change(lambda group: changes.resign(group, me))

    async def _excuse(self, group: Group) -> None:
        """Keep nobody waiting for a device that does not work: once another leads, no commit has to wait for it."""
        me = self._settings.me
        if group.leader == me:
            await self.resign()
        elif group.leader is not None and group.leader.directory_id in self.alive and self._me in group.isr:
            await self.metadata.change(lambda group: changes.leave_isr(group, me))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_s / 8)
            slept_s = self._vigil.slept_s
            self._vigil.tick()
            if self.leadership is not None:
                self.duties.check(self.leadership, slept_s)

    # --- following ---

    def address_of(self, leader: Incarnation) -> tuple[str, int] | None:
        """Where a node that leads can be reached, if it lives."""
        record = self.alive.get(leader.directory_id)
        if record is None or record.starts != leader.starts:
            return None
        return record.peer

    def follow(self, group: Group) -> None:
        leader = group.leader
        assert leader is not None
        following = self.following
        if following is not None and following.leader == leader:
            silent = self._loop.time() - following.heard_at > self._settings.lease_s
            if following.link is Link.CONNECTING or (following.link is Link.OPEN and not silent):
                return
        # A node that is refused at once asks again at its leisure.
        now = self._loop.time()
        if now < self._follow_at:
            return
        # One that has just been named may refuse this node because it does not know yet: look again soon.
        self._follow_at = now + FOLLOW_PAUSE_S
        self._loop.call_later(FOLLOW_PAUSE_S * 1.1, self._wake.set)
        if following is not None:
            following.close()
        address = self.address_of(leader)
        if address is None:
            return
        settings = self._settings
        hello = Hello(self.introduction(), tuple(self.journal.ends()))
        self.following = Following(
            self.network,
            self.journal,
            self._runtime.clock,
            hello,
            leader,
            address,
            settings.frame_max_bytes,
            settings.versions.level,
            self._on_committed,
            self.learn_epoch,
            self._on_lost,
            self.on_must_copy,
        )

    def _on_lost(self) -> None:
        """The session with the leader has ended: another may lead."""
        self.metadata.hurry()
        self._wake.set()
