"""The archive's rounds and commits, with tasks that run here instead of on Spark."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.topics import Topics

pa = pytest.importorskip("pyarrow")

import pyarrow.dataset as ds  # noqa: E402 -- needs pyarrow

import headrace  # noqa: E402
from headrace.client.errors import ConnectionLost, RequestTimeout  # noqa: E402
from headrace.pipeline import manifest  # noqa: E402
from headrace.pipeline.jobs import archive, parquet, rounds  # noqa: E402
from headrace.pipeline.jobs.archive import Archived, Archiver, share_out  # noqa: E402
from headrace.pipeline.manifest import ArchiveInUse, ArchiveInvalid, Manifest, StagedFile  # noqa: E402
from headrace.pipeline.options import parse  # noqa: E402
from headrace.pipeline.origin import DataLost, Range  # noqa: E402

HOUR = 3_600_000
NOON = 1_704_110_400_000  # 2024-01-01 12:00 UTC


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[headrace.Broker]:
    with headrace.Broker(data=str(tmp_path_factory.mktemp("data"))) as running:
        yield running


@pytest.fixture(scope="module")
def topics(broker: headrace.Broker) -> Topics:
    return Topics(broker.kafka)


def here(write: Callable[[Sequence[Range]], list[StagedFile]], tasks: Sequence[Sequence[Range]]) -> list[StagedFile]:
    """Every task is run twice, and the first time is for nobody."""
    for each in tasks:
        write(each)
    return [file for each in tasks for file in write(each)]


def archiver(
    topics: Topics, root: Path, topic: str, file_bytes: int = 1 << 20, table: str = "parquet", **options: str
) -> Archiver:
    given = {"kafka.bootstrap.servers": topics.address, "subscribe": topic, "includeHeaders": "true", **options}
    return Archiver(parse(given, streaming=False), root, f"archive-{topic}", file_bytes, here, table)


def drain(*arguments: Any, **options: Any) -> Archived:
    with archiver(*arguments, **options) as job:
        return job.run(None, lambda _: None, Event())


def rows(root: Path) -> list[dict[str, Any]]:
    """What a reader finds that lists the folder and knows nothing of the manifest."""
    found = ds.dataset(root, format="parquet", partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def values(root: Path) -> list[int]:
    return [int(row["value"]) for row in rows(root)]


def test_records_are_filed_by_topic_date_and_hour(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(2)
    topics.fill(topic, [b"0", b"1"], key=b"k", headers=[("h", b"x")], timestamp=NOON)
    topics.fill(topic, [b"2"], timestamp=NOON + HOUR)
    topics.fill(topic, [b"3"], partition=1, timestamp=NOON - 13 * HOUR)
    done = drain(topics, tmp_path / "out", topic)
    assert (done.rounds, done.rows, done.files, done.lag) == (1, 4, 3, 0)
    places = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.parquet"))
    assert places == [
        f"topic={topic}/date=2023-12-31/hour=23/0000000001-00000.parquet",
        f"topic={topic}/date=2024-01-01/hour=12/0000000001-00001.parquet",
        f"topic={topic}/date=2024-01-01/hour=13/0000000001-00002.parquet",
    ]
    first = rows(tmp_path / "out")[0]
    assert (first["value"], first["key"], first["partition"], first["offset"]) == (b"0", b"k", 0, 0)
    assert (first["topic"], first["date"], first["hour"]) == (topic, "2024-01-01", 12)
    assert first["headers"] == [{"key": "h", "value": b"x"}]
    # Another run takes what is new, and the group says how far it is.
    topics.fill(topic, [b"4"], timestamp=NOON)
    assert drain(topics, tmp_path / "out", topic).rows == 1
    assert drain(topics, tmp_path / "out", topic).rounds == 0
    assert values(tmp_path / "out") == [0, 1, 2, 4, 3]
    assert topics.committed(f"archive-{topic}") == {(topic, 0): 4, (topic, 1): 1}


def test_a_record_with_a_time_that_no_date_has_does_not_stop_an_archive(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(message_timestamp_after_max_ms=str((1 << 63) - 1))
    for number, time in enumerate((NOON, NOON * 1_000, NOON * 1_001, 1)):
        topics.fill(topic, [b"%d" % number], timestamp=time)
    assert drain(topics, tmp_path / "out", topic).rows == 4
    names = ["value", "date", "hour", "timestamp"]
    table = ds.dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table(columns=names).sort_by("value")
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [
        NOON * 1_000, NOON * 1_000_000, NOON * 1_001_000, 1_000,
    ]  # fmt: skip
    assert list(zip(*(table.column(name).to_pylist() for name in names[1:3]), strict=True)) == [
        ("2024-01-01", 12), ("9999-12-31", 23), ("9999-12-31", 23), ("1970-01-01", 0),
    ]  # fmt: skip


def test_files_are_rolled_by_size_and_rounds_are_bounded(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create()
    topics.fill(topic, (b"%d " % number + os.urandom(900) for number in range(2_000)), timestamp=NOON)
    monkeypatch.setattr(parquet, "GATHERED_BYTES", 20_000)
    done = drain(topics, tmp_path / "out", topic, file_bytes=50_000)
    assert done.rounds >= 2
    sizes = [path.stat().st_size for path in (tmp_path / "out").rglob("*.parquet")]
    assert len(sizes) == done.files
    assert sum(sizes) == done.bytes
    assert sorted(sizes)[len(sizes) // 2] > 25_000
    assert max(sizes) < 200_000
    assert [int(row["value"].split()[0]) for row in rows(tmp_path / "out")] == list(range(2_000))


class Killed(BaseException):
    """The process is gone from here on."""


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], None]:
    """Let the process die at its `step`th change of the file system, before or after it; returned is what counts one
    step more."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            raise Killed

    mine = get_ident()

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            # The broker is in this process, too, and is not to die.
            if get_ident() != mine:
                return real(*arguments, **named)
            count()
            found = real(*arguments, **named)
            count()
            return found

        return call

    monkeypatch.setattr(manifest.os, "link", dying(os.link))
    monkeypatch.setattr(manifest.os, "rename", dying(os.rename))
    monkeypatch.setattr(manifest.os, "fsync", dying(os.fsync))
    monkeypatch.setattr(manifest.shutil, "rmtree", dying(shutil.rmtree))
    monkeypatch.setattr(Archiver, "_follow", dying(Archiver._follow))
    return count


def test_a_job_that_dies_anywhere_neither_loses_nor_repeats(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    topics.fill(topic, (b"%d" % number for number in range(20)), timestamp=NOON)
    topics.fill(topic, (b"%d" % number for number in range(20, 40)), timestamp=NOON + HOUR)
    step, died = 0, True
    while died:
        step += 1
        root = tmp_path / f"{step}"
        with pytest.MonkeyPatch.context() as patching:
            crash_at(patching, step)
            try:
                drain(topics, root, topic)
                died = False
            except Killed:
                pass
        # Nobody ever sees a record twice, nor a file that is not committed.
        seen = values(root) if any(root.rglob("topic=*/**/*.parquet")) else []
        assert len(seen) == len(set(seen))
        drain(topics, root, topic)
        assert values(root) == list(range(40))
        assert not any((root / "_headrace" / "staging").iterdir())
        assert topics.committed(f"archive-{topic}") == {(topic, 0): 40}
    assert step > 20


def test_two_writers_do_not_share_an_archive(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    topics.fill(topic, [b"1"])
    with archiver(topics, tmp_path / "out", topic), pytest.raises(ArchiveInUse, match="one archive has one writer"):
        drain(topics, tmp_path / "out", topic)
    # Where locks mean nothing, as on some shared file systems, the number of the commit decides.
    one, two = Manifest(tmp_path / "other"), Manifest(tmp_path / "other")
    one.open()
    one.close()
    two.open()
    one.commit([], {("t", 0): 0}, {("t", 0): 5}, 1)
    with pytest.raises(ArchiveInUse, match="commit 1"):
        two.commit([], {("t", 0): 0}, {("t", 0): 9}, 1)
    two.close()
    with pytest.raises(ArchiveInvalid, match="not empty"):
        drain(topics, tmp_path, topic)


def test_what_retention_took_first_is_said(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    topics.fill(topic, (b"%d" % number for number in range(10)))
    drain(topics, tmp_path / "out", topic)
    topics.fill(topic, (b"%d" % number for number in range(10, 20)))
    topics.ask(lambda client: client.admin.delete_records({(topic, 0): 15}))
    with pytest.raises(DataLost, match="10 was to be archived next, and the log begins at 15"):
        drain(topics, tmp_path / "out", topic)
    drain(topics, tmp_path / "out", topic, failOnDataLoss="false")
    assert values(tmp_path / "out") == [*range(10), *range(15, 20)]


def test_a_job_that_goes_on_takes_what_comes(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    stop = Event()
    seen: list[Archived] = []

    def progress(archived: Archived) -> None:
        seen.append(archived)
        if archived.rows == len(seen_rows):
            if archived.rows >= 3:
                stop.set()
            else:
                seen_rows.append(1)
                topics.fill(topic, [b"%d" % archived.rows])

    seen_rows: list[int] = []
    with archiver(topics, tmp_path / "out", topic) as job:
        done = job.run(0.05, progress, stop)
    assert (done.rows, values(tmp_path / "out")) == (3, [0, 1, 2])


def test_a_broker_that_is_away_for_long_does_not_end_a_job_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["headrace.pipeline.jobs.archive"], "on_spark", lambda _, *given: here(*given))
    data = str(tmp_path / "data")
    with ExitStack() as life, ExitStack() as running:
        broker = running.enter_context(headrace.Broker(data=data))
        topics = Topics(broker.kafka)
        topic = topics.create()
        topics.fill(topic, [b"0", b"1"])

        class Waiting(Event):
            """The broker comes back while the job waits for it."""

            def wait(self, timeout: float | None = None) -> bool:
                if timeout != rounds.AWAY_SECONDS:
                    return super().wait(timeout)
                life.enter_context(headrace.Broker(data=data, kafka=topics.address))
                topics.fill(topic, [b"2"])
                return False

        stop = Waiting()

        def progress(archived: Archived) -> None:
            if archived.rows == 2:
                running.close()
            elif archived.rows == 3:
                stop.set()

        given = {"topics": [topic], "bootstrap": topics.address, "options": {"timeout": "1"}, "progress": progress}
        done = archive(None, to=tmp_path / "out", every=0.05, stop=stop, **given)  # type: ignore[arg-type]
        # What has an end does not wait for long: whoever started it wants to know.
        life.close()
        with pytest.raises(ConnectionLost):
            archive(None, to=tmp_path / "out", **given)  # type: ignore[arg-type]
    assert (done.rows, done.rounds, values(tmp_path / "out")) == (3, 2, [0, 1, 2])


def test_an_outage_is_told_from_other_errors() -> None:
    away = "pyspark...\n  File x\nheadrace.client.errors.ConnectionLost: no broker can be reached\n\tat org.apache"
    assert [rounds.is_outage(each) for each in (RuntimeError(away), RequestTimeout("x"), DataLost("x"))] == [
        True,
        True,
        False,
    ]


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=20), st.integers(0, 10_000), st.integers(1, 5_000))
def test_tasks_cover_what_a_round_takes_once(lengths: list[int], waiting: int, file_bytes: int) -> None:
    ranges = [Range("t", index, 100, 100 + length) for index, length in enumerate(lengths) if length]
    if not ranges:
        return
    taken, tasks = share_out(ranges, waiting, file_bytes)
    assert taken
    whole = sorted((each.partition, offset) for each in taken for offset in range(each.start, each.end))
    assert sorted((p.partition, o) for task in tasks for p in task for o in range(p.start, p.end)) == whole
    assert all(task for task in tasks)
