"""What a trace reads over Kafka's wire, where the broker may be another one, and asks of the HTTP door, which it does
without where there is none.

Of a batch, records are parsed only if it contains the bytes that are looked for, or is compressed. That makes a scan
fast without an index.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from headrace.broker.deliveries import TOPIC as DELIVERIES
from headrace.broker.lives.records import Partition, Place, Span, TracedRecord
from headrace.cli.over_http import Api
from headrace.client import EARLIEST, LATEST, Client, Record
from headrace.errors import HeadraceError
from headrace.format.batch import COMPRESSION_MASK, HEADER

DROPPED = "headrace_deliveries_dropped_total"
METRICS_SECONDS = 10.0
# After so long without a batch, the scan checks whether retention has deleted the rest.
QUIET_SECONDS = 5.0


def trace_record(record: Record) -> TracedRecord:
    """Of several headers of one name, the last one counts."""
    headers = {name: value or b"" for name, value in record.headers}
    place = Place(record.topic, record.partition, record.offset)
    return TracedRecord(place, record.timestamp, record.key, record.value, headers)


class HttpDoor:
    """The broker's HTTP door. A trace does without it where it does not answer: its methods raise HeadraceError."""

    def __init__(self, address: str, login: Mapping[str, str], tls_ca: str) -> None:
        """`login`: the header that says who asks."""
        self._address = address
        self._login = login
        self._tls_ca = tls_ca

    def get(self, path: str) -> Any:
        return Api(self._address, as_json=True, login=self._login, tls_ca=self._tls_ca).get(path)

    def dropped(self) -> int:
        """The events that the broker could not keep."""
        try:
            with urlopen(f"http://{self._address}/metrics", timeout=METRICS_SECONDS) as answer:
                lines = answer.read().decode().splitlines()
        except (URLError, OSError, ValueError) as error:
            raise HeadraceError(f"no metrics from {self._address}: {error}") from None
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(DROPPED))


class KafkaSource:
    """What a client of Kafka can read, and the HTTP door tells."""

    def __init__(self, client: Client, door: HttpDoor) -> None:
        self._client = client
        self._door = door

    async def topics(self) -> list[str]:
        return [each.name for each in await self._client.cluster.topics()]

    async def find_span(self, topics: Sequence[str], since_ms: int, until_ms: int | None) -> Span:
        return await find_span(self._client, topics, since_ms, until_ms)

    def scan(self, span: Span, needle: bytes, advance: Callable[[int], None]) -> AsyncIterator[TracedRecord]:
        return scan(self._client, span, needle, advance)

    async def read(self, place: Place) -> TracedRecord | str:
        return await read_record(self._client, place)

    async def queues(self, topic: str) -> list[Mapping[str, Any]]:
        path = f"/v1/topics/{quote(topic, safe='')}/queues"
        names = [each["queue"] for each in self._door.get(path)["queues"]]
        return [self._door.get(f"{path}/{quote(name, safe='')}") for name in names]

    async def pending_timers(self) -> int:
        return int(self._door.get("/v1/timers?limit=1")["pending"])

    async def dropped_events(self) -> int:
        return self._door.dropped()

    async def first_event(self) -> tuple[int, int]:
        partition = (DELIVERIES, 0)
        [start] = (await self._client.admin.list_offsets({partition: EARLIEST})).values()
        if start.offset <= 0:
            return 0, -1
        [first] = (await self._client.admin.list_offsets({partition: 0})).values()
        return start.offset, first.timestamp if first.offset >= 0 else -1

    async def positions(self, partitions: Sequence[Partition]) -> Mapping[str, Mapping[Partition, int]]:
        found: dict[str, Mapping[Partition, int]] = {}
        for group in await self._client.admin.groups():
            stands = await self._client.admin.committed(group.group, partitions)
            found[group.group] = {each: at.offset for each, at in stands.items() if at is not None}
        return found


async def find_span(client: Client, topics: Sequence[str], since_ms: int, until_ms: int | None) -> Span:
    """The offsets of topics between two times; None: up to now."""
    partitions = [
        (topic, index) for topic in topics for index in range(len((await client.cluster.topic(topic)).partitions))
    ]
    if not partitions:
        return Span({}, {})
    latest = await client.admin.list_offsets(dict.fromkeys(partitions, LATEST), committed=True)
    ends = {each: at.offset for each, at in latest.items()}

    async def at(moment: int) -> dict[Partition, int]:
        found = await client.admin.list_offsets(dict.fromkeys(partitions, max(0, moment)), committed=True)
        return {each: where.offset if where.offset >= 0 else ends[each] for each, where in found.items()}

    return Span(await at(since_ms), ends if until_ms is None else await at(until_ms))


async def scan(
    client: Client, span: Span, needle: bytes, advance: Callable[[int], None], *, committed: bool = True
) -> AsyncIterator[TracedRecord]:
    """The records of all batches that may contain `needle`. `advance` is called with the number of offsets passed."""
    ends = {each: end for each, end in span.end.items() if span.begin[each] < end}
    if not ends:
        return
    pattern = re.compile(re.escape(needle))
    async with client.consumer(out_of_range=EARLIEST, max_wait=0.1, committed=committed) as consumer:
        await consumer.assign({each: span.begin[each] for each in ends})
        while any(consumer.positions[each] < end for each, end in ends.items()):
            try:
                chunk = await asyncio.wait_for(consumer.chunk(), QUIET_SECONDS)
            except TimeoutError:
                # Retention may have deleted the rest of the span meanwhile.
                starts = await client.admin.list_offsets(dict.fromkeys(ends, EARLIEST))
                ends = {each: end for each, end in ends.items() if starts[each].offset < end}
                continue
            key = (chunk.topic, chunk.partition)
            batches = [each for each in chunk.batches if _is_compressed(each) or pattern.search(each)]
            for record in consumer.parse(chunk._replace(batches=batches)):
                if record.offset < span.end[key]:
                    yield trace_record(record)
            advance(min(chunk.next_offset, span.end[key]) - chunk.offset)


async def read_record(client: Client, place: Place) -> TracedRecord | str:
    """The record at a place, or why there is none."""
    partition = (place.topic, place.partition)
    if place.partition >= len((await client.cluster.topic(place.topic)).partitions):
        raise HeadraceError(f"topic {place.topic} has no partition {place.partition}")
    [start] = (await client.admin.list_offsets({partition: EARLIEST})).values()
    [end] = (await client.admin.list_offsets({partition: LATEST})).values()
    if place.offset < start.offset:
        return f"{place} is deleted: by its retention the partition begins at {start.offset}"
    if place.offset >= end.offset:
        return f"{place} is not written yet: the partition ends at {end.offset}"
    [stable] = (await client.admin.list_offsets({partition: LATEST}, committed=True)).values()
    if place.offset >= stable.offset:
        return f"{place} is in or behind a transaction that is still open"
    span = Span({partition: place.offset}, {partition: place.offset + 1})
    for committed in (True, False):
        async for each in scan(client, span, b"", lambda count: None, committed=committed):
            if each.place == place:
                return each if committed else f"{place} belongs to an aborted transaction: no committed reader got it"
    return f"{place} holds no message: it was compacted away, or marks the end of a transaction"


def _is_compressed(batch: memoryview) -> bool:
    return bool(HEADER.unpack_from(batch)[5] & COMPRESSION_MASK)
