"""What a search finds: exactly the messages that match, with an index, without one, and with half of one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests import brokers
from tests.broker.search.conftest import EAGER
from tests.waiting import SECONDS

from headrace.broker.broker import Broker
from headrace.broker.search.query import NEVER, Query, header, key, tag, unique_key
from headrace.broker.search.search import Match, Place
from headrace.errors import InvalidSearch, TooManySearches
from headrace.format import records
from headrace.format.batch import TRANSACTIONAL
from headrace.format.records import Record
from headrace.log.interface import Topic
from headrace.log.local import LocalPartition

SIZE = 1 << 30
INDEX = "key,id,tags,header:color"


def batch_of(rng: random.Random, number: int) -> list[tuple[int, bytes | None, bytes, list[tuple[str, bytes | None]]]]:
    """The records of a batch; keys repeat, unique keys do not."""
    found = []
    for index in range(rng.randint(1, 8)):
        headers: list[tuple[str, bytes | None]] = [("UNIQ_KEY", b"u-%d-%d" % (number, index))]
        if rng.random() < 0.5:
            headers.append(("KEYS", b"order-%d  customer-%d" % (rng.randrange(40), rng.randrange(40))))
        if rng.random() < 0.5:
            headers.append(("TAGS", rng.choice([b"paid", b"sent"])))
        if rng.random() < 0.3:
            headers.append(("color", rng.choice([b"red", b"blue"])))
        plain = b"order-%d" % rng.randrange(40) if rng.random() < 0.5 else None
        found.append((1_000 + number * 10 + index, plain, rng.randbytes(rng.randrange(400)), headers))
    return found


async def append(partition: LocalPartition, batch: bytes | bytearray) -> int:
    flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        flushed.set_exception(error) if error is not None else flushed.set_result(None)

    appended = partition.append(bytearray(batch), done)
    appended.complete(done)
    await flushed
    return appended.base_offset


class Model:
    """All committed records of a topic, and the plain way to search them."""

    def __init__(self, broker: Broker, topic: Topic) -> None:
        self._partitions = [broker.log.local(each) for each in topic.partitions]
        self.records: list[tuple[int, Record]] = []

    async def fill(self, rng: random.Random, batches: int, first: int = 0) -> None:
        for number in range(first, first + batches):
            partition = rng.choice(self._partitions)
            rows = batch_of(rng, number)
            producer = number + 1 if rng.random() < 0.1 else -1
            aborted = producer > 0 and rng.random() < 0.6
            batch = records.build(
                rows,
                compression=rng.choice([0, 0, 3, 4]),
                producer_id=producer,
                producer_epoch=0 if producer > 0 else -1,
                base_sequence=0 if producer > 0 else -1,
                attributes=TRANSACTIONAL if producer > 0 else 0,
            )
            base = await append(partition, batch)
            if producer > 0:
                kind = records.ABORT if aborted else records.COMMIT
                await append(partition, records.control(kind, 0, producer, 0, rows[0][0]))
            if not aborted:
                self.records += [(partition.index, (base + index, *row)) for index, row in enumerate(rows)]

    def find(self, query: Query) -> list[Match]:
        found = [Match(*each) for each in self.records if matches(each[1], query)]
        return sorted(found, key=lambda match: (match.partition, match.record[0]))


def matches(record: Record, query: Query) -> bool:
    _, time, plain, _, headers = record
    fields: dict[str, set[bytes]] = {"key": {plain} if plain else set()}
    for name, value in headers:
        for field in {"UNIQ_KEY": "id", "TAGS": "tags"}.get(name, ""), f"header:{name}":
            fields.setdefault(field, set()).add(value or b"")
        if name == "KEYS":
            fields["key"] |= set((value or b"").split())
    return query.since <= time <= query.until and all(value in fields.get(name, ()) for name, value in query.terms)


def queries(rng: random.Random, model: Model) -> list[Query]:
    newest = max(record[1] for _, record in model.records)
    since = rng.randint(1_000, newest)
    some = [(unique_key(dict(record[4])["UNIQ_KEY"] or b""),) for _, record in rng.sample(model.records, 4)]
    some += [(key(b"order-%d" % number),) for number in range(0, 44, 11)]
    some += [(key(b"customer-7"),), (tag(b"paid"),), (tag(b"none"),), (header("color", b"red"),)]
    some += [(tag(b"sent"), key(b"order-3"), header("color", b"blue")), (header("UNIQ_KEY", b"u-3-0"),)]
    found = [Query(terms) for terms in some]
    return [*found, *(Query(each.terms, since, rng.choice([since + 100, NEVER])) for each in found)]


async def paged(broker: Broker, topic: Topic, query: Query, count: int) -> list[Match]:
    """All that pages of so many find."""
    found: list[Match] = []
    after: Place | None = None
    while True:
        page = await broker.search.page(topic, query, count, SIZE, after)
        assert len(page.found) <= count
        found += page.found
        if page.next is None:
            return found
        assert after is None or page.next > after
        after = page.next


async def check(broker: Broker, topic: Topic, model: Model, rng: random.Random) -> None:
    for query in queries(rng, model):
        expected = model.find(query)
        assert await paged(broker, topic, query, rng.choice([5, 1_000])) == expected, query
        count = rng.choice([1, 4, 1_000])
        newest = await broker.search.newest(topic, query, count, SIZE)
        times = sorted((match.record[1] for match in expected), reverse=True)[:count]
        assert [match.record[1] for match in newest.found] == times, query
        assert {repr(match) for match in newest.found} <= {repr(match) for match in expected}


async def unindexed(broker: Broker, topic: Topic) -> int:
    """The offsets of which no index tells."""
    count, question = 0, Query((key(b"x"),)).question
    for partition in topic.partitions:
        offset = partition.start
        while offset < partition.high_watermark:
            told = await broker.log.local(partition).suspects(question, offset)
            assert told.first == offset < told.after
            count += told.after - offset if told.batches is None else 0
            offset = told.after
    return count


async def indexed(broker: Broker, topic: Topic, most: int) -> None:
    """Wait until the indexes tell of all offsets but so many."""
    async with asyncio.timeout(SECONDS):
        while await unindexed(broker, topic) > most:
            await asyncio.sleep(0.02)


async def make(broker: Broker, index: str = INDEX) -> Topic:
    return await broker.topics.create("orders", 2, {"index": index, "segment.bytes": "1048576", "retention.ms": "-1"})


@pytest.mark.parametrize("index", ["", INDEX])
async def test_exactly_what_matches_is_found(broker: Broker, index: str) -> None:
    rng = random.Random(7)
    topic = await make(broker, index)
    model = Model(broker, topic)
    await model.fill(rng, 40)
    await check(broker, topic, model, rng)
    await model.fill(rng, 400, 40)
    if index:
        await indexed(broker, topic, 300)
    await model.fill(rng, 20, 1_000)
    await check(broker, topic, model, rng)
    assert (await unindexed(broker, topic) < len(model.records) / 4) == bool(index)


async def test_an_index_serves_after_a_restart_and_goes_on(tmp_path: Path) -> None:
    rng = random.Random(8)
    async with brokers.running(tmp_path, **EAGER) as broker:
        topic = await make(broker)
        model = Model(broker, topic)
        await model.fill(rng, 400)
        await indexed(broker, topic, 300)
    sizes = {path: path.stat().st_size for path in tmp_path.glob("orders-*/*.search")}
    assert sizes
    async with brokers.running(tmp_path, **EAGER) as broker:
        topic = broker.topics.existing("orders")
        again = Model(broker, topic)
        again.records = model.records
        for partition in topic.partitions:
            await partition.load()
        assert await unindexed(broker, topic) <= 400
        await check(broker, topic, again, rng)
        await again.fill(rng, 300, 400)
        await indexed(broker, topic, 300)
        await check(broker, topic, again, rng)
    assert all(path.stat().st_size > size for path, size in sizes.items())


async def test_a_topic_that_gets_an_index_later_and_another_one_then(broker: Broker) -> None:
    rng = random.Random(9)
    topic = await make(broker, "")
    model = Model(broker, topic)
    await model.fill(rng, 400)
    assert await unindexed(broker, topic) == sum(each.high_watermark for each in topic.partitions)
    await broker.topics.alter_config("orders", lambda own: {**own, "index": "key"})
    await indexed(broker, topic, 300)
    await broker.topics.alter_config("orders", lambda own: {**own, "index": "tags"})
    await check(broker, topic, model, rng)
    async with asyncio.timeout(SECONDS):
        while await unindexed(broker, topic) < 1_000:
            await asyncio.sleep(0.02)
    await check(broker, topic, model, rng)


@pytest.mark.parametrize("where", [0, 0.1, 0.5, 0.98])
async def test_a_damaged_index_is_passed_over_and_made_anew(broker: Broker, tmp_path: Path, where: float) -> None:
    rng = random.Random(10)
    topic = await make(broker)
    model = Model(broker, topic)
    await model.fill(rng, 400)
    await indexed(broker, topic, 300)
    for path in tmp_path.glob("orders-*/*.search"):
        damaged = bytearray(path.read_bytes())
        at = int(len(damaged) * where)
        damaged[at : at + 64] = bytes(each ^ 0x5A for each in damaged[at : at + 64])
        path.write_bytes(damaged)
    await check(broker, topic, model, rng)
    await indexed(broker, topic, 300)
    await check(broker, topic, model, rng)


async def test_retention_takes_it_along(broker: Broker, tmp_path: Path) -> None:
    rng = random.Random(11)
    topic = await make(broker)
    model = Model(broker, topic)
    await model.fill(rng, 2_500)
    await indexed(broker, topic, 300)
    assert len(list(tmp_path.glob("orders-0/*.search"))) >= 2
    await topic.partitions[0].trim(-1)
    model.records = [each for each in model.records if each[0] == 1]
    await check(broker, topic, model, rng)
    async with asyncio.timeout(SECONDS):
        while len(list(tmp_path.glob("orders-0/*.search"))) > 1:
            await asyncio.sleep(0.02)


async def test_pages_are_bounded(broker: Broker) -> None:
    topic = await make(broker)
    model = Model(broker, topic)
    await model.fill(random.Random(12), 100)
    query = Query((tag(b"paid"),))
    page = await broker.search.page(topic, query, 1_000, 1)
    assert (len(page.found), page.next is not None) == (1, True)
    assert page.total == sum(each.high_watermark for each in topic.partitions)
    assert 0 < page.passed < page.total
    assert page.scanned_bytes > 0


async def test_a_page_that_has_no_time_comes_further_all_the_same(tmp_path: Path) -> None:
    rng = random.Random(13)
    async with brokers.running(tmp_path, **{**EAGER, "search_ms": 1}) as broker:
        topic = await make(broker)
        model = Model(broker, topic)
        await model.fill(rng, 300)
        for query in queries(rng, model)[::7]:
            assert await paged(broker, topic, query, 1_000) == model.find(query)


async def test_searches_at_once_are_bounded(tmp_path: Path) -> None:
    async with brokers.running(tmp_path, **{**EAGER, "searches_max": 2}) as broker:
        topic = await make(broker)
        await Model(broker, topic).fill(random.Random(14), 50)
        query = Query((tag(b"paid"),))
        found = await asyncio.gather(
            *(broker.search.page(topic, query, 10, SIZE) for _ in range(3)), return_exceptions=True
        )
        assert [type(each) is TooManySearches for each in found] == [False, False, True]
        assert (await broker.search.page(topic, query, 10, SIZE)).found


@pytest.mark.parametrize(
    ("terms", "since", "until"),
    [((), 0, 1), ((key(b""),), 0, 1), ((key(b"x" * 65_537),), 0, 1), ((key(b"x"),), 2, 1), ((key(b"x"),) * 17, 0, 1)],
)
def test_what_makes_no_sense(terms: Sequence[tuple[str, bytes]], since: int, until: int) -> None:
    with pytest.raises(InvalidSearch):
        Query(tuple(terms), since, until)
