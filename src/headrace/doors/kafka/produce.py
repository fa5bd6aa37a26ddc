"""Produce, versions 3 to 13: parsed where it lies, appended, answered in line.

Producers send the same bytes over and over between the client id and the records: the same acks, topic and partition.
So the door has a cache of requests for one partition, by those bytes (`CachedProduce`), and each connection keeps its
last one. A hit costs one comparison, or one look-up, instead of a parse, and its reply is prepared. A miss, and
everything else, takes the general way below it.

Kafka's rules: exactly one batch of magic 2 for each partition; nothing is created by producing; the broker's own topics
take nothing from clients; errors are per partition; acks 0 has no reply, and closes the connection if it fails.Acks 1
and all are the same where this node is alone: the topic's durability decides, and the request's own timeout bounds only
how long it may wait on a topic with `overflow=block`. In a group acks 1 waits for this node's own flush, acks all for
the commit, and both at most as long as the timeout (`KafkaDoor._expire`). A transactional batch goes through the
transaction coordinator, which knows whether its producer may write there now.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.broker.publish import Admission, Loadable
from headrace.broker.quotas import Meter
from headrace.broker.security import Operation, Resource
from headrace.broker.transactions import TransactionalBatch
from headrace.broker.unpacking import Packed, discard, prepare
from headrace.doors.kafka.errors import KafkaError, Unanswerable, error_code
from headrace.doors.kafka.produce_replies import ZSTD, ZSTD_FROM, CachedProduce, PendingCached, PendingResults
from headrace.doors.kafka.produce_wire import (
    BROKER_ADDS,
    FLEXIBLE,
    NEWEST,
    OLDEST,
    TOPIC_IDS,
    Request,
    Result,
    Results,
    parse,
)
from headrace.doors.kafka.room import UNGUARDED, Rooms, ask, wait
from headrace.doors.kafka.wire import skip_tags
from headrace.errors import ConcurrentTransactions, CorruptBatch, HeadraceError, NotAuthorized, UnknownTopic
from headrace.format.batch import COMPRESSION_MASK, CONTROL, HEADER_BYTES, PREFIX_BYTES, TRANSACTIONAL
from headrace.format.varint import varint
from headrace.log.interface import Appended, Done, Partition

if TYPE_CHECKING:
    from headrace.doors.kafka.connection import Connection

CORRELATION_END = 12  # length, API key, version and correlation id: other in every request, or compared already
ATTRIBUTES_AT = 22  # of a batch: the byte with its compression

# Of a batch header: length, magic, attributes, producer id, base sequence.
_BATCH = Struct(">8xi4xb4xh20xq2xi")


def handle(
    connection: Connection,
    buffer: bytearray,
    position: int,
    body: int,
    stop: int,
    version: int,
    correlation: int,
    out: list[bytes],
    started: float,
) -> None:
    """Append one request. Its reply is then in `out` or in line; or the connection is held until its cold partitions
    are warm and its topics have room."""
    client_end = body
    if version >= FLEXIBLE:
        if version > NEWEST:
            raise Unanswerable(f"Produce version {version} is not answered here, {OLDEST} to {NEWEST} are")
        body = body + 1 if body < stop and not buffer[body] else skip_tags(buffer, body, stop)
    elif version < OLDEST:
        raise Unanswerable(f"Produce version {version} is not answered here, {OLDEST} to {NEWEST} are")
    door = connection.door
    request = parse(buffer, body, stop, version, door.settings.array_max)
    meter = connection.meter(buffer, position, client_end) if door.quotas.is_active else None
    throttle = 0.0 if meter is None else meter.produced(stop - position, started)
    admissions, rooms = _admit(connection, request, UNGUARDED)
    cold = _cold(connection, request, admissions)
    rooms = ask(connection, request, admissions, rooms)
    ready: list[Packed] = []
    try:
        large = _large(request, admissions, buffer, ready)
        if not (cold or large or rooms.waiting):
            connection.cached = _cache(connection, buffer, position, request, admissions, meter)
            _append(connection, buffer, request, admissions, rooms, correlation, out, throttle, started)
            return
    finally:
        discard(ready)
    # The receive buffer is everybody's: what must wait takes its bytes along.
    frame = bytearray(memoryview(buffer)[body:stop])
    later = parse(frame, 0, len(frame), version, door.settings.array_max)
    connection.run(
        _append_later(connection, later, admissions, cold, large, rooms, frame, correlation, throttle, started)
    )


def append_cached(
    connection: Connection,
    cached: CachedProduce,
    batch: memoryview,
    size: int,
    correlation: int,
    out: list[bytes],
    started: float,
) -> bool:
    """A hit in the request cache: the same request as before, but for one plain batch (`produce_cache.py`). False: a
    miss after all, nothing was done, and the general way must be taken. `size` is the whole request's."""
    # It was warm when the request was cached, and stays so.
    partition, admission = cached.partition, cached.admission
    if not admission.valid or (batch[ATTRIBUTES_AT] & COMPRESSION_MASK and admission.reads_records):
        return False
    # An entry that is not needed any more serves the next request.
    entry = connection.entry
    if entry is None:
        entry = connection.entry = PendingCached(connection)
    try:
        if cached.is_local:
            base_offset, append_time, durable, _ = partition.append(batch)
            durable = durable or connection.door.broker.log.when_flushed(entry.done)
        else:
            base_offset, append_time, durable, _ = partition.append(batch, entry.done if cached.acks else None)
    except HeadraceError:
        return False
    metrics = admission.metrics
    metrics.batches_in += 1
    metrics.bytes_in += len(batch)
    throttle = 0.0
    if cached.meter is not None:
        throttle = cached.meter.produced(size, started)
        connection.timed = cached.meter.request
    if cached.acks:
        reply = cached.reply(correlation, base_offset, append_time, partition.start)
        if throttle:
            reply = cached.throttled(reply, throttle)
        if durable and not connection.in_line:
            out.append(reply)
        else:
            entry.cached = cached
            entry.started = started
            entry.correlation = correlation
            entry.throttle = throttle
            entry.reply = reply
            entry.waiting = 0 if durable else 1
            connection.entry = None
            connection.enqueue(entry)
    if throttle:
        connection.mute(throttle)
    return True


def _cache(
    connection: Connection,
    buffer: bytearray,
    position: int,
    request: Request,
    admissions: Sequence[Admission | None],
    meter: Meter | None,
) -> CachedProduce | None:
    """Put a request for one partition into the cache; None where every request has to ask for room, or may hold what is
    delayed or a duplicate."""
    if len(request.topics) != 1 or len(request.topics[0][1]) != 1 or request.acks not in (-1, 0, 1):
        return None
    key, [(index, start, end)] = request.topics[0]
    admission = admissions[0]
    if admission is None or not admission.is_plain or start < 0:
        return None
    partitions = admission.topic.partitions
    if not 0 <= index < len(partitions):
        return None
    size = len(varint(end - start + 1)) if request.version >= FLEXIBLE else 4
    prefix = bytes(buffer[position + CORRELATION_END : start - size])
    size_max = connection.door.request_max
    is_local = _is_local(connection, request, admission)
    cached = CachedProduce(
        *(request.version, prefix, size_max, request.acks, key, partitions[index], admission, meter),
        *(request.timeout_ms, is_local),
    )
    connection.door.cache_request(connection.session, cached)
    return cached


def _is_local(connection: Connection, request: Request, admission: Admission) -> bool:
    """Whether a batch is answered once this node has it. What is delayed or may be a duplicate is not, since that is
    appended together with other things."""
    return request.acks == 1 and connection.door.broker.log.is_replicated and admission.is_plain


def _admit(connection: Connection, request: Request, rooms: Rooms) -> tuple[list[Admission | None], Rooms]:
    """What publishing to each topic of the request takes; None for those that there are not, and for those that the
    client may not write to, which `rooms` then has."""
    door = connection.door
    by_id = request.version >= TOPIC_IDS
    admit, session = door.broker.publisher.admit, connection.session
    admissions: list[Admission | None] = []
    for key, _ in request.topics:
        topic = door.topic(key, by_id)
        try:
            if topic is not None:
                admissions.append(admit(session, topic))
                continue
            if not by_id:
                # Whether there is such a topic is not for everybody to know.
                door.broker.security.check(session, Operation.WRITE, Resource.TOPIC, key.decode(errors="replace"))
        except NotAuthorized as error:
            if rooms is UNGUARDED:
                rooms = Rooms()
            rooms.refused[key] = error
        admissions.append(None)
    return admissions, rooms


def _cold(connection: Connection, request: Request, admissions: Sequence[Admission | None]) -> list[Loadable]:
    """What must be loaded first: partitions, the timer and the deduplication ids where one of them may need them, and
    the coordinator of a transaction."""
    cold: list[Loadable] = []
    broker = connection.door.broker
    if request.transactional_id is not None and not broker.transactions.loaded:
        cold.append(broker.transactions)
    for (_, entries), admission in zip(request.topics, admissions, strict=True):
        if admission is not None:
            known = admission.topic.partitions
            partitions = [known[index] for index, _, _ in entries if 0 <= index < len(known)]
            cold += broker.publisher.cold(admission, partitions, timer=admission.delays, ids=admission.deduplicates)
    return cold


def _large(
    request: Request, admissions: Sequence[Admission | None], buffer: bytearray, ready: list[Packed]
) -> list[Packed]:
    """The batches whose records the broker must read, and that are to be unpacked off the loop; the others of them are
    `ready` by now."""
    large: list[Packed] = []
    for (_, entries), admission in zip(request.topics, admissions, strict=True):
        if admission is None or not admission.reads_records:
            continue
        for _, start, end in entries:
            packed = prepare(memoryview(buffer)[start:end], ready) if start >= 0 else None
            if packed is not None:
                large.append(packed)
    return large


async def _append_later(
    connection: Connection,
    request: Request,
    admissions: list[Admission | None],
    cold: Sequence[Loadable],
    large: Sequence[Packed],
    rooms: Rooms,
    frame: bytearray,
    correlation: int,
    throttle: float,
    started: float,
) -> None:
    while cold or rooms.waiting:
        for each in cold:
            # Where that fails, the append will say what is wrong.
            with suppress(HeadraceError):
                await each.load()
        if rooms.waiting and not await wait(connection, rooms):
            return
        before = admissions
        admissions, rooms = _admit(connection, request, rooms)
        if admissions == before:
            break
        # A topic has changed meanwhile, and may ask for more.
        cold = _cold(connection, request, admissions)
        rooms = ask(connection, request, admissions, rooms)
        ready: list[Packed] = []
        large = _large(request, admissions, frame, ready)
        discard(ready)
    out: list[bytes] = []
    async with connection.door.broker.unpacking.ahead(large):
        _append(connection, frame, request, admissions, rooms, correlation, out, throttle, started)
    connection.flush(out)


def _append(
    connection: Connection,
    buffer: bytearray,
    request: Request,
    admissions: Sequence[Admission | None],
    rooms: Rooms,
    correlation: int,
    out: list[bytes],
    throttle: float,
    started: float,
) -> None:
    """The general way, on warm partitions."""
    version = request.version
    publisher = connection.door.broker.publisher
    results: Results = []
    entry = PendingResults(connection, started, version, correlation, results, throttle, request.timeout_ms)
    failed = False
    within: list[tuple[Result, Admission, TransactionalBatch]] = []
    for (key, partitions), admission in zip(request.topics, admissions, strict=True):
        answers: list[Result] = []
        results.append((key, answers))
        for index, start, end in partitions:
            result = Result(index)
            answers.append(result)
            try:
                if request.acks not in (-1, 0, 1):
                    raise KafkaError(ErrorCode.invalid_required_acks, f"acks={request.acks}: it must be 0, 1 or -1")
                if key in rooms.refused:
                    raise rooms.refused[key]
                if admission is None and version >= TOPIC_IDS:
                    raise KafkaError(ErrorCode.unknown_topic_id, "there is no topic of that id")
                if admission is None or not 0 <= index < len(admission.topic.partitions):
                    raise UnknownTopic(f"there is no partition {index} of such a topic")
                partition = admission.topic.partitions[index]
                batch = memoryview(buffer)[start:end] if start >= 0 else memoryview(b"")
                transactional = _check(batch, version)
                done = _done_of(entry, result) if request.acks else None
                if transactional:
                    _check_id(connection, request)
                    offered = publisher.offer(admission, partition, batch, done or _unheard)
                    within.append((result, admission, offered))
                    continue
                if done is not None and _is_local(connection, request, admission):
                    appended = publisher.produce(admission, partition, batch, None)
                    if not appended.durable and connection.door.broker.log.when_flushed(done):
                        appended = appended._replace(durable=True)
                else:
                    appended = publisher.produce(admission, partition, batch, done)
            except HeadraceError as error:
                failed = True
                _refuse(connection, result, error)
            else:
                _accept(entry, result, partition, appended, request.acks)
    if within:
        outcomes = _append_within(connection, request, [(admission, offered) for _, admission, offered in within])
        for (result, _, offered), outcome in zip(within, outcomes, strict=True):
            if isinstance(outcome, Appended):
                _accept(entry, result, offered.partition, outcome, request.acks)
            else:
                failed = True
                _refuse(connection, result, outcome)
    if request.acks == 0:
        if failed:
            raise Unanswerable("a batch with acks=0 was refused")
    elif entry.waiting or connection.in_line:
        if not entry.waiting:
            entry.finish()
        connection.enqueue(entry)
    else:
        entry.finish()
        out.append(entry.reply)
    if throttle:
        connection.mute(throttle)


def _check_id(connection: Connection, request: Request) -> None:
    """Raise NotAuthorized for a client that may not write in the transactions of that id."""
    if request.transactional_id is not None:
        name = request.transactional_id.decode(errors="replace")
        connection.door.broker.security.check(connection.session, Operation.WRITE, Resource.TRANSACTIONAL_ID, name)


def _append_within(
    connection: Connection, request: Request, offered: Sequence[tuple[Admission, TransactionalBatch]]
) -> list[Appended | HeadraceError]:
    """The batches of a transaction; what became of each."""
    given = request.transactional_id
    second = request.version >= BROKER_ADDS
    outcomes = connection.door.broker.publisher.produce_within(
        None if given is None else given.decode(errors="replace"), offered, 2 if second else 1
    )
    if second:
        return [*outcomes]
    # Clients of the first generation would give up; this they try again, without asking for another leader.
    return [
        KafkaError(ErrorCode.not_enough_replicas, str(each)) if isinstance(each, ConcurrentTransactions) else each
        for each in outcomes
    ]


def _accept(entry: PendingResults, result: Result, partition: Partition, appended: Appended, acks: int) -> None:
    """A batch has its place."""
    result.base_offset = appended.base_offset
    result.append_time = appended.log_append_time
    result.start = partition.start
    if not appended.durable and acks:
        entry.wait_for(result)


def _refuse(connection: Connection, result: Result, error: HeadraceError) -> None:
    """A batch was not taken."""
    result.fail(error)
    connection.door.produce_metrics.failed(error_code(error).name)


def _unheard(error: Exception | None) -> None:
    """Acks 0: the client does not wait for what became of it."""


def _done_of(entry: PendingResults, result: Result) -> Done:
    """The callback of one batch among several."""
    return partial(entry.done, result)


def _check(batch: memoryview, version: int) -> bool:
    """What Kafka asks of a client's records before its log sees them; whether they belong to a transaction."""
    if not batch:
        raise KafkaError(
            ErrorCode.invalid_record, "a Produce must have one record batch for each partition, and this one has none"
        )
    if len(batch) < HEADER_BYTES:
        raise CorruptBatch(f"{len(batch)} bytes are too few for a record batch")
    length, magic, attributes, producer_id, base_sequence = _BATCH.unpack_from(batch)
    if magic != 2:
        raise KafkaError(
            ErrorCode.invalid_record, f"a batch of magic {magic}: only magic 2 is taken, use a newer client"
        )
    if length + PREFIX_BYTES < len(batch):
        raise KafkaError(ErrorCode.invalid_record, "a Produce must have exactly one record batch for each partition")
    if attributes & CONTROL:
        raise KafkaError(ErrorCode.invalid_record, "clients may not write control batches")
    if attributes & TRANSACTIONAL and (producer_id < 0 or base_sequence < 0):
        raise KafkaError(ErrorCode.invalid_record, "a transactional batch needs a producer id and a sequence number")
    if attributes & 7 == ZSTD and version < ZSTD_FROM:
        raise KafkaError(
            ErrorCode.unsupported_compression_type, f"zstd needs Produce {ZSTD_FROM} at least, this is {version}"
        )
    return bool(attributes & TRANSACTIONAL)
