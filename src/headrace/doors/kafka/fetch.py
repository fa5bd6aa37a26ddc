"""Fetch: what a reader gets, now or when there is enough of it.

A request that can be answered is answered in the turn in which it came. Otherwise the call waits on its partitions and
on a timer, and looks again when one of them has more: the append that makes records readable wakes their readers
itself.

Kafka's rules: the first batch of a reply is whole even above the limits; limits of the request, of each partition and
of the broker hold for the rest; committed readers stop at the last stable offset and get the aborted
transactions; an error of one partition does not delay the reply. A consumer that names its rack is sent to an in-sync
follower there (KIP-392). A follower gives what it has applied, and above that nothing, without an error: consumers
would take OFFSET_OUT_OF_RANGE for a reason to begin again. Left out: fetches of replicas
(NOT_LEADER_OR_FOLLOWER), which copy the journal instead. INCONSISTENT_TOPIC_ID cannot come up here, because an id is
looked up in the same catalogue that holds the partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import structlog
from kio.schema.errors import ErrorCode

from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.errors import Unanswerable, error_code
from headrace.doors.kafka.fetch_wire import (
    ELSEWHERE,
    FLEXIBLE,
    NEWEST,
    OLDEST,
    RACK,
    TOPIC_IDS,
    Request,
    Result,
    encode,
    parse,
)
from headrace.doors.kafka.file_replies import Part
from headrace.doors.kafka.placement import Leader, other_leader, replicas_near
from headrace.doors.kafka.sessions import EPOCH_FULL, EPOCH_NONE, FetchPartition, Session, next_epoch
from headrace.doors.kafka.wire import skip_tags
from headrace.errors import CorruptLog, HeadraceError, OffsetOutOfRange
from headrace.log.interface import Durability, Partition

if TYPE_CHECKING:
    from headrace.doors.kafka.connection import Connection

log = structlog.get_logger("headrace.kafka")

OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
STORAGE_ERROR = 56
SESSION_ID_NOT_FOUND = 70
INVALID_SESSION_EPOCH = 71
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
TOPIC_AUTHORIZATION_FAILED = 29
UNKNOWN_TOPIC_ID = 100
SESSION_TOPIC_ID_ERROR = 106

# A place that was looked up off the loop may be forgotten before it is read, under many readers; then it is looked up
# again, so often at most, before the client is asked to come back.
WARM_ROUNDS = 3
# The ranges of files in one reply, and the places that are looked up for it. What lies in further partitions comes with
# the next one: a client may ask for more of them than there are descriptors, or places that are kept.
RANGES_MAX = 256


def begin(
    connection: Connection,
    buffer: bytearray,
    position: int,
    body: int,
    stop: int,
    version: int,
    correlation: int,
    started: float,
) -> list[Part] | None:
    """Answer one request now; or None, and the connection is held until it can be answered."""
    if not OLDEST <= version <= NEWEST:
        raise Unanswerable(f"Fetch version {version} is not answered here, {OLDEST} to {NEWEST} are")
    door = connection.door
    client = (connection.client_id(buffer, position, body) or "") if door.quotas.is_active else None
    if version >= FLEXIBLE:
        body = skip_tags(buffer, body, stop)
    request = parse(buffer, body, stop, version, door.settings.array_max)
    door.fetch_metrics.requests += 1
    call = FetchCall(connection, request, correlation, client, started)
    error = call.join_session()
    if error:
        return encode(version, correlation, [], error=error)
    cold = [partition for partition in call.resolve() if not partition.loaded]
    if not cold and call.look():
        return call.reply()
    if cold or call.cold:
        connection.run(call.look_when_warm(cold))
    else:
        call.wait()
    return None


class FetchCall:
    """One request, from its parse to its reply."""

    __slots__ = (
        "_by_id",
        "_client",
        "_connection",
        "_correlation",
        "_damaged",
        "_deadline",
        "_entries",
        "_on_wake",
        "_patient",
        "_preferred",
        "_queued",
        "_readable",
        "_request",
        "_results",
        "_session",
        "_session_id",
        "_started",
        "_timer",
        "_waiting",
        "cold",
    )

    def __init__(
        self, connection: Connection, request: Request, correlation: int, client: str | None, started: float
    ) -> None:
        self._connection = connection
        self._request = request
        self._correlation = correlation
        self._client = client
        self._started = started
        self._by_id = request.version >= TOPIC_IDS
        # Only an incremental session leaves out what has not changed.
        self._session: Session | None = None
        self._session_id = 0
        self._entries: Iterable[FetchPartition] = request.entries
        self._results: list[Result] = []
        self._waiting: list[Partition] = []
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = started + request.max_wait / 1000
        # What must be looked up off the loop before everything can be read.
        self.cold: list[Callable[[], None]] = []
        self._patient = True
        self._damaged = False
        # The replicas in the consumer's rack, which it had better ask.
        self._preferred: Sequence[int] = ()
        if request.rack and not connection.door.follows:
            self._preferred = replicas_near(connection.door.broker, request.rack, connection.listener.name)
        self._queued = False
        self._readable = connection.readable_now()
        self._on_wake = self.wake

    def join_session(self) -> int:
        """Find or open the session that the request belongs to; an error code for the whole request, or 0."""
        request = self._request
        sessions = self._connection.door.sessions
        if request.session_epoch in (EPOCH_NONE, EPOCH_FULL):
            if request.session_id:
                sessions.close(request.session_id)
            if request.session_epoch == EPOCH_FULL and request.entries:
                opened = sessions.open(self._by_id, request.entries)
                if opened is not None:
                    self._session_id = opened.id
                    self._entries = opened.partitions.values()
            return 0
        session = sessions.get(request.session_id)
        if session is None:
            return SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return INVALID_SESSION_EPOCH
        if session.by_id != self._by_id:
            return SESSION_TOPIC_ID_ERROR
        if not sessions.update(session, request.entries, request.forgotten):
            return SESSION_ID_NOT_FOUND
        session.epoch = next_epoch(session.epoch)
        self._entries = session.partitions.values()
        if session.partitions:
            self._session = session
            self._session_id = session.id
        else:
            sessions.close(session.id)
        return 0

    def resolve(self) -> list[Partition]:
        """Look the topics up; the partitions that exist."""
        found = []
        door = self._connection.door
        for entry in self._entries:
            topic = entry.topic
            if topic is None or topic.deleted:
                topic = entry.topic = door.topic(entry.key, self._by_id)
            if topic is not None and 0 <= entry.index < len(topic.partitions):
                found.append(topic.partitions[entry.index])
        return found

    async def look_when_warm(self, cold: list[Partition]) -> None:
        """Load what has not been read since the start, then go on as ever."""
        for partition in cold:
            try:
                await partition.load()
            except HeadraceError:
                # Looking at it will say what is wrong.
                continue
        offload = self._connection.door.broker.runtime.offload
        ready = self.look()
        for _ in range(WARM_ROUNDS):
            if not self.cold:
                break
            for find in self.cold:
                try:
                    await offload.run(find)
                except (OSError, HeadraceError) as error:
                    log.warning("a segment cannot be read", reason=str(error))
                    self._damaged |= isinstance(error, CorruptLog)
            ready = self.look()
        if self.cold:
            self._patient = False
            ready = self.look()
        if self._connection.lost:
            self._drop()
        elif ready:
            self._connection.send(self.reply())
        else:
            self.wait()

    def look(self) -> bool:
        """Read every partition. True: there is enough, or an error, or no time to wait; and nothing is cold."""
        if not self._readable.valid:
            self._readable = self._connection.readable_now()
        request = self._request
        left = min(request.max_bytes, self._connection.door.settings.fetch_max_bytes)
        at_least_one = True
        size = ranges = 0
        ready = request.max_wait <= 0
        results: list[Result] = []
        self._results = results
        self.cold = []
        for entry in self._entries:
            result = self._read(entry, left, at_least_one, ranges + len(self.cold) < RANGES_MAX)
            results.append(result)
            if result.error or result.diverging is not None or result.left_out or result.preferred >= 0:
                ready = True
            elif result.chunk is not None:
                at_least_one = False
                size += result.chunk.available
                ranges += len(result.chunk.ranges)
                left = max(left - result.chunk.size, 0)
        if not self.cold and (ready or size >= request.min_bytes or not results):
            return True
        self._drop()
        return False

    def _read(self, entry: FetchPartition, left: int, at_least_one: bool, has_room: bool) -> Result:
        topic = entry.topic
        if topic is not None and topic.deleted:
            topic = entry.topic = None
        if topic is None or not 0 <= entry.index < len(topic.partitions):
            unknown = UNKNOWN_TOPIC_ID if self._by_id and topic is None else UNKNOWN_TOPIC_OR_PARTITION
            return Result(entry, self._hide(entry, unknown))
        door = self._connection.door
        readable = self._readable
        if topic not in readable.topics and not door.readable.allows(self._connection.session, readable, topic):
            return Result(entry, TOPIC_AUTHORIZATION_FAILED)
        follows = door.follows
        if self._request.replica >= 0 or (follows and (self._request.version < RACK or not door.may_read())):
            return Result(entry, NOT_LEADER_OR_FOLLOWER)
        if follows and topic.settings.durability is Durability.MEMORY:
            # The leader alone has what it holds.
            return Result(entry, NOT_LEADER_OR_FOLLOWER)
        partition = topic.partitions[entry.index]
        if entry.leader_epoch >= 0 and entry.leader_epoch != (epoch := door.epoch_of(partition)):
            fenced = entry.leader_epoch < epoch
            return Result(entry, FENCED_LEADER_EPOCH if fenced else UNKNOWN_LEADER_EPOCH)
        if not partition.loaded or partition.offline:
            return Result(entry, STORAGE_ERROR)
        result = Result(entry)
        result.high = high = partition.high_watermark
        result.stable = stable = partition.last_stable
        result.start = partition.start
        committed = self._request.committed
        if committed:
            result.aborted = []
        if follows and entry.offset > high:
            # Not applied yet.
            return result
        has_followers = self._preferred and topic.settings.durability is not Durability.MEMORY
        if has_followers and result.start <= entry.offset <= high:
            result.preferred = self._preferred[entry.index % len(self._preferred)]
            return result
        # A follower may not have the beginning of the newest epoch yet.
        if entry.last_epoch >= 0 and not (follows and entry.last_epoch > partition.epoch):
            epoch, end = partition.epoch_end(entry.last_epoch)
            if epoch < 0 or end < 0:
                return Result(entry, OFFSET_OUT_OF_RANGE)
            if epoch < entry.last_epoch or end < entry.offset:
                result.diverging = (epoch, end)
                return result
        # Most partitions of a long poll have nothing new: see that without asking the log.
        if entry.offset == (stable if committed else high):
            return result
        if not has_room:
            result.left_out = True
            return result
        try:
            limit = min(entry.max_bytes, left)
            chunk = partition.read(entry.offset, limit, committed=committed, at_least_one=at_least_one)
            if committed:
                result.aborted = chunk.aborted
        except OffsetOutOfRange:
            return Result(entry, OFFSET_OUT_OF_RANGE)
        except CorruptLog as error:
            # Not the storage error, with which clients come back for ever and report nothing.
            log.warning("a segment is damaged", reason=str(error))
            return Result(entry, CORRUPT_MESSAGE)
        except (HeadraceError, OSError) as error:
            return Result(entry, int(error_code(error)))
        if chunk.cold is not None:
            if not self._patient:
                return Result(entry, CORRUPT_MESSAGE if self._damaged else STORAGE_ERROR)
            self.cold.append(chunk.cold)
        elif chunk.size:
            result.chunk = chunk
        return result

    def _hide(self, entry: FetchPartition, unknown: int) -> int:
        """The error of a partition that there is not, as far as the client may know that."""
        if self._by_id:
            return unknown
        name = entry.key.decode(errors="replace")
        security = self._connection.door.broker.security
        may = security.allows(self._connection.session, Operation.READ, Resource.TOPIC, name)
        return unknown if may else TOPIC_AUTHORIZATION_FAILED

    def _drop(self) -> None:
        """Give back what was read but is not sent."""
        for result in self._results:
            if result.chunk is not None:
                result.chunk.release()
        self._results = []

    def reply(self) -> list[Part]:
        """The reply of what was read last."""
        door = self._connection.door
        results = self._results
        session = self._session
        if session is not None:
            results = [result for result in results if _is_news(result)]
        sent = 0
        for result in results:
            entry = result.entry
            # An error is in every reply; and once it is over, that is a change.
            entry.sent_high = -1 if result.error else result.high
            entry.sent_start = -1 if result.error else result.start
            if result.chunk is not None:
                if session is not None:
                    session.rotate(entry)
                if entry.topic is not None:
                    door.broker.metrics.topic(entry.topic.name).bytes_out += result.chunk.size
                sent += result.chunk.size
            elif result.error:
                door.fetch_metrics.failed(ErrorCode(result.error).name)
        throttle = 0.0
        now = door.loop.time()
        if self._client is not None:
            # Not when it began: a long poll may outlast a quota.
            meter = self._connection.meter_of(self._client)
            if meter is not None:
                throttle = meter.consumed(sent, now)
                if throttle:
                    self._connection.mute(throttle)
        door.fetch_metrics.latency.observe(now - self._started)
        return encode(
            self._request.version,
            self._correlation,
            results,
            throttle=int(throttle * 1000),
            session=self._session_id,
            leader=self._other_leader() if any(each.error in ELSEWHERE for each in results) else None,
        )

    def _other_leader(self) -> Leader | None:
        connection = self._connection
        return other_leader(connection.door.broker, connection.listener.name)

    # --- long polling -------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Hold the connection until a partition has more or the time is over."""
        connection = self._connection
        connection.hold_for(self)
        if connection.closing:
            # The door closes while partitions were being warmed: it waits for this reply.
            self.finish_now()
            return
        loop = connection.door.loop
        self._timer = loop.call_later(max(self._deadline - loop.time(), 0), self.finish_now)
        self._watch()

    def _watch(self) -> None:
        self._waiting = self.resolve()
        for partition in self._waiting:
            partition.wait(self._on_wake)

    def _unwatch(self) -> None:
        for partition in self._waiting:
            partition.unwait(self._on_wake)
        self._waiting = []

    def wake(self) -> None:
        """There is something new: look again."""
        # Several partitions may wake in one flush: look once, after all of them.
        if not self._queued:
            self._queued = True
            self._connection.door.soon(self._look_again)

    def _look_again(self) -> None:
        self._queued = False
        if self._connection.fetching is not self:
            return
        self._unwatch()
        if self.look() or self.cold:
            self._answer()
        else:
            self._watch()

    def finish_now(self) -> None:
        """The time is over: answer with what there is."""
        self._unwatch()
        self._request.max_wait = 0
        self.look()
        self._answer()

    def _answer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        connection = self._connection
        connection.fetching = None
        if self.cold:
            connection.run(self.look_when_warm([]))
        else:
            connection.answer(self.reply())

    def cancel(self) -> None:
        """The connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
        self._unwatch()


def _is_news(result: Result) -> bool:
    entry = result.entry
    return bool(
        result.chunk is not None
        or result.error
        or result.diverging is not None
        or result.preferred >= 0
        or result.high != entry.sent_high
        or result.start != entry.sent_start
    )
