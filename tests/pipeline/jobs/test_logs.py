"""The batches of `logs`, with a query that runs here instead of on Spark."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.jobs.dying_logs import BEFORE, BEHIND, WITHIN
from tests.pipeline.test_sink import contents
from tests.pipeline.topics import Topics

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import numpy as np  # noqa: E402 -- comes with pyarrow
import pyarrow.parquet as pq  # noqa: E402
from tests.pipeline.jobs.log_batches import job_of  # noqa: E402
from tests.pipeline.micro_batches import commit_before  # noqa: E402

import headrace  # noqa: E402
from headrace.errors import HeadraceError  # noqa: E402
from headrace.pipeline.jobs.logs import counts, result_sink, results_folder  # noqa: E402
from headrace.pipeline.jobs.logs.counts import NEVER, Windows  # noqa: E402
from headrace.pipeline.jobs.logs.fields import Fields  # noqa: E402
from headrace.pipeline.jobs.logs.job import Logs  # noqa: E402
from headrace.pipeline.jobs.logs.lines import LineFormat  # noqa: E402
from headrace.pipeline.manifest import ArchiveInUse  # noqa: E402
from headrace.pipeline.options import InvalidOption  # noqa: E402

NOON = 1_704_110_400_000  # 2024-01-01 12:00 UTC
MINUTE = 60_000


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with headrace.Broker(data=str(tmp_path_factory.mktemp("data"))) as broker:
        yield Topics(broker.kafka)


def line(ms: int, service: str = "api", level: str = "info", **more: object) -> bytes:
    return json.dumps({"ts": NOON + ms, "service": service, "level": level, **more}).encode()


def drain(topics: Topics, root: Path, topic: str, **options: Any) -> Logs:
    return job_of(topics.address, topic, root, **options).run(None, lambda _: None, Event())


def found(root: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """The windows, by their minute and service."""
    if not (root / "windows").exists():
        return {}
    rows = pq.read_table(root / "windows").to_pylist()
    by_place = {(int(row["window"].timestamp() * 1000 - NOON) // MINUTE, row["service"]): row for row in rows}
    assert len(by_place) == len(rows), "a window was given out twice"
    return by_place


def late(root: Path) -> Counter[int]:
    rows = pq.read_table(root / "late").to_pylist() if (root / "late").exists() else []
    counted: Counter[int] = Counter()
    for row in rows:
        counted[int(row["window"].timestamp() * 1000 - NOON) // MINUTE] += row["lines"]
    return counted


def test_windows_are_counted_and_the_rest_is_kept_aside(topics: Topics, tmp_path: Path) -> None:
    topic, into = topics.create(), topics.create()
    lines = [
        *(line(number * 100, duration_ms=number + 1) for number in range(100)),
        *(line(20_000, level="error", message=f"no room for {number}", duration_ms=1) for number in range(25)),
        line(30_000, "web", "fatal", message="down"),
        b"nonsense",
        line(4 * MINUTE - 1, "web"),
        line(2 * MINUTE),  # its window ends a millisecond later than is too late
        line(MINUTE),
        line(0),
    ]
    topics.fill(topic, lines, timestamp=NOON + 5 * MINUTE)
    done = drain(topics, tmp_path / "out", topic, into=into, group="watcher")
    assert (done.rows, done.parsed, done.broken, done.late, done.errors) == (131, 128, 1, 2, 26)
    assert (done.windows, done.open, done.lag) == (4, 0, 0)
    rows = found(tmp_path / "out")
    assert sorted(rows) == [(0, "api"), (0, "web"), (2, "api"), (3, "web")]
    api = rows[0, "api"]
    assert (api["lines"], api["errors"], api["error_rate"], api["timed"]) == (125, 25, 0.2, 125)
    assert dict(api["levels"]) == {"INFO": 100, "ERROR": 25}
    assert api["top_errors"] == [{"message": "no room for <n>", "lines": 25, "example": "no room for 0"}]
    assert (api["p50"], api["p95"], api["p99"]) == pytest.approx((38, 94, 99), rel=0.01)
    assert api["slowest"] == 100
    assert rows[0, "web"]["p50"] is None
    assert late(tmp_path / "out") == {0: 1, 1: 1}
    aside = pq.read_table(tmp_path / "out" / "aside").to_pylist()
    assert [(row["offset"], row["reason"]) for row in aside] == [
        (126, "it is of no known format"),
        (129, "late"),
        (130, "late"),
    ]
    assert aside[0]["value"] == b"nonsense"
    told = {record.key.decode(): json.loads(record.value) for record in contents(topics, into)}
    assert len(told) == 6
    assert told["2024-01-01T12:00:00Z/api"]["levels"] == {"INFO": 100, "ERROR": 25}
    assert told["2024-01-01T12:00:00Z/api/late"] == {
        "window": "2024-01-01T12:00:00Z", "service": "api", "late": 1, "levels": {"INFO": 1},
    }  # fmt: skip
    assert topics.committed("watcher") == {(topic, 0): 131}


def test_open_windows_go_on_in_the_next_run(topics: Topics, tmp_path: Path) -> None:
    topic, root = topics.create(2), tmp_path / "out"
    topics.fill(topic, [line(0), line(MINUTE), line(3 * MINUTE)], timestamp=NOON)
    topics.fill(topic, [line(2 * MINUTE)], partition=1, timestamp=NOON)
    done = drain(topics, root, topic, keep_open=True)
    # The other partition has come to the second minute, less the minute that lines may be late.
    assert (sorted(found(root)), done.open) == ([(0, "api")], 3)
    topics.fill(topic, [line(3 * MINUTE)], partition=1, timestamp=NOON)
    done = drain(topics, root, topic, keep_open=True)
    assert (sorted(found(root)), done.open) == ([(0, "api"), (1, "api")], 3)
    done = drain(topics, root, topic)
    assert {place: row["lines"] for place, row in found(root).items()} == {
        (0, "api"): 1, (1, "api"): 1, (2, "api"): 1, (3, "api"): 2,
    }  # fmt: skip
    assert (done.rows, done.parsed, done.open) == (5, 5, 0)
    # What has been given out stays as it is.
    topics.fill(topic, [line(3 * MINUTE), line(4 * MINUTE)], timestamp=NOON)
    done = drain(topics, root, topic)
    assert (done.late, late(root)) == (1, {3: 1})
    with pytest.raises(InvalidOption, match=r"begun with windows of 60 s.*go on with these"):
        drain(topics, root, topic, window=30)


def test_a_range_that_is_counted_again_gives_the_same(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(2)
    for minute in range(6):
        # In the other partition, the last of the range is of the minute before.
        for partition in range(2 if minute != 3 else 1):
            time = NOON + minute * MINUTE
            topics.fill(topic, [line(minute * MINUTE)] * 3, partition=partition, timestamp=time)
    span = {"startingTimestamp": str(NOON + MINUTE), "endingTimestamp": str(NOON + 4 * MINUTE)}
    wanted = {(1, "api"): 6, (2, "api"): 6, (3, "api"): 3}
    for folder in ("one", "other"):
        done = drain(topics, tmp_path / folder, topic, group=folder, **span)
        assert (done.rows, done.parsed, done.late, done.open) == (15, 15, 0, 0)
        # And in the same folder: nothing is counted twice.
        again = drain(topics, tmp_path / folder, topic, group=folder, **span)
        assert (again.rounds, again.rows) == (0, 15)
        assert {place: row["lines"] for place, row in found(tmp_path / folder).items()} == wanted
    assert topics.committed("one") == {(topic, 0): 12, (topic, 1): 9}
    # A range that reaches further goes on behind the last one.
    done = drain(topics, tmp_path / "one", topic, group="one", endingTimestamp=str(NOON + 5 * MINUTE))
    assert (done.rows, found(tmp_path / "one")[4, "api"]["lines"]) == (21, 6)


def test_a_job_that_goes_on_does_not_wait_for_silent_partitions(topics: Topics, tmp_path: Path) -> None:
    topic, root = topics.create(2), tmp_path / "out"
    topics.fill(topic, [line(0), line(5 * MINUTE)], timestamp=NOON)
    topics.fill(topic, [line(0)], partition=1, timestamp=NOON)
    stop = Event()
    seen: list[int] = []

    def look(done: Logs) -> None:
        seen.append(done.windows)
        if done.windows or len(seen) > 100:
            stop.set()

    done = job_of(topics.address, topic, root, idle=0.3).run(0.05, look, stop)
    assert seen[0] == 0
    assert {place: row["lines"] for place, row in found(root).items()} == {(0, "api"): 2}
    assert done.open == 1


def made(seed: int, count: int, behind: int = 0) -> list[bytes]:
    """Lines that go on in time, some of them broken and some behind the others; all of them so many milliseconds."""
    chance = random.Random(seed)
    lines = []
    for number in range(count):
        ms = number * 10 * MINUTE // count - behind - (chance.randrange(4 * MINUTE) if chance.random() < 0.2 else 0)
        level = chance.choice(["info", "error"])
        whole = line(ms, chance.choice("abc"), level, message=f"it {chance.randrange(5)}", took=chance.expovariate(0.1))
        lines.append(whole if chance.random() < 0.9 else whole[:-1])
    return lines


def test_what_is_found_does_not_depend_on_how_rounds_are_cut(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(2)
    for partition in range(2):
        # What closes windows is behind what makes lines of the first partition late.
        lines = made(partition, 400, behind=partition * 3 * MINUTE)
        topics.fill(topic, lines, partition=partition, timestamp=NOON + 10 * MINUTE)
    whole = drain(topics, tmp_path / "whole", topic)
    pieces = drain(topics, tmp_path / "pieces", topic, maxOffsetsPerTrigger="60")
    assert (whole.rounds, pieces.rounds > 10) == (1, True)
    assert whole.late > 20
    assert whole.broken > 20
    assert whole.parsed + whole.broken + whole.late == whole.rows == 800
    assert found(tmp_path / "whole") == found(tmp_path / "pieces")
    assert late(tmp_path / "whole") == late(tmp_path / "pieces")
    assert sum(row["lines"] for row in found(tmp_path / "whole").values()) == whole.parsed
    assert sum(late(tmp_path / "whole").values()) == whole.late
    for name in ("parsed", "broken", "late", "errors", "windows"):
        assert getattr(whole, name) == getattr(pieces, name)


class Killed(BaseException):
    """The process is gone from here on."""


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the process die before its `step`th change of the file system or its word to the broker."""
    steps = 0
    job_thread = get_ident()

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal steps
            # The broker of the tests changes files, too, in a thread of its own.
            if get_ident() != job_thread:
                return real(*arguments, **named)
            steps += 1
            if steps == step:
                raise Killed
            return real(*arguments, **named)

        return call

    monkeypatch.setattr(results_folder.os, "replace", dying(os.replace))
    monkeypatch.setattr(result_sink.Publisher, "publish", dying(result_sink.Publisher.publish))
    # State and commits of the query.
    for name in ("write_bytes", "touch"):
        monkeypatch.setattr(Path, name, dying(getattr(Path, name)))


def test_a_job_that_dies_anywhere_neither_loses_nor_repeats(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(2)
    for partition in range(2):
        topics.fill(topic, made(partition, 60), partition=partition, timestamp=NOON + 10 * MINUTE)
    wanted = drain(topics, tmp_path / "wanted", topic)
    step, died = 0, True
    while died:
        step += 1
        root, into = tmp_path / f"{step}", topics.create()
        how: dict[str, Any] = {"into": into, "application": f"dying-{step}"}
        with pytest.MonkeyPatch.context() as patching:
            crash_at(patching, step)
            try:
                drain(topics, root, topic, **how)
                died = False
            except Killed:
                pass
        found(root)
        done = drain(topics, root, topic, **how)
        assert found(root) == found(tmp_path / "wanted")
        assert late(root) == late(tmp_path / "wanted")
        assert (done.rows, done.parsed, done.broken, done.late, done.windows) == (
            wanted.rows, wanted.parsed, wanted.broken, wanted.late, wanted.windows,
        )  # fmt: skip
        keys = Counter(record.key.decode() for record in contents(topics, into))
        given_out = Counter(key for key in keys.elements() if not key.endswith("/late"))
        assert len(given_out) == wanted.windows == given_out.total()
        told = sum(json.loads(record.value).get("late", 0) for record in contents(topics, into))
        assert told == wanted.late
        assert not list((root / "_headrace" / "staging").iterdir())
    assert step > 15


@pytest.mark.parametrize("where", [BEFORE, WITHIN, BEHIND])
def test_a_driver_that_is_killed_publishes_once(topics: Topics, tmp_path: Path, where: str) -> None:
    topic, into, root = topics.create(), topics.create(), tmp_path / "out"
    topics.fill(topic, made(3, 200), timestamp=NOON + 10 * MINUTE)
    with (tmp_path / "said").open("w+") as said:
        command = [
            sys.executable,
            "-m",
            "tests.pipeline.jobs.dying_logs",
            topics.address,
            topic,
            into,
            str(root),
            where,
        ]
        died = subprocess.run(command, timeout=100, stdout=said, stderr=subprocess.STDOUT).returncode
        said.seek(0)
        assert died == -signal.SIGKILL, said.read()[-2_000:]
    # It had its windows, and could not say so.
    assert found(root)
    done = drain(topics, root, topic, into=into)
    keys = [record.key.decode() for record in contents(topics, into) if not record.key.endswith(b"/late")]
    assert len(keys) == len(set(keys)) == len(found(root)) == done.windows


def test_lines_come_from_folders_and_archives_too(tmp_path: Path) -> None:
    from tests.pipeline.micro_batches import Query

    lines = made(1, 300)
    with headrace.Broker(data=str(tmp_path / "data")) as broker:
        topics = Topics(broker.kafka)
        topic = topics.create()
        for number, each in enumerate(lines):
            # Times of records that go through several hours, and back.
            topics.fill(topic, [each], timestamp=NOON + 10 * MINUTE + number % 3 * 60 * MINUTE)
        wanted = drain(topics, tmp_path / "wanted", topic)
        source = {"kafka.bootstrap.servers": broker.kafka, "subscribe": topic}
        Query(source, tmp_path / "archive", checkpoint=tmp_path / "archive" / "_headrace" / "checkpoint").run()
    for place in ("data", "archive"):
        job = job_of("", topic, tmp_path / f"from-{place}", data=str(tmp_path / place))
        done = job.run(None, lambda _: None, Event())
        assert (done.rows, done.late) == (wanted.rows, wanted.late)
        assert found(tmp_path / f"from-{place}") == found(tmp_path / "wanted")


def test_a_folder_of_an_older_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    commit_before(tmp_path / "old", "parquet", 1, {"t": {"0": [0, 7]}})
    (tmp_path / "old" / "_headrace" / "state").mkdir()
    with pytest.raises(HeadraceError, match=r"older `logs`.*Give another folder, and --option .*\"t\": {\"0\": 7}"):
        job_of("x", "t", tmp_path / "old")


def test_a_batch_that_is_to_run_again_reads_its_lines_as_before(topics: Topics, tmp_path: Path) -> None:
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, made(1, 20), timestamp=NOON)
    drain(topics, root, topic)
    checkpoint = root / "_headrace" / "checkpoint"
    last = max((checkpoint / "commits").iterdir(), key=lambda path: int(path.name))
    last.unlink()
    job = job_of(topics.address, topic, root)
    job._format = LineFormat("json")
    with pytest.raises(InvalidOption, match=r"was not finished.*--format auto.*the flags of the last run"):
        job.run(None, lambda _: None, Event())
    done = drain(topics, root, topic)
    assert done.parsed == sum(row["lines"] for row in found(root).values())
    job.run(None, lambda _: None, Event())


def test_a_folder_without_its_checkpoint_is_refused(topics: Topics, tmp_path: Path) -> None:
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, made(1, 20), timestamp=NOON)
    drain(topics, root, topic)
    shutil.rmtree(root / "_headrace" / "checkpoint")
    with pytest.raises(InvalidOption, match="has results and no checkpoint"):
        drain(topics, root, topic)


def test_one_folder_has_one_writer(topics: Topics, tmp_path: Path) -> None:
    topic, root = topics.create(), tmp_path / "out"
    with job_of(topics.address, topic, root)._folder.lock(), pytest.raises(ArchiveInUse, match="one writer"):
        drain(topics, root, topic)


# Few different ones: where a line is just late, or just not, counts.
TIMES = st.lists(st.integers(0, 40), max_size=40)


@given(TIMES, st.integers(1, 8), st.integers(0, 8), st.integers(0, 40))
def test_late_lines_are_the_same_wherever_a_block_ends(times: list[int], size: int, lateness: int, cut: int) -> None:
    how = Windows(size, lateness)
    whole, newest = how.are_late(np.array(times, np.int64), NEVER, NEVER)
    first, seen = how.are_late(np.array(times[:cut], np.int64), NEVER, NEVER)
    second, last = how.are_late(np.array(times[cut:], np.int64), seen, NEVER)
    assert [*first, *second] == list(whole)
    assert last == newest == max(times, default=NEVER)
    for index, time in enumerate(times):
        end = time // size * size + size
        assert whole[index] == (end + lateness <= max(times[:index], default=NEVER))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.floats(0, 1e7)), min_size=1, max_size=60), st.data()
)
def test_percentiles_are_within_a_hundredth(lines: list[tuple[int, str, float]], data: st.DataObject) -> None:
    """However lines are spread over tallies that are added up."""
    place = [data.draw(st.integers(0, 2)) for _ in lines]
    parts = []
    for number in range(3):
        some = [line for line, there in zip(lines, place, strict=True) if there == number]
        fields = Fields.of(
            len(some),
            service=pa.array([service for _, service, _ in some], pa.string()),
            level=pa.array(["INFO"] * len(some), pa.string()),
            duration=pa.array([took for _, _, took in some], pa.float64()),
        )
        good: Any = np.ones(len(some), bool)
        parts.append(counts.count_lines(fields, good, ~good, np.array([window for window, _, _ in some], np.int64)))
    whole = counts.of_kind(counts.add(parts), counts.DURATION)
    window, service, _ = lines[0]
    took = sorted(took for at, of, took in lines if (at, of) == (window, service))
    rows = sorted(
        (int(row["name"]), row["lines"])
        for row in whole.to_pylist()
        if (row["window"], row["service"]) == (window, service)
    )
    buckets, numbers = zip(*rows, strict=True)
    assert sum(numbers) == len(took)
    for share in (0.5, 0.95, 0.99):
        exact = took[max(0, int(np.ceil(share * len(took))) - 1)]
        about = counts.quantile(buckets, numbers, share)
        assert about == pytest.approx(exact, rel=0.0101, abs=2e-6)


def test_durations_that_are_none_are_not_counted() -> None:
    took = [1.0, float("inf"), float("nan"), -5.0, None, 0.0]
    fields = Fields.of(
        len(took),
        service=pa.array(["a"] * len(took)),
        level=pa.array(["INFO"] * len(took)),
        duration=pa.array(took, pa.float64()),
    )
    good: Any = np.ones(len(took), bool)
    found = counts.count_lines(fields, good, ~good, np.zeros(len(took), np.int64))
    assert counts.total(found, counts.LEVEL) == 6
    durations = counts.of_kind(found, counts.DURATION).to_pylist()
    assert sum(row["lines"] for row in durations) == 2
    assert max(row["slowest"] for row in durations) == 1.0


def test_rare_messages_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MESSAGES_MAX", 3)
    texts = [word for number, word in enumerate("vwxyz", 1) for _ in range(number)]
    fields = Fields.of(
        len(texts),
        service=pa.array(["a"] * len(texts)),
        level=pa.array(["ERROR"] * len(texts)),
        message=pa.array(texts),
    )
    good: Any = np.ones(len(texts), bool)
    found = counts.count_lines(fields, good, ~good, np.zeros(len(texts), np.int64))
    counted = {row["name"]: row["lines"] for row in counts.of_kind(found, counts.MESSAGE).to_pylist()}
    assert counted == {"z": 5, "y": 4, "(others)": 6}
