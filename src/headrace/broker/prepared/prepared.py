"""Half messages: what doors ask for, and the one task that follows the clock.

A producer that must send a message if, and only if, its local transaction commits sends it *prepared* first. It lies in
`__half` then, durable and invisible to all readers of its topic. Having run its transaction, the producer commits the
message or rolls it back. If it does neither, as after a crash, the broker asks the members of its group
(`check_back.py`) until one of them decides, or gives up as configured.

Where no message was ever prepared there is no topic, no task and no cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

import structlog

from headrace.broker.loading import SharedLoad
from headrace.broker.prepared import entries
from headrace.broker.prepared.check_back import ASKED_MAX, Check, CheckBack
from headrace.broker.prepared.entries import NEVER, Decided, Message, Prepared, State
from headrace.broker.prepared.resolver import Resolver
from headrace.broker.prepared.store import Store
from headrace.broker.prepared.table import Pending
from headrace.broker.prepared.trimmer import Trimmer
from headrace.broker.publish import Publisher
from headrace.broker.rate_limit import RateLimit
from headrace.broker.security import OWN, Session
from headrace.broker.settings import BrokerSettings
from headrace.broker.topic_config import delays
from headrace.broker.topics import Topics
from headrace.errors import (
    BatchTooLarge,
    HalfFull,
    HeadraceError,
    InvalidHalf,
    InvalidRecords,
    StorageFailed,
    UnknownHalf,
    UnknownTopic,
)
from headrace.format import delay, records
from headrace.log.interface import Partition, Topic
from headrace.log.local import LocalLog
from headrace.runtime import Runtime

log = structlog.get_logger("headrace.prepared")

GROUP_MAX = 255
DELIVER_AT = delay.DELIVER_AT.decode()
# Messages that are given up at the same time.
GIVEN_UP_AT_ONCE = 100
# How often what is decided is forgotten, and the longest sleep while a message is undecided: the calendar may be set.
TEND_SECONDS = 1.0
SLEEP_SECONDS = 30.0
# The shortest: what is due within it is looked at together.
REST_MS = 20
# Messages looked at between two turns of the loop.
STEP_MESSAGES = 2_000

GIVEN_UP = "checks"


@dataclass(frozen=True, slots=True)
class PreparedStatus:
    """What is known of a half message without reading it."""

    id: str
    state: State
    topic: str
    partition: int
    """Of an undecided message -1 where its key decides."""
    offset: int = -1
    """Of a committed one."""
    group: str = ""
    prepared_ms: int = 0
    timeout_ms: int = 0
    checks: int = 0
    next_check_ms: int = -1
    """-1 where no producer will be asked."""
    given_up: bool = False
    """The broker decided it, having asked in vain."""


class PreparedMessages:
    """The half messages of all topics."""

    def __init__(
        self, runtime: Runtime, log: LocalLog, topics: Topics, publisher: Publisher, config: BrokerSettings
    ) -> None:
        self._publisher = publisher
        self._config = config
        self._changed = asyncio.Event()
        self._store = Store(runtime, log, topics, config)
        self.check_back = CheckBack(self._store, config, self._changed.set)
        self.resolver = Resolver(self._store, self._settled)
        self.trimmer = Trimmer(self._store, config)
        self.accepted = 0
        self._loaded = False
        self._loading = SharedLoad(self._load)
        self._running: asyncio.Task[None] | None = None
        self._stopped = False
        # Messages on their way to the log.
        self._preparing = 0
        self._wakes_at = NEVER
        self._last_step = 0
        self._given_up = RateLimit()
        self._untidy = False

    @property
    def pending(self) -> int:
        """Messages that are undecided, parked ones too."""
        return len(self._store.table.pending)

    @property
    def parked(self) -> int:
        """Messages that were given up and are kept."""
        return self._store.table.parked

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Go on where the last life ended, in the background."""
        if self._store.exists:
            self._loading.begin()

    async def stop(self) -> None:
        """Ask no more. What is on its way becomes durable with the log's own stop."""
        self._stopped = True
        self.check_back.end_polls()
        tasks = [task for task in (self._loading.task, self._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def end_polls(self) -> None:
        """Let every poll return: a stop of the doors would wait for them."""
        self.check_back.end_polls()

    async def load(self) -> None:
        """Make half messages usable; their topic, if it is missing. Raises StorageFailed; the next call tries again."""
        if self._stopped:
            raise StorageFailed("the broker is stopping: try again after its start")
        if not self._loaded:
            await self._loading.load()

    async def _load(self) -> None:
        if self._loaded:
            return
        try:
            await self._store.load()
        except (HeadraceError, OSError) as error:
            log.warning("half messages cannot be loaded yet", error=str(error))
            raise StorageFailed(f"half messages cannot be loaded yet: {error}") from error
        self._loaded = True
        # The last life may have ended before it had tidied up.
        self._untidy = True
        self._running = asyncio.get_running_loop().create_task(self._run())

    # --- preparing ----------------------------------------------------------------------------------------------------

    async def prepare(
        self,
        topic: str,
        value: bytes | None,
        *,
        group: str,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int = -1,
        timeout_ms: int | None = None,
        session: Session = OWN,
    ) -> str:
        """Store a message that no reader sees until it is committed; its id, once it is durable. `group` is whose
        members are asked if it stays undecided for `timeout_ms`. Raises InvalidHalf, HalfFull, InvalidTopic,
        UnknownTopic, NotAuthorized, QuotaExceeded or an AppendRefused."""
        timeout = self._timeout(timeout_ms)
        _check_group(group)
        target = await self._admit(session, topic, partition)
        now = self._store.now()
        batch = records.build([(now, key, value, headers)])
        self._publisher.take(session, len(batch))
        self._check(target, batch, headers)
        await self.load()
        if target.deleted:
            raise UnknownTopic(f"the topic {topic!r} was deleted while the message was being prepared")
        most = self._config.half_max_pending
        if self.pending + self._preparing >= most:
            raise HalfFull(
                f"{most} half messages are undecided or being prepared, the maximum (half_max_pending): decide "
                "some, or try again"
            )
        message = Message(target.name, target.id, partition, group, timeout, now, key, value, tuple(headers))
        return self._store.id_of(await self._append(message))

    async def _append(self, message: Message) -> int:
        write = self._store.write(entries.write_prepared(message, message.prepared_ms))
        number = -1

        def then(error: Exception | None, place: int) -> None:
            nonlocal number
            self._preparing -= 1
            if error is None:
                number = place
                due = message.prepared_ms + message.timeout_ms
                entry = Pending(Prepared(place, message, 0, due, False), place, len(write.batches))
                self._store.table.add(entry)
                self.accepted += 1
                if due < self._wakes_at:
                    self._changed.set()

        self._preparing += 1
        await self._store.append([write], then)
        return number

    def _timeout(self, given: int | None) -> int:
        most = self._config.half_timeout_max_ms
        if given is None:
            return self._config.half_timeout_ms
        if not 1 <= given <= most:
            raise InvalidHalf(f"the timeout must be 1 to {most} ms (half_timeout_max_ms; got {given})")
        return given

    async def _admit(self, session: Session, name: str, partition: int) -> Topic:
        """The topic, which is made if it is missing and has room for one more message. It is asked here, and not when
        the message is committed: a producer whose transaction is through must not have to wait."""

        def check_partition(topic: Topic) -> Sequence[Partition]:
            if partition != -1 and not 0 <= partition < len(topic.partitions):
                raise UnknownTopic(
                    f"the topic {name!r} has no partition {partition}, only {len(topic.partitions)} of them"
                )
            # None is appended to yet: a cold one stays cold.
            return ()

        return (await self._publisher.ready(session, name, route=check_partition)).topic

    def _check(self, topic: Topic, batch: bytearray, headers: Sequence[tuple[str, bytes | None]]) -> None:
        """What the topic would say of the message now it must not say when it is committed."""
        if len(batch) > topic.settings.max_batch_bytes:
            raise BatchTooLarge(
                f"the message takes {len(batch)} bytes, the topic {topic.name} takes {topic.settings.max_batch_bytes} "
                "(max.message.bytes)"
            )
        if topic.settings.compact:
            records.check(batch, True, self._config.decompressed_max_bytes)
        if delays(topic.config) and any(name == DELIVER_AT for name, _ in headers):
            raise InvalidHalf(
                f"the topic {topic.name} delays messages with the header {DELIVER_AT}, and a half message cannot be "
                "delayed: leave the header out"
            )

    # --- deciding -----------------------------------------------------------------------------------------------------

    async def commit(self, id: str) -> PreparedStatus:
        """Let readers have a message; where it lies. If it was committed before, the same answer. Raises InvalidHalf,
        UnknownHalf, HalfDecided (it was rolled back), UnknownTopic (its topic was deleted) or an AppendRefused."""
        return self._decided(await self.resolver.decide(await self._number(id), State.COMMITTED))

    async def rollback(self, id: str) -> PreparedStatus:
        """Drop a message. If it was rolled back before, the same answer. Raises InvalidHalf, UnknownHalf, HalfDecided
        (it was committed) or an AppendRefused."""
        return self._decided(await self.resolver.decide(await self._number(id), State.ROLLED_BACK))

    async def _number(self, id: str) -> int:
        number = entries.parse_id(id)
        if not self._store.exists:
            raise UnknownHalf(f"there is no half message {id!r}: none was ever prepared here")
        await self.load()
        if self._store.id_of(number) != id:
            raise UnknownHalf(f"there is no half message {id!r}: it was prepared on another data directory")
        return number

    def _settled(self, entry: Pending) -> None:
        self.check_back.forget(entry)
        if not self._untidy:
            self._untidy = True
            self._changed.set()

    # --- looking ------------------------------------------------------------------------------------------------------

    async def show(self, id: str) -> tuple[PreparedStatus, Message | None]:
        """How a message stands, and the message itself while it is undecided. Raises InvalidHalf or UnknownHalf."""
        number = await self._number(id)
        entry = self._store.table.pending.get(number)
        if entry is None:
            return self._decided(self._store.outcome(number)), None
        message = await self._store.message(entry)
        # It may have been decided meanwhile, and what was read is right all the same.
        return self._status(entry), message

    async def find(self, id: str) -> PreparedStatus:
        """How a message stands, without reading it. Raises InvalidHalf or UnknownHalf."""
        number = await self._number(id)
        entry = self._store.table.pending.get(number)
        return self._decided(self._store.outcome(number)) if entry is None else self._status(entry)

    async def list(self, topic: str = "", group: str = "", limit: int = 100, after: str = "") -> list[PreparedStatus]:
        """Undecided messages in the order in which they were prepared, at most `limit`, behind the one of the id
        `after`. Raises InvalidHalf."""
        behind = entries.parse_id(after) if after else -1
        if not self._store.exists:
            return []
        await self.load()
        found: list[int] = []
        undecided = list(self._store.table.pending.values())
        for start in range(0, len(undecided), STEP_MESSAGES):
            some = [
                entry.number
                for entry in undecided[start : start + STEP_MESSAGES]
                if entry.number > behind and topic in ("", entry.topic) and group in ("", entry.group)
            ]
            found = nsmallest(limit, [*found, *some])
            await asyncio.sleep(0)
        pending = self._store.table.pending
        return [self._status(pending[number]) for number in found if number in pending]

    def _status(self, entry: Pending) -> PreparedStatus:
        return PreparedStatus(
            id=self._store.id_of(entry.number),
            state=State.PARKED if entry.parked else State.PREPARED,
            topic=entry.topic,
            partition=entry.partition,
            group=entry.group,
            prepared_ms=entry.prepared_ms,
            timeout_ms=entry.timeout_ms,
            checks=entry.checks,
            next_check_ms=-1 if entry.parked else entry.next_check_ms,
        )

    def _decided(self, decided: Decided) -> PreparedStatus:
        return PreparedStatus(
            id=self._store.id_of(decided.number),
            state=decided.outcome,
            topic=decided.topic,
            partition=decided.partition,
            offset=decided.offset,
            given_up=decided.by == GIVEN_UP,
        )

    # --- checking -----------------------------------------------------------------------------------------------------

    async def poll(self, group: str, seconds: float, limit: int = ASKED_MAX) -> Sequence[Check]:
        """Listen until there is something to be asked, `seconds` at most. Raises InvalidHalf."""
        _check_group(group)
        return await self.check_back.poll(group, seconds, limit)

    # --- following the clock ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        tends_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._changed.clear()
                await self._check_back()
                if self._untidy and loop.time() >= tends_at:
                    self._untidy = False
                    await self.trimmer.tend()
                    tends_at = loop.time() + TEND_SECONDS
                await self._sleep(tends_at - loop.time() if self._untidy else None)
            except Exception:
                # A surprise with one message must not be the end of all others.
                log.exception("half messages stumbled and go on")
                await asyncio.sleep(TEND_SECONDS)

    async def _check_back(self) -> None:
        now = self._store.now()
        if now < self._last_step:
            self._store.table.clock_set_back(now)
        self._last_step = now
        while self._store.table.next_check_ms <= now:
            over = self.check_back.rounds(now)
            for start in range(0, len(over), GIVEN_UP_AT_ONCE):
                await asyncio.gather(*(self._give_up(each) for each in over[start : start + GIVEN_UP_AT_ONCE]))
            await self.check_back.ask()
        await self.check_back.ask()

    async def _give_up(self, entry: Pending) -> None:
        id, way = self._store.id_of(entry.number), self._config.half_give_up
        try:
            if way == "commit":
                way = await self._commit_or_park(entry)
            elif way == "park":
                await self.resolver.park(entry.number)
            else:
                await self.resolver.decide(entry.number, State.ROLLED_BACK, GIVEN_UP)
        except (HeadraceError, OSError) as error:
            # Decided by a client just now, or tried again after the next interval.
            log.warning("a half message was not given up", id=id, error=str(error))
        else:
            if count := self._given_up.count(asyncio.get_running_loop().time()):
                log.info(
                    "gave up half messages", messages=count, way=way, last=id, topic=entry.topic, group=entry.group
                )

    async def _commit_or_park(self, entry: Pending) -> str:
        """Commit a message that is given up. One that its topic will never take is kept for an operator to look at."""
        try:
            await self.resolver.decide(entry.number, State.COMMITTED, GIVEN_UP)
            return "commit"
        except (UnknownTopic, BatchTooLarge, InvalidRecords) as error:
            log.warning("a half message cannot be committed", id=self._store.id_of(entry.number), error=str(error))
            await self.resolver.park(entry.number)
            return "park"

    async def _sleep(self, at_most: float | None) -> None:
        """Until something changes, or is due."""
        due = self._store.table.next_check_ms
        self._wakes_at = due
        if due != NEVER:
            ahead = max(due - self._store.now(), REST_MS) / 1_000
            at_most = min(ahead, SLEEP_SECONDS if at_most is None else at_most)
        try:
            await asyncio.wait_for(self._changed.wait(), None if at_most is None else max(at_most, 0.0))
        except TimeoutError:
            pass


def _check_group(group: str) -> None:
    if not 1 <= len(group) <= GROUP_MAX:
        raise InvalidHalf(f"the name of a producer group must have 1 to {GROUP_MAX} characters (got {group[:40]!r})")
