"""`audit` with a real Spark and a real broker: known numbers, with some lost, some twice, some never acknowledged."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.topics import Topics
from tests.waiting import until
from typer.testing import CliRunner

import headrace
from headrace.client import EARLIEST, Client
from headrace.format.sampling import is_kept, seed_of, threshold
from headrace.pipeline.jobs import audit_log
from headrace.pipeline.options import parse
from headrace.sdk import App, Retry, auditing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.jobs.audit_report import Report

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

MINUTE = 60_000
NOON = 1_704_110_400_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[headrace.Broker]:
    data = str(tmp_path_factory.mktemp("data"))
    with headrace.Broker(data=data, http="127.0.0.1:0", deliveries_flush_ms=20) as running:
        yield running


@pytest.fixture(scope="module")
def topics(broker: headrace.Broker) -> Topics:
    return Topics(broker.kafka)


class Clock:
    """What the audit of an application takes for the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms = NOON
        monkeypatch.setattr(auditing, "time", self)

    def time_ns(self) -> int:
        return self.ms * 1_000_000

    monotonic = staticmethod(time.monotonic)


def http(broker: headrace.Broker, method: str, path: str, content: Any = None) -> Any:
    host, _, port = broker.http.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=10)
    connection.request(method, path, json.dumps(content) if content is not None else None)
    answer = connection.getresponse()
    said = json.loads(answer.read())
    assert answer.status in (200, 201), said
    return said


def queue(broker: headrace.Broker, topic: str, name: str, **settings: Any) -> None:
    content = {"from": "earliest", "settings": settings}
    http(broker, "PUT", f"/v1/topics/{topic}/queues/{name}", content)


def records(topics: Topics, topic: str) -> list[Any]:
    async def read(client: Client) -> list[Any]:
        # `__deliveries` is there once a queue has written to it.
        if topic not in {each.name for each in await client.cluster.topics()}:
            return []
        partitions = [(topic, each.index) for each in (await client.cluster.topic(topic)).partitions]
        async with client.consumer(max_wait=0.1) as consumer:
            await consumer.assign(dict.fromkeys(partitions, EARLIEST))
            return [record async for record in consumer.records(await consumer.end_offsets())]

    return topics.ask(read)


def events(topics: Topics, topic: str, queue: str) -> list[dict[str, Any]]:
    found = [json.loads(record.value) for record in records(topics, "__deliveries")]
    return [each for each in found if (each["topic"], each["queue"]) == (topic, queue)]


def counted(found: list[dict[str, Any]], event: str) -> int:
    return sum(last - first + 1 for each in found if each["event"] == event for first, last in each["runs"])


def run(spark: SparkSession, broker: headrace.Broker, topic: str, **more: Any) -> Report:
    from headrace.pipeline.jobs import audit

    given: dict[str, Any] = {"since": NOON, "until": NOON + 10 * MINUTE, "http": broker.http, **more}
    return audit(spark, topics=[topic], bootstrap=broker.kafka, **given)


def test_every_number_is_what_was_done(
    spark: SparkSession, broker: headrace.Broker, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(2)
    for name in ("mail", "stuck"):
        queue(broker, topic, name, deliveries=1)
    clock = Clock(monkeypatch)
    acked: set[str] = set()
    held: set[str] = set()

    async def life() -> None:
        sender = App("shop", broker.url, audit=True, register=False)
        async with sender:
            for number in range(60):
                await sender.send(topic, b"%d" % number, partition=number % 2)
            await sender.flush()
            clock.ms += MINUTE
            for number in range(60, 100):
                await sender.send(topic, b"%d" % number, partition=number % 2)
            # The next minute is beyond what is looked at.
            await sender.flush()
            clock.ms = NOON + 10 * MINUTE
            await sender.publish(topic, b"100", partition=0)

        reader = App("reader", broker.url, register=False)

        @reader.subscribe(topic, group="mail", traced=1.0)
        async def mail(value: str, message: headrace.sdk.Message) -> None:
            # Three are asked for again once.
            if int(value) < 3 and message.attempt == 1:
                raise Retry("again", after=0.001)
            acked.add(value)

        @reader.subscribe(topic, group="stuck", workers=200, traced=1.0)
        async def stuck(value: str) -> None:
            if int(value) < 90:
                return
            held.add(value)
            await asyncio.sleep(3600)

        stopping = App("reader", broker.url, register=False, grace=0.1)
        stopping.subscriptions[:] = reader.subscriptions
        async with stopping:
            await until(lambda: len(acked) == 101 and len(held) == 11)
            await until(lambda: asyncio.to_thread(lambda: counted(events(topics, topic, "mail"), "finished") == 101))

    asyncio.run(life())
    # Four of the first minute come a second time, as from a producer that did not hear that they were stored.
    for record in [each for each in records(topics, topic) if each.partition == 1][:4]:
        topics.fill(topic, [record.value], partition=1, headers=list(record.headers))
    # Three of the second minute never came, as somebody says whose messages have no name.
    report_of = {"instance": "legacy-0", "sequence": 0, "t": NOON, "within": 3600, "last": True}
    report_of["counts"] = [{"topic": topic, "minute": NOON + MINUTE, "sent": 3}]
    topics.fill("headrace-audit", [json.dumps(report_of).encode()], timestamp=NOON + MINUTE)

    # Five go, all of the first minute, when the audit has begun.
    def while_it_looks(*given: Any) -> Any:
        topics.ask(lambda client: client.admin.delete_records({(topic, 0): 5}))
        return audit_log.stored(*given)

    monkeypatch.setattr(sys.modules["headrace.pipeline.jobs.audit"], "stored", while_it_looks)
    report = run(spark, broker, topic)
    first, second = report.minutes
    assert (first.minute, first.produced, first.failed, first.stored) == (NOON, 60, 0, 59)
    # What the log has given up is not lost, and no more than that is excused.
    assert (first.deleted, first.lost, first.duplicates, first.unreported) == (5, 0, 4, 0)
    assert (second.minute, second.produced, second.stored, second.duplicates) == (NOON + MINUTE, 43, 40, 0)
    assert (second.deleted, second.lost) == (0, 3)
    (total,) = report.topics
    assert (total.produced, total.stored, total.duplicates, total.identified) == (103, 99, 4, 99)
    assert (total.deleted, total.lost) == (5, 3)
    mail, stuck = report.queues
    # 95 of the hundred are there still; the four copies came when nobody read any more.
    assert (mail.queue, mail.stored, mail.watched, mail.delivered, mail.acknowledged) == ("mail", 99, 99, 95, 95)
    assert (mail.undelivered, mail.unacknowledged, mail.dead, mail.passed) == (4, 0, 0, 0)
    # Of the three that came again, number 0 and number 2 were in the partition whose beginning is gone.
    assert mail.redelivered == 1
    assert (stuck.queue, stuck.delivered, stuck.acknowledged) == ("stuck", 95, 85)
    assert (stuck.undelivered, stuck.unacknowledged) == (4, 10)
    assert [(each.queue, each.minute, each.delivered, each.acknowledged) for each in report.queue_minutes] == [
        ("mail", NOON, 55, 55),
        ("mail", NOON + MINUTE, 40, 40),
        ("stuck", NOON, 55, 55),
        ("stuck", NOON + MINUTE, 40, 30),
    ]
    assert report.code == 1
    assert list(report.unknown) == [
        f"{topic}: 5 of 103 message(s) sent are not in the log any more, which has given up at least as many: whether "
        "they were ever there is not seen"
    ]
    assert list(report.wrong) == [
        f"{topic}: 3 of 103 message(s) sent are not in the log",
        f"{topic}: 4 message(s) are in the log more than once",
        f"{topic}/mail: 4 of 99 message(s) were not delivered",
        f"{topic}/stuck: 4 of 99 message(s) were not delivered",
        f"{topic}/stuck: 10 of 99 message(s) were delivered and not acknowledged",
    ]
    assert list(report.notes) == [f"{topic}-0 begins at offset 5, with a message of 2024-01-01 12:00:00Z"]


def test_what_retention_has_taken_is_a_doubt_and_no_loss(
    spark: SparkSession, broker: headrace.Broker, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(2)
    for partition, minute in ((0, 0), (0, 20), (1, 20)):
        topics.fill(topic, [b"x"] * 10, partition=partition, timestamp=NOON + minute * MINUTE + 1)
    topics.ask(lambda client: client.admin.commit("slow", {(topic, 0): 4, (topic, 1): 10}))
    topics.ask(lambda client: client.admin.delete_records({(topic, 0): 10}))
    counts = [{"topic": topic, "minute": NOON + minute * MINUTE, "sent": sent} for minute, sent in ((0, 10), (20, 20))]
    said = {"instance": f"by-{topic}", "sequence": 0, "t": NOON, "within": 0, "last": True, "counts": counts}
    topics.fill("headrace-audit", [json.dumps(said).encode()], timestamp=NOON)

    def code(*more: str) -> tuple[int, dict[str, Any]]:
        where = ("--topics", topic, "--bootstrap", broker.kafka, "--http", "off", "--format", "json")
        span = ("--since", f"@{NOON}", "--until", f"@{NOON + 30 * MINUTE}")
        found, output = command(spark, monkeypatch, "audit", *where, *span, *more)
        return found, json.loads(output.splitlines()[-1])

    found, report = code("--judge", "stored")
    assert (found, report["wrong"], len(report["unknown"])) == (2, [], 1)
    assert [(each["produced"], each["stored"], each["deleted"], each["lost"]) for each in report["minutes"]] == [
        (10, 0, 10, 0),
        (20, 20, 0, 0),
    ]
    # A group that had not come so far has missed them, which nothing else would show.
    found, report = code("--judge", "delivered", "--groups", "slow")
    assert (found, report["wrong"]) == (1, [f"{topic}/slow: 10 of 20 message(s) were not delivered"])
    assert report["unknown"] == [
        f"{topic}/slow: 6 message(s) were deleted before it was done with them, of whatever time"
    ]
    # One more is missing where the log begins long before: that is no work of retention.
    counts[1]["sent"] += 1
    more = {**said, "instance": f"more-{topic}", "counts": [{**counts[1], "sent": 1}]}
    topics.fill("headrace-audit", [json.dumps(more).encode()], timestamp=NOON)
    found, report = code("--judge", "stored", "--max-deleted", "100%")
    assert (found, report["wrong"]) == (1, [f"{topic}: 1 of 31 message(s) sent are not in the log"])
    # What may be deleted is no doubt.
    assert report["unknown"] == []


def test_a_share_is_watched_groups_have_offsets_and_any_producer_can_report(
    spark: SparkSession,
    broker: headrace.Broker,
    topics: Topics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pyarrow.parquet as pq

    topic = topics.create()
    queue(broker, topic, "some", deliveries=0.25)
    queue(broker, topic, "silent")
    began = round(time.time() * 1_000)

    async def life() -> None:
        reader = App("reader", broker.url, register=False)
        done: set[str] = set()

        @reader.subscribe(topic, group="some", traced=0.25)
        async def some(value: str) -> None:
            done.add(value)

        async with reader:
            await until(lambda: len(done) == 400)

    topics.fill(topic, (b'{"id": %d}' % number for number in range(400)))
    asyncio.run(life())
    # A hundred that nobody has read, of which one is there twice.
    topics.fill(topic, (b'{"id": %d}' % number for number in (*range(400, 499), 498)))
    topics.ask(lambda client: client.admin.commit("readers", {(topic, 0): 450}))
    minute = began // MINUTE * MINUTE
    times = {record.offset: record.timestamp for record in records(topics, topic)}
    counts = [{"topic": topic, "minute": each, "sent": sum(at // MINUTE * MINUTE == each for at in times.values())}
              for each in sorted({at // MINUTE * MINUTE for at in times.values()})]  # fmt: skip
    # Seven more were sent than there are.
    counts[-1]["sent"] += 7
    report = {"instance": "legacy-1", "sequence": 4, "t": began, "within": 3600, "counts": counts}
    empty = {**report, "sequence": 6, "counts": []}
    # One is there twice, and number 5 is missing.
    topics.fill("headrace-audit", [json.dumps(each).encode() for each in (report, report, empty)])

    code, said = command(
        spark, monkeypatch, "audit", "--topics", topic, "--bootstrap", broker.kafka, "--http", broker.http,
        "--since", f"@{began}", "--until", f"@{began + 3 * MINUTE}", "--groups", "readers", "--id-field", "id",
        "--format", "json", "--parquet", str(tmp_path / "out"),
    )  # fmt: skip
    found = json.loads(said.splitlines()[-1])
    assert (code, found["code"], found["since"]) == (1, 1, minute)
    (total,) = found["topics"]
    assert (total["produced"], total["stored"], total["lost"], total["unreported"]) == (507, 500, 8, 0)
    assert (total["identified"], total["duplicates"]) == (500, 1)
    assert found["unknown"] == ["1 report(s) of legacy-1 are missing"]
    watched = {offset for offset in range(500) if is_kept(offset, seed_of(topic, 0), threshold(0.25))}
    queues = {each["queue"]: each for each in found["queues"]}
    some = queues["some"]
    assert (some["stored"], some["watched"]) == (500, len(watched))
    assert some["delivered"] == some["acknowledged"] == sum(offset < 400 for offset in watched)
    assert some["undelivered"] == sum(offset >= 400 for offset in watched)
    assert (queues["silent"]["undelivered"], queues["silent"]["delivered"]) == (500, 0)
    readers = queues["readers"]
    assert (readers["watched"], readers["acknowledged"], readers["undelivered"]) == (500, 450, 50)
    assert readers["delivery"] is None
    for event, name in (("delivered", "delivery"), ("finished", "acknowledgement")):
        took = sorted(
            each["t"] - times[offset]
            for each in events(topics, topic, "some")
            if each["event"] == event
            for first, last in each["runs"]
            for offset in range(first, last + 1)
        )
        exact = {f"p{part}": took[-(-len(took) * part // 100) - 1] for part in (50, 95, 99)}
        assert some[name] == exact, name
    assert pq.read_table(tmp_path / "out" / "minutes.parquet").num_rows == len(found["minutes"])
    assert pq.read_table(tmp_path / "out" / "queues.parquet").num_rows == len(found["queue_minutes"])


def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    """The exit code of `headrace pipeline`, and what it prints, with the Spark of all tests."""
    from headrace import logs
    from headrace.cli.pipeline import app, job
    from headrace.pipeline import session

    monkeypatch.setattr(session, "session", lambda *_: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    monkeypatch.setattr(logs, "log_like_a_server", lambda *_: None)
    monkeypatch.setattr(job, "stop_on_signals", Event)
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return done.exit_code, done.stdout


def test_only_what_is_needed_is_read(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    given = {"kafka.bootstrap.servers": topics.address}
    source = parse({**given, "subscribe": topic}, streaming=False)
    scope = audit_log.AuditScope(given, source, (topic,), {topic: 1}, ((topic, 0),), NOON, NOON + MINUTE)
    for id_field, columns in (("", []), ("id", ["value"])):
        frame = audit_log.stored(spark, scope, "headrace-id", id_field)
        plan = frame._jdf.queryExecution().analyzed().toString()
        (read,) = re.findall(r"RelationV2\[(.*?)\]", plan)
        names = [each.split("#")[0].strip() for each in read.split(",")]
        assert names == ["topic", "partition", "offset", "timestamp", "headers", *columns]


def test_an_error_is_no_verdict(spark: SparkSession, broker: headrace.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ("--bootstrap", broker.kafka, "--http", "off")
    assert command(spark, monkeypatch, "audit", "--topics", "nowhere", *where)[0] == 2
    assert command(spark, monkeypatch, "audit", "--topics", "x", "--judge", "luck", *where)[0] == 2
    chosen = ("--option", "startingoffsets=latest")
    assert command(spark, monkeypatch, "audit", "--topics", "x", *chosen, *where)[0] == 2
