"""Tables of topics without a Spark: batches as Spark runs them, and the job that follows topics."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from tests.pipeline.topics import Topics
from tests.waiting import wait_until

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("pyspark")
duckdb = pytest.importorskip("duckdb")

from tests.pipeline.jobs.test_tables import Killed, crash_at  # noqa: E402 -- the packages above may be missing
from tests.pipeline.test_lake_columns import block  # noqa: E402

import headrace.pipeline.jobs  # noqa: E402
from headrace.pipeline import lake_batch  # noqa: E402
from headrace.pipeline.jobs.archive import check as check_archive  # noqa: E402
from headrace.pipeline.jobs.archive import sink_options  # noqa: E402
from headrace.pipeline.lake_batch import LakeTable  # noqa: E402
from headrace.pipeline.maintenance import maintain  # noqa: E402
from headrace.pipeline.tables import State, TableInvalid  # noqa: E402
from headrace.pipeline.target import Target  # noqa: E402

lake: Any = sys.modules["headrace.pipeline.jobs.lake"]

KINDS = ("parquet", "delta", "iceberg")


class Frame:
    """A batch of records, by task, as `foreachBatch` gets it. Each task runs twice, the first time for nobody."""

    def __init__(self, *tasks: Sequence[bytes | None], first: int = 0) -> None:
        self._tasks = []
        for task in tasks:
            rows = block(list(task))
            offsets = pa.array(range(first, first + len(task)), pa.int64())
            self._tasks.append(rows.set_column(rows.schema.get_field_index("offset"), "offset", offsets))
            first += len(task)
        self.runs = 0

    def mapInArrow(self, write: Callable[[Any], Iterator[Any]], schema: str) -> Frame:  # noqa: N802 -- Spark's name
        self._write = write
        return self

    def collect(self) -> list[dict[str, Any]]:
        self.runs += 1
        attempts = [list(self._write(iter([task]))) for task in self._tasks for _ in range(2)]
        return [row for [attempt] in attempts[1::2] for row in attempt.to_pylist()]


def table_at(root: Path, kind: str, topic: str = "t", id: str = "1", **more: Any) -> LakeTable:
    return LakeTable(topic, id, kind, Target(str(root)), **more)


def read(kind: str, root: Path, columns: str = "*", topic: str = "t") -> list[tuple[Any, ...]]:
    """What DuckDB finds, in the order of offsets."""
    if kind == "parquet":
        source = f"read_parquet('{root}/*.parquet', union_by_name=true)"
    else:
        source = "found"
        if kind == "delta":
            import deltalake

            found = deltalake.DeltaTable(str(root)).to_pyarrow_table()
        else:
            from pyiceberg.catalog.sql import SqlCatalog

            catalog = SqlCatalog("headrace", uri=f"sqlite:///{root}/_headrace/catalog.db")
            found = catalog.load_table(f"headrace.{topic}").scan().to_arrow()
        assert found is not None
    rows: list[tuple[Any, ...]] = duckdb.sql(f"SELECT {columns} FROM {source} ORDER BY _partition, _offset").fetchall()
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_grows_with_its_values_and_keeps_what_does_not_fit(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "t"
    table = table_at(root, kind)
    assert table.prepare() == State()
    first = Frame([b'{"id": 1}', b'{"id": 2, "name": "x"}'], [b'{"id": 3, "on": true}', b"text", None])
    table(first, 0)
    assert first.runs == 2
    assert read(kind, root, '_offset, id, name, "on", decode(_value), _error IS NULL') == [
        (0, 1, None, None, None, True),
        (1, 2, "x", None, None, True),
        (2, 3, None, True, None, True),
        (3, None, None, None, "text", False),
        (4, None, None, None, None, True),
    ]
    # A type that is another one, a field in a field, and one in a list.
    table(Frame([b'{"id": "four"}', b'{"id": 5, "o": {"a": 1, "l": [{"x": 1}]}}'], first=5), 1)
    table(Frame([b'{"o": {"b": "c", "l": [{"x": 2, "y": 3}]}}', b'{"id": 8}'], first=7), 2)
    assert read(kind, root, "_offset, id, o.a, o.b, o.l, decode(_value)")[5:] == [
        (5, None, None, None, None, '{"id": "four"}'),
        (6, 5, 1, None, [{"x": 1, "y": None}], None),
        (7, None, None, "c", [{"x": 2, "y": 3}], None),
        (8, 8, None, None, None, None),
    ]
    state = table.open().state()
    assert (state.rows, state.misfits, state.offsets) == (9, 2, {("t", 0): (0, 9)})
    assert read(kind, root, "decode(_key)")[0] == ("k",)
    # A batch that Spark runs again, and one that it plans longer the second time.
    table(Frame([b'{"o": {"b": "c", "l": [{"x": 2, "y": 3}]}}', b'{"id": 8}'], first=7), 2)
    table(Frame([b'{"id": 8}', b'{"id": 9}'], first=8), 0)
    assert [row[0] for row in read(kind, root, "_offset")] == list(range(10))
    (root / "_headrace").mkdir(exist_ok=True)
    with pytest.raises(TableInvalid, match="is the table of a topic, which `lake` writes"):
        check_archive(sink_options(root, kind) | ({"tableName": "headrace.t"} if kind == "iceberg" else {}), None)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_what_a_table_has_grown_by_outlives_its_upkeep(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "t"
    table = table_at(root, kind)
    table.prepare()
    table(Frame([b'{"id": 0, "o": {"a": 1}}']), 0)
    table(Frame([b'{"id": 1, "o": {"b": 2, "a": 3}, "new": "x"}'], first=1), 1)
    table(Frame([b"text"], first=2), 2)
    wanted = read(kind, root, 'id, o.a, o.b, "new", decode(_value), _offset')
    assert wanted[1] == (1, 3, 2, "x", None, 1)
    assert maintain(Target(str(root)), older_than=0).compacted == 1
    assert read(kind, root, 'id, o.a, o.b, "new", decode(_value), _offset') == wanted
    table(Frame([b'{"id": 3, "last": 1}'], first=3), 3)
    assert [row[0] for row in read(kind, root, "id")] == [0, 1, None, 3]


def test_a_table_grows_so_often_for_a_batch_and_again_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_batch, "SAMPLE_ROWS", 1)
    table = table_at(tmp_path / "t", "delta")
    table.prepare()
    many = Frame([b'{"f%d": 1}' % number for number in range(7)])
    table(many, 0)
    assert many.runs == lake_batch.GROWTHS + 1
    assert table.open().state().misfits == 3
    table(Frame([b'{"f6": 1}'], first=7), 1)
    assert read("delta", tmp_path / "t", "f6, decode(_value)")[6:] == [(None, '{"f6": 1}'), (1, None)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_has_the_columns_that_are_declared(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "t"
    declared = pa.struct([("id", pa.int64()), ("seen", pa.timestamp("us", tz="UTC"))])
    table = table_at(root, kind, declared=declared)
    table.prepare()
    table(Frame([b'{"id": 1, "seen": "2026-01-01T00:00:00Z", "other": 1}', b'{"id": "x"}']), 0)
    assert read(kind, root, "id, epoch(seen)::BIGINT, decode(_value)") == [
        (1, 1767225600, None),
        (None, None, '{"id": "x"}'),
    ]
    # Declared anew, with one more; and otherwise than it is there.
    more = replace(table, declared=pa.struct([*declared, ("name", pa.string())]))
    more.prepare()
    more(Frame([b'{"id": 2, "name": "n"}'], first=2), 1)
    assert read(kind, root, "name") == [(None,), (None,), ("n",)]
    with pytest.raises(TableInvalid, match=r"the column id as int64, and lake\.schema as string"):
        replace(table, declared=pa.struct([("id", pa.string())])).prepare()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_another_topic_or_job_is_refused(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "t"
    table = table_at(root, kind)
    table.prepare()
    table(Frame([b'{"id": 1}']), 0)
    table.prepare()
    # Deleted and created again, it begins at offset 0 again.
    with pytest.raises(TableInvalid, match=r"is a table of lake-t-1, not of the topic t as it is now"):
        replace(table, topic_id="2").prepare()


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_dies_anywhere_neither_loses_nor_repeats(tmp_path: Path, kind: str) -> None:
    batches = [[b'{"id": %d}' % number for number in range(10)], [b'{"id": 10, "new": "x"}', b'{"id": 11}']]
    # Some of them: behind one change is before the next.
    step, died = -6, True
    while died:
        step += 7
        root = tmp_path / f"{step}"
        table_at(root, kind).prepare()
        done, died = 0, False
        with pytest.MonkeyPatch.context() as patching:
            crash_at(patching, step)
            try:
                for number, values in enumerate(batches):
                    table_at(root, kind)(Frame(values[::2], values[1::2], first=10 * number), number)
                    done += 1
            except Killed:
                died = True
        # Spark runs the batch again that was not done, and plans nothing else.
        for number in range(done, len(batches)):
            table = table_at(root, kind)
            table.prepare()
            table(Frame(batches[number][::2], batches[number][1::2], first=10 * number), number)
        assert sorted(row[0] for row in read(kind, root, "id")) == list(range(12))
        assert [row[0] for row in read(kind, root, "_offset")] == list(range(12))
        assert table_at(root, kind).open().state().rows == 12
    assert step > 10


# --- the job ---


class Runs:
    """Takes the place of the queries: each run has what the topic has."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.failing: dict[str, Exception] = {}

    def __call__(self, spark: Any, settings: Any, table: LakeTable, *given: Any) -> Any:
        def run() -> State:
            self.topics.append(table.topic)
            if table.topic in self.failing:
                raise self.failing[table.topic]
            return State(rows=len(self.topics))

        run.table, run.lost = table, 0  # type: ignore[attr-defined]
        return run


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with headrace.Broker(data=str(tmp_path_factory.mktemp("data"))) as running:
        yield Topics(running.kafka)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(lake, "TopicRun", made)
    monkeypatch.setattr(lake, "sibling_session", lambda spark: spark)
    monkeypatch.setattr(lake, "DISCOVER_SECONDS", 0.05)
    monkeypatch.setattr(lake, "RETRY_SECONDS", 0.05)
    return made


def follow(topics: Topics, **more: Any) -> tuple[Thread, Event, list[Any]]:
    """The job in a thread, what stops it, and what it has reported."""
    stop, reported = Event(), [{}]

    def run() -> None:
        reported.append(lake.lake(None, bootstrap=topics.address, progress=reported.append, stop=stop, **more))

    thread = Thread(target=run)
    thread.start()
    return thread, stop, reported


def configure(topics: Topics, topic: str, **settings: str) -> None:
    given = {name.replace("_", "."): value for name, value in settings.items() if value}
    unset = [name.replace("_", ".") for name, value in settings.items() if not value]
    topics.ask(lambda client: client.admin.alter_topic_config(topic, given, unset))


def test_topics_are_found_and_let_go_while_the_job_runs(topics: Topics, runs: Runs, tmp_path: Path) -> None:
    first, second = topics.create(lake=f"delta+{tmp_path}/a", lake_freshness_ms="1000"), topics.create()
    topics.fill(first, [b"1"])
    thread, stop, reported = follow(topics)
    try:
        wait_until(lambda: reported[-1].get(first) and reported[-1][first].rows)
        assert second not in reported[-1]
        configure(topics, second, lake=f"iceberg+{tmp_path}/b")
        wait_until(lambda: reported[-1].get(second) and reported[-1][second].rows)
        # One without news is not run; one with news is, within its freshness.
        before = runs.topics.count(second)
        topics.fill(first, [b"2"])
        seen = runs.topics.count(first)
        wait_until(lambda: runs.topics.count(first) > seen)
        assert runs.topics.count(second) == before
        configure(topics, first, lake="")
        wait_until(lambda: first not in reported[-1])
        topics.ask(lambda client: client.admin.delete_topic(second))
        wait_until(lambda: not reported[-1])
    finally:
        stop.set()
        thread.join()


def test_a_table_that_cannot_be_written_holds_up_no_other(
    topics: Topics, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, failing, same, remote = (
        topics.create(lake=f"delta+{tmp_path}/good", lake_freshness_ms="1000"),
        topics.create(lake=f"delta+{tmp_path}/bad", lake_freshness_ms="1000"),
        topics.create(lake=f"delta+{tmp_path}/good"),
        topics.create(lake="delta+s3://bucket/x"),
    )
    runs.failing[failing] = TableInvalid("it is another's")
    thread, stop, reported = follow(topics, pattern="|".join((good, failing, same, remote)))
    try:
        wait_until(lambda: good in reported[-1] and reported[-1][good].rows)
        wait_until(lambda: reported[-1][failing].error == "it is another's")
        assert reported[-1][same].error == f"delta+{tmp_path}/good is the table of {good}, too. Set another place."
        assert "needs a folder for its checkpoint (--checkpoints)" in reported[-1][remote].error
        # It is tried again, until it succeeds.
        before = runs.topics.count(failing)
        wait_until(lambda: runs.topics.count(failing) > before + 1)
        del runs.failing[failing]
        wait_until(lambda: not reported[-1][failing].error)
    finally:
        stop.set()
        thread.join()
    found = lake.lake(None, bootstrap=topics.address, once=True, pattern=f"{good}|{remote}", checkpoints=tmp_path / "c")
    assert not found[good].error
    assert not found[remote].error


def test_a_package_that_is_missing_is_named(topics: Topics, runs: Runs, tmp_path: Path) -> None:
    topic = topics.create(lake=f"delta+{tmp_path}/x")
    with pytest.MonkeyPatch.context() as patching:
        patching.setitem(sys.modules, "headrace.pipeline.delta", None)
        found = lake.lake(None, bootstrap=topics.address, once=True, pattern=topic)
    assert "pip install 'headrace[delta]'" in found[topic].error
    assert not runs.topics


def test_lag_and_age_are_reported(topics: Topics, runs: Runs, tmp_path: Path) -> None:
    topic = topics.create(lake=f"delta+{tmp_path}/x", lake_freshness_ms="1000")
    topics.fill(topic, [b"1", b"2"])
    runs.failing[topic] = TableInvalid("not yet")
    thread, stop, reported = follow(topics, pattern=topic)
    try:
        wait_until(lambda: topic in reported[-1] and reported[-1][topic].lag == 2)
        wait_until(lambda: reported[-1][topic].stale_seconds > 0.5)
        del runs.failing[topic]
        wait_until(lambda: reported[-1][topic].lag == 0)
    finally:
        stop.set()
        thread.join()
    assert json.dumps({name: getattr(reported[-1][topic], name) for name in ("rows", "lag", "lost", "stale_seconds")})
