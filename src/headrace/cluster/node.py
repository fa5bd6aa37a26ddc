"""A node of a group: it follows, stands and leads, as etcd and its peers let it.

What etcd has is read again and again, and acted on each time as if it were new: whether the last swap arrived, whether
this node leads, whether another does. So a lost answer, a watch that hangs and a restart need no rules of their own.
One change of the group's record is under way at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from headrace.addresses import format_address, parse_address
from headrace.cluster import changes
from headrace.cluster.connection import PeerConnection
from headrace.cluster.election import Prospect, should_stand
from headrace.cluster.errors import ChangeRefused, EtcdError, RecordInvalid
from headrace.cluster.etcd import Etcd, Refused, Swapped, View
from headrace.cluster.following import Following, Link
from headrace.cluster.leadership import Leadership
from headrace.cluster.maximal_isr import MaximalIsr
from headrace.cluster.presence import LEASE_SECONDS, Presence
from headrace.cluster.records import Group, Incarnation, Keys, parse_group, parse_node, read_numbers
from headrace.cluster.records import Node as NodeRecord
from headrace.cluster.watcher import Watcher
from headrace.cluster.wire import VERSION, Hello, Message, Refusal
from headrace.errors import NotLeading
from headrace.log.replicated_journal import ReplicatedJournal
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.cluster")

# Between two attempts to open a session.
FOLLOW_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Who a node is, and how long it waits."""

    cluster_id: str
    keys: Keys
    group: str
    me: Incarnation
    lease_s: int = LEASE_SECONDS
    journal_file_bytes: int = 64 << 20
    journal_memory_bytes: int = 8 << 20
    frame_max_bytes: int = 64 << 20


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
        self._me = settings.me.directory_id
        self._on_applied = on_committed
        self._on_deposed = on_deposed
        self._on_isr = on_isr
        self.journal = ReplicatedJournal(
            runtime,
            settings.group,
            settings.journal_file_bytes,
            settings.journal_memory_bytes,
            self._on_flushed,
            self._on_journal_failed,
        )
        self.group: Group | None = None
        """The group's record, as etcd last had it."""
        self._revision = 0
        self.alive: dict[str, NodeRecord] = {}
        """The nodes of the group that live, by their directory ids."""
        self.numbers: dict[str, int] = {}
        """The nodes that have, or had last, these data directories."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when anything may have changed of what the group's members show."""
        self._epoch = 0
        """The latest that this node knows of."""
        # The last epoch that it has led in.
        self._led = 0
        self.leadership: Leadership | None = None
        self.following: Following | None = None
        self._presence: Presence | None = None
        self._watcher: Watcher | None = None
        self._followed_at = 0.0
        self._etcd_heard_at = 0.0
        self._changing = False
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stopped = False

    # --- life ---

    async def listen(self, host: str, port: int) -> str:
        """Open the door for other nodes; HOST:PORT of it. The journal must be open. Raises OSError."""
        self._epoch = self.journal.last.epoch
        self._server = await self._loop.create_server(self._accept, host, port)
        return format_address(*self._server.sockets[0].getsockname()[:2])

    async def join(self, record: NodeRecord) -> None:
        """Begin to take part. `record` is what the node says of itself in etcd."""
        settings = self._settings
        key = settings.keys.node(settings.me.node)
        self._presence = Presence(self._etcd, key, record, settings.lease_s)
        self._presence.start()
        self._watcher = Watcher(self._etcd, settings.keys.prefix, settings.lease_s / 4, self._see, self._miss)
        self._watcher.start()
        self._spawn(self._work())
        self._spawn(self._beat())

    async def stop(self) -> None:
        """Take no part any more; the group's record is left as it is."""
        self._stopped = True
        self._step_down("the node stops")
        if self.following is not None:
            self.following.close()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._watcher is not None and self._presence is not None:
            await self._watcher.stop()
            await self._presence.stop()
        await self._etcd.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def serves(self) -> bool:
        """Whether this node leads, and everything before its leadership is committed."""
        return self.leadership is not None and self.leadership.serves

    @property
    def reaches_etcd(self) -> bool:
        """Whether etcd could be read within the last lease."""
        return self._loop.time() - self._etcd_heard_at < self._settings.lease_s

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
        if self.leadership is not None:
            self._step_down("its journal could not be written")
            self._spawn(self._resign())
        elif self.following is not None:
            self.following.close()

    # --- peers ---

    def _accept(self) -> PeerConnection:
        return PeerConnection(self, self._settings.frame_max_bytes)

    def on_message(self, connection: PeerConnection, message: Message) -> None:
        """A peer that has connected here has said something."""
        if not isinstance(message, Hello):
            if self.leadership is not None:
                self.leadership.on_message(connection, message)
            return
        refusal = self._refusal(message)
        if refusal is not None or self.leadership is None:
            connection.close(Refusal(refusal or "this node does not lead its group", self._epoch))
        else:
            self.leadership.open_session(connection, message)

    def _refusal(self, hello: Hello) -> str | None:
        settings = self._settings
        if hello.version != VERSION:
            return f"this node speaks version {VERSION} of the peer protocol, not {hello.version}"
        if (hello.cluster, hello.group) != (settings.cluster_id, settings.group):
            return f"this node belongs to group {settings.group!r} of cluster {settings.cluster_id}"
        if hello.epoch > self._epoch or (self.leadership is not None and hello.epoch > self.leadership.epoch):
            self._learn_epoch(hello.epoch)
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

    def _learn_epoch(self, epoch: int) -> None:
        """A peer knows of a later epoch than this node."""
        if epoch > self._epoch:
            self._epoch = epoch
            if self.leadership is not None and epoch > self.leadership.epoch:
                self._step_down(f"epoch {epoch} has begun")
            self._wake.set()

    # --- etcd ---

    def _see(self, view: View) -> None:
        """etcd has this."""
        self._etcd_heard_at = self._loop.time()
        try:
            self._read(view)
        except RecordInvalid as error:
            logger.error("a record in etcd cannot be used", error=str(error))

    def _read(self, view: View) -> None:
        settings = self._settings
        nodes = f"{settings.keys.prefix}nodes/"
        found = [parse_node(each.value, key) for key, each in view.entries.items() if key.startswith(nodes)]
        self.alive = {each.directory_id: each for each in found if each.group == settings.group}
        self.numbers = read_numbers(view, settings.keys)
        entry = view.entries.get(settings.keys.group(settings.group))
        if entry is not None:
            self._take(parse_group(entry.value, entry.key), entry.revision)
        self._wake.set()
        self.on_change()

    def _miss(self, error: EtcdError) -> None:
        """etcd cannot be read."""
        logger.debug("etcd cannot be read", error=str(error))

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
            except Exception as error:
                # A fault in here must be heard, and must not leave a node that does nothing for ever.
                what = {"message": "a node could not act on its group's record", "exception": error}
                self._loop.call_exception_handler(what)

    def _take(self, group: Group, revision: int) -> None:
        """The group's record is this."""
        if revision < self._revision:
            return  # An answer that came late.
        if self.group is not None and group.version < self.group.version:
            logger.error("etcd went back in time", version=group.version, known=self.group.version)
            return
        self.group, self._revision = group, revision
        self._epoch = max(self._epoch, group.epoch)
        leadership = self.leadership
        if leadership is None:
            return
        if group.epoch != leadership.epoch or group.leader != self._settings.me:
            self._step_down(f"epoch {group.epoch} has begun")
        else:
            leadership.commitment.min_isr = group.min_isr
            leadership.commitment.isr.see(revision, group.isr)
            self._on_isr(leadership.commitment.has_enough)
            leadership.advance()

    async def _act(self, group: Group) -> None:
        """Do what follows from the group's record and the peers."""
        if self._stopped or self._changing:
            return
        if self.leadership is not None:
            await self._change_isr(self.leadership, group)
        elif group.leader == self._settings.me and group.epoch > max(self._led, self.journal.last.epoch):
            # The answer to the swap that made it leader was lost.
            await self._lead(group)
        elif self._may_begin(group) or should_stand(self._prospect(group)):
            await self._stand(group)
        elif group.leader is not None and group.leader != self._settings.me:
            self._follow(group)

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
            self._settings.lease_s,
            group.unclean,
        )

    async def _swap(self, changed: Group) -> bool:
        """Put a new record in the place of the one that was last seen; whether it is known to be there."""
        key = self._settings.keys.group(self._settings.group)
        isr = self.leadership.commitment.isr if self.leadership is not None else None
        # One that joins counts before the swap is sent, and one that leaves until it is confirmed.
        if isr is not None:
            isr.propose(changed.isr)
        self._changing = True
        try:
            outcome = await self._etcd.swap(key, self._revision, changed.encode())
        except EtcdError as error:
            logger.warning("etcd does not take a change of the group", error=str(error))
            if isr is not None:
                isr.withdraw(changed.isr)
            return False
        finally:
            self._changing = False
            if self._watcher is not None:
                self._watcher.hurry()
        if isinstance(outcome, Swapped):
            self._take(changed, outcome.revision)
            self.on_change()
            return True
        if isinstance(outcome, Refused) and outcome.current is not None:
            self._take(parse_group(outcome.current.value, key), outcome.current.revision)
        return False

    # --- leading ---

    async def _stand(self, group: Group) -> None:
        # That the leader is gone was seen by more than its lease.
        alive = self.alive.keys() - ({group.leader.directory_id} if group.leader else set())
        me = self._settings.me
        try:
            if group.epoch == 0 or self._me in (*group.isr, *group.elr):
                elected = changes.elect(group, me, alive)
            else:
                elected = changes.elect_unclean(group, me, alive)
                logger.error("this node may lack committed messages, and stands: they are lost if it leads")
        except ChangeRefused as error:
            logger.debug("this node cannot lead", reason=str(error))
            return
        if await self._swap(elected):
            await self._lead(elected)

    async def _lead(self, group: Group) -> None:
        if self.following is not None:
            self.following.close()
            self.following = None
        # Also what makes a journal usable again whose last write failed.
        await self.journal.truncate(self.journal.last.sequence)
        if self.group is not group or self._stopped:
            return
        self._led = group.epoch
        logger.info("leads", epoch=group.epoch, isr=len(group.isr))
        self.leadership = Leadership(
            self._runtime,
            self.journal,
            self._me,
            group.epoch,
            group.min_isr,
            MaximalIsr(self._revision, group.isr),
            self._on_committed,
        )
        self._on_isr(self.leadership.commitment.has_enough)

    def _step_down(self, reason: str) -> None:
        if self.leadership is None:
            return
        logger.info("steps down", epoch=self.leadership.epoch, reason=reason)
        self.leadership.end()
        self.leadership = None
        self._on_deposed(reason)
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(NotLeading(f"this node no longer leads its group: {reason}"))
        self._wake.set()

    async def _resign(self) -> None:
        if self.group is not None and not self._changing and self.group.leader == self._settings.me:
            await self._swap(changes.resign(self.group, self._settings.me))

    async def _change_isr(self, leadership: Leadership, group: Group) -> None:
        """Bring the ISR in etcd to what the sessions say."""
        me = self._settings.me
        if not leadership.commitment.isr.is_settled:
            # A swap may still be carried out. Once another has changed the record, it cannot.
            await self._swap(changes.touch(group))
        elif joined := leadership.caught_up():
            await self._swap(changes.add_to_isr(group, me, joined))
        elif lagging := leadership.lagging(group.lag_ms / 1000):
            await self._swap(changes.remove_from_isr(group, me, lagging))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_s / 8)
            if self.leadership is None:
                continue
            if self.leadership.age_of(self.journal.flushed + 1) > self._settings.lease_s:
                self._step_down("its device does not answer")
                self._spawn(self._resign())
            else:
                self.leadership.beat(int((self._loop.time() - self._etcd_heard_at) * 1000))

    # --- following ---

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
        record = self.alive.get(leader.directory_id)
        address = parse_address(record.addresses.get("peer", "off")) if record is not None else None
        if record is None or record.starts != leader.starts or address is None:
            return
        settings = self._settings
        hello = Hello(
            VERSION,
            settings.cluster_id,
            settings.group,
            settings.me.node,
            self._me,
            settings.me.starts,
            max(self._epoch, group.epoch),
            tuple(self.journal.ends()),
        )
        self.following = Following(
            self.journal,
            hello,
            leader,
            address,
            settings.frame_max_bytes,
            self._on_committed,
            self._learn_epoch,
            self._wake.set,
        )
