"""The audit's comparisons and verdicts, and which messages are watched: everything that needs no Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.topics import Topics

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

import headrace  # noqa: E402 -- needs pyarrow
from headrace.errors import HeadraceError  # noqa: E402
from headrace.format.sampling import is_kept, seed_of, threshold  # noqa: E402
from headrace.pipeline.jobs import audit_log  # noqa: E402
from headrace.pipeline.jobs.audit_queues import asked_over_http, mark_watched, watched_here  # noqa: E402
from headrace.pipeline.jobs.audit_report import (  # noqa: E402
    JUDGED,
    GivenUp,
    Instance,
    Kept,
    Latency,
    Minute,
    QueueMinute,
    Report,
    Sent,
    Threshold,
    Watched,
    by_queue,
    compared,
    doubts,
    judged,
    totals,
    without_deleted,
)
from headrace.pipeline.jobs.http_door import HttpDoor  # noqa: E402
from headrace.pipeline.options import parse  # noqa: E402


def kept(instance: str, stored: int, distinct: int | None = None, minute: int = 0, topic: str = "t") -> Kept:
    return Kept(topic, minute, instance, stored, stored if distinct is None else distinct, stored)


def sent(instance: str, count: int, failed: int = 0, *, ids: bool = True, minute: int = 0) -> Sent:
    return Sent("t", minute, instance, ids, count, failed)


def only(kept: list[Kept], sent: list[Sent]) -> tuple[int | None, int, int, int, int]:
    (found,) = compared(kept, sent, ["t"])
    return found.produced, found.stored, found.lost, found.duplicates, found.unreported


def test_what_compaction_removed_from_a_folder_is_deleted_and_not_lost(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with headrace.Broker(data=str(data)) as broker:
        topics = Topics(broker.kafka)
        latest, both, plain = (
            topics.create(cleanup_policy=policy) for policy in ("compact", "compact,delete", "delete")
        )
        for topic in (latest, both, plain):
            topics.fill(topic, [b"x"] * 3, key=b"k")
    names = (latest, both, plain)
    source = parse({"path": str(data), "subscribe": ",".join(names)}, streaming=False)
    scope = audit_log.AuditScope({}, source, names, dict.fromkeys(names, 1), tuple((each, 0) for each in names), 0, 1)
    gone = audit_log.given_up(None, scope, names)  # type: ignore[arg-type]
    assert gone.keys() == {latest, both}
    minutes = [Minute(topic, 0, 3, 0, 1, 2, 0, 0, 0, 0) for topic in names]
    found = {each.topic: (each.lost, each.deleted) for each in without_deleted(minutes, gone)}
    assert found == {latest: (0, 2), both: (0, 2), plain: (2, 0)}


def test_a_loss_of_one_is_not_hidden_by_what_another_sent() -> None:
    assert only([kept("a", 10), kept("b", 10)], [sent("a", 10), sent("b", 10)]) == (20, 20, 0, 0, 0)
    assert only([kept("a", 7), kept("b", 13)], [sent("a", 10), sent("b", 10)]) == (20, 20, 3, 0, 3)
    # A copy does not stand in for one that is missing.
    assert only([kept("a", 10, 8)], [sent("a", 10)]) == (10, 10, 2, 2, 0)


def test_one_that_failed_may_be_there_or_not() -> None:
    for there in (10, 11, 12):
        assert only([kept("a", there)], [sent("a", 10, 2)]) == (10, there, 0, 0, 0)
    assert only([kept("a", 13)], [sent("a", 10, 2)]) == (10, 13, 0, 0, 1)
    assert only([kept("a", 9)], [sent("a", 10, 2)]) == (10, 9, 1, 0, 0)


def test_producers_that_leave_no_name_are_compared_together() -> None:
    others = [sent("x", 5, ids=False), sent("y", 5, ids=False)]
    assert only([kept("", 9), kept("a", 3)], [*others, sent("a", 3)]) == (13, 12, 1, 0, 0)
    # One that has a name and never reported is like those that have none.
    assert only([kept("", 8), kept("killed", 4)], others) == (10, 12, 0, 0, 2)


def test_minutes_without_a_report_or_without_a_message_count() -> None:
    minutes = compared([kept("a", 5, minute=60)], [sent("a", 4, minute=120)], ["t"])
    assert [(each.minute, each.produced, each.stored, each.lost, each.unreported) for each in minutes] == [
        (60, 0, 5, 0, 5),
        (120, 4, 0, 4, 0),
    ]
    (total,) = totals(minutes, ["t"])
    assert (total.produced, total.stored, total.lost, total.unreported) == (4, 5, 4, 5)
    # Nobody has reported anything: that is not zero.
    assert compared([kept("a", 5)], [], ["t"])[0].produced is None
    assert totals([], ["t"]) == [Minute("t", None, None, 0, 0, 0, 0, 0, 0)]


def without(given_up: GivenUp | None, *minutes: tuple[int, int]) -> list[tuple[int, int]]:
    """Minutes with so many lost, as deleted and lost."""
    given = [Minute("t", minute, 100, 0, 0, lost, 0, 0, 0) for minute, lost in minutes]
    found = without_deleted(given, {"t": given_up} if given_up else {})
    return [(each.deleted, each.lost) for each in found]


def test_what_the_log_has_given_up_is_not_lost() -> None:
    assert without(None, (0, 5)) == [(0, 5)]
    # No more can have gone than offsets did, and the oldest go first.
    assert without(GivenUp(7, None, ()), (0, 5), (60, 4), (120, 1)) == [(5, 0), (2, 2), (0, 1)]
    # What is younger than the oldest that is left did not go.
    assert without(GivenUp(100, 90, ()), (0, 5), (60, 4), (90, 1), (120, 1)) == [(5, 0), (4, 0), (0, 1), (0, 1)]
    assert without(GivenUp(None, None, ()), (0, 5), (60, 4)) == [(5, 0), (4, 0)]
    # Another topic's log says nothing of this one's.
    other = [Minute("u", 0, 9, 0, 0, 9, 0, 0, 0)]
    assert without_deleted(other, {"t": GivenUp(None, None, ())}) == other
    assert totals(without_deleted([Minute("t", 0, 9, 0, 0, 9, 0, 0, 0)], {"t": GivenUp(4, None, ())}), ["t"]) == [
        Minute("t", None, 9, 0, 0, 5, 0, 0, 0, 4)
    ]


class Log:
    """Where partitions begin and end, and of when their first messages are, as a broker would say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first: dict[tuple[str, int], int] = {}
        self.times: dict[tuple[str, int], int] = {}
        self.compacted: set[str] = set()
        last = dict.fromkeys([("t", 0), ("t", 1), ("u", 0)], 1_000)
        monkeypatch.setattr(audit_log, "ask", lambda *_: ({**dict.fromkeys(last, 0), **self.first}, last))
        monkeypatch.setattr(audit_log, "_compacted", lambda *_: self.compacted)
        monkeypatch.setattr(audit_log, "oldest_times", self._oldest)

    def _oldest(self, spark: Any, scope: Any, bounds: dict[tuple[str, int], tuple[int, int]]) -> dict[Any, int]:
        return {each: self.times[each] for each in bounds if each in self.times}

    def scope(self, since: int = 0, until: int = 10_000) -> audit_log.AuditScope:
        partitions = (("t", 0), ("t", 1), ("u", 0))
        source: Any = None
        return audit_log.AuditScope({}, source, ("t", "u"), {"t": 2, "u": 1}, partitions, since, until)


def test_what_has_gone_is_known_by_where_the_log_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    log, spark = Log(monkeypatch), Any
    assert audit_log.given_up(spark, log.scope(), ["t", "u"]) == {}
    log.first, log.times = {("t", 0): 5, ("t", 1): 7}, {("t", 0): 100, ("t", 1): 300}
    found = audit_log.given_up(spark, log.scope(), ["t", "u"])
    assert [(topic, each.offsets, each.until) for topic, each in found.items()] == [("t", 12, 300 + audit_log.SKEW_MS)]
    assert found["t"].words[0] == "t-0 begins at offset 5, with a message of 1970-01-01 00:00:00Z"
    # Of one that has nothing left, anything may have gone.
    log.times.pop(("t", 1))
    assert audit_log.given_up(spark, log.scope(), ["t"])["t"].until is None
    # Compaction takes from the midst.
    log.compacted = {"u"}
    assert audit_log.given_up(spark, log.scope(), ["u"])["u"].offsets is None


def test_events_that_are_deleted_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log, spark = Log(monkeypatch), Any
    assert audit_log.told_since(spark, log.scope(since=50), "u") == 0
    log.first, log.times = {("u", 0): 5}, {("u", 0): 100}
    assert audit_log.told_since(spark, log.scope(since=50), "u") == 100
    assert audit_log.told_since(spark, log.scope(since=200), "u") == 0
    log.times.clear()
    assert audit_log.told_since(spark, log.scope(since=200, until=400), "u") == 400


def test_reports_that_are_missing_are_seen() -> None:
    whole = Instance("a", 3, 7, 5, heard_ms=900, within_ms=50, ended=False)
    assert doubts([whole], 950) == []
    assert doubts([whole], 951) == ["a stopped reporting without a last report: it was killed, or is cut off"]
    assert doubts([Instance("a", 3, 7, 5, 100, 50, ended=True)], 10_000) == []
    assert doubts([Instance("a", 3, 7, 4, 900, 50, ended=True)], 900) == ["1 report(s) of a are missing"]


def of_queue(**counts: int) -> QueueMinute:
    values = dict.fromkeys(
        ("delivered", "redelivered", "acknowledged", "dead", "passed", "undelivered", "unacknowledged"), 0
    )
    return QueueMinute("t", "q", None, 100, 100, **{**values, **counts}, delivery=None, acknowledgement=None)


WELL = Minute("t", None, 100, 0, 100, 0, 0, 0, 100)


def verdict(total: Minute, queue: QueueMinute | None = None, silent: tuple[str, ...] = (), **more: Any) -> int:
    given: dict[str, Any] = {"judge": JUDGED, "max_loss": Threshold(), "max_duplicates": Threshold(), **more}
    filtered, placed = given.pop("filtered", False), given.pop("placed", True)
    queue = queue or of_queue(delivered=100, acknowledged=100)
    wrong, unknown = judged([total], [queue], [Watched("t", "q", 1.0, filtered, placed)], silent, **given)
    return Report(0, 0, (total,), (), (), (), (), tuple(wrong), tuple(unknown), ()).code


def test_verdicts() -> None:
    def changed(**counts: Any) -> Minute:
        return Minute(**{**vars(WELL), **counts})

    assert verdict(WELL) == 0
    assert verdict(changed(lost=1)) == 1
    assert verdict(changed(lost=1), max_loss=Threshold.parse("1%")) == 0
    assert verdict(changed(lost=2), max_loss=Threshold.parse("1%")) == 1
    assert verdict(changed(lost=2), max_loss=Threshold.parse("2")) == 0
    assert verdict(changed(lost=2), judge=["duplicates"]) == 0
    assert verdict(changed(duplicates=1)) == 1
    assert verdict(changed(duplicates=1), max_duplicates=Threshold.parse("1")) == 0
    assert verdict(WELL, of_queue(undelivered=1)) == 1
    assert verdict(WELL, of_queue(unacknowledged=1)) == 1
    assert verdict(WELL, of_queue(unacknowledged=1), judge=["stored", "duplicates", "delivered"]) == 0
    assert verdict(WELL, of_queue(dead=5, passed=5, redelivered=5)) == 0
    # What cannot be said is no loss, and not well either.
    assert verdict(changed(produced=None)) == 2
    assert verdict(changed(unreported=1)) == 2
    assert verdict(changed(identified=99)) == 2
    assert verdict(WELL, silent=("a report is missing",)) == 2
    assert verdict(WELL, of_queue(undelivered=1), filtered=True) == 2
    assert verdict(changed(produced=None, identified=0), judge=["delivered"]) == 0
    # Nor is what the log had and gave up, or may have had.
    assert verdict(changed(deleted=1)) == 2
    assert verdict(changed(deleted=1), max_deleted=Threshold.parse("1")) == 0
    assert verdict(changed(deleted=1), judge=["duplicates"]) == 0
    assert verdict(changed(deleted=50, lost=1), max_deleted=Threshold.parse("100%")) == 1
    # Events that are deleted cannot tell of a delivery; a position can.
    assert verdict(WELL, of_queue(undelivered=1), told_since=5, placed=False) == 2
    assert verdict(WELL, of_queue(undelivered=1), told_since=5) == 1
    assert verdict(WELL, of_queue(undelivered=1), placed=False) == 1
    # What is wrong is wrong, whatever else is not known.
    assert verdict(changed(unreported=1, lost=1)) == 1


def test_a_topic_that_nobody_reads_cannot_be_judged() -> None:
    wrong, unknown = judged([WELL], [], [], [], max_loss=Threshold(), max_duplicates=Threshold())
    assert (wrong, unknown) == ([], ["t: no queue and no consumer group of it is looked at"])


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "101%", "-1%", "%"])
def test_what_is_no_threshold_is_refused(text: str) -> None:
    with pytest.raises(HeadraceError, match="is not a threshold"):
        Threshold.parse(text)


def test_a_report_can_be_written_down() -> None:
    row = {**vars(of_queue(delivered=3)), "minute": 60, "delivery": [1, 2, 3]}
    whole, minutes = by_queue([row, {**row, "minute": None}])
    assert minutes[0].delivery == whole[0].delivery == Latency(1, 2, 3)
    report = Report(0, 60, (WELL,), (WELL,), (Watched("t", "q", None),), tuple(whole), tuple(minutes), (), ("why",), ())
    said = json.loads(json.dumps(report.as_json()))
    assert (said["code"], said["unknown"], said["queues"][0]["delivery"]["p95"]) == (2, ["why"], 2)
    flat = report.tables()["queues"][0]
    assert (flat["delivery_p99"], flat["acknowledgement_p50"]) == (3, None)


KEYS = st.one_of(st.none(), st.binary(max_size=3))
PARENTS = st.one_of(st.none(), st.integers(0, 9).map(lambda trace: b"00-%032x-%016x-01" % (trace, 1)))
TIMES = st.one_of(st.none(), st.just(b"1"))


def block_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Messages as they are given to be marked."""
    schema = pa.schema(
        [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("share", pa.float64()),
         ("key", pa.binary()), ("traceparent", pa.binary()), ("headrace-redriven", pa.binary())]
    )  # fmt: skip
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), KEYS, PARENTS, TIMES), max_size=100),
    st.sampled_from([0.0, 0.01, 0.5, 0.99]),
)
def test_the_watched_are_those_that_the_broker_chooses(messages: list[tuple[Any, ...]], share: float) -> None:
    seed, below = seed_of("orders", 3), threshold(share)
    block = block_of([("orders", 3, offset, share, *by) for offset, *by in messages])
    marked = mark_watched(block)
    assert marked.schema.names == ["topic", "partition", "offset", "share", "watched"]
    assert marked.column("watched").to_pylist() == [
        is_kept(
            offset,
            seed,
            below,
            key,
            [
                (name, value)
                for name, value in (("traceparent", parent), ("headrace-redriven", redriven))
                if value is not None
            ],
        )
        for offset, key, parent, redriven in messages
    ]


def test_each_queue_has_its_own_share() -> None:
    offsets = list(range(500))
    rows = [("a", 0, offset, share, None, None, None) for share in (None, 1.0, 0.2, 0.5) for offset in offsets]
    rows += [("b", 1, offset, 0.2, None, None, None) for offset in offsets]
    marks = mark_watched(block_of(rows)).column("watched").to_pylist()
    assert all(marks[:1_000])

    def chosen(topic: str, partition: int, share: float) -> list[bool]:
        return [is_kept(offset, seed_of(topic, partition), threshold(share)) for offset in offsets]

    assert marks[1_000:] == [*chosen("a", 0, 0.2), *chosen("a", 0, 0.5), *chosen("b", 1, 0.2)]


@pytest.fixture
def door() -> Iterator[tuple[str, dict[str, Any]]]:
    """An HTTP door with answers by path."""
    answers: dict[str, Any] = {}

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in answers else 404)
            self.end_headers()
            self.wfile.write(json.dumps(answers.get(self.path, {"error": "UnknownTopic"})).encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Door) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", answers
        server.shutdown()


def door_at(address: str) -> HttpDoor:
    return HttpDoor(address, parse({"kafka.bootstrap.servers": "-:1", "subscribe": "-", "user": ""}, streaming=False))


def test_queues_are_asked_for(door: tuple[str, dict[str, Any]]) -> None:
    address, answers = door
    answers["/v1/topics/t/queues"] = {"queues": [{"queue": "mail#1"}, {"queue": "redrive"}, {"queue": "silent"}]}
    partitions = [{"partition": 0, "settled_below": 7, "end": 9}]
    answers["/v1/topics/t/queues/mail%231"] = {
        "queue": "mail#1", "settings": {"deliveries": 0.5, "filter": "a = b"}, "partitions": partitions, "lost": 4,
    }  # fmt: skip
    answers["/v1/topics/t/queues/silent"] = {
        "queue": "silent", "settings": {"deliveries": 0, "filter": ""}, "partitions": partitions,
    }  # fmt: skip
    found = asked_over_http(door_at(address), ["t"])
    assert [each.watched for each in found] == [Watched("t", "mail#1", 0.5, True), Watched("t", "silent", None, False)]
    assert (found[0].settled, found[0].lost) == ({0: 7}, 4)
    with pytest.raises(HeadraceError, match="UnknownTopic"):
        asked_over_http(door_at(address), ["nowhere"])
    with pytest.raises(HeadraceError, match="no HTTP door answers"):
        asked_over_http(door_at("127.0.0.1:1"), ["t"])


def test_shares_can_be_said() -> None:
    assert [each.watched for each in watched_here(["t"], {"q": 0.1})] == [Watched("t", "q", 0.1, placed=False)]
    with pytest.raises(HeadraceError, match="cannot watch a share of 2"):
        watched_here(["t"], {"q": 2})
