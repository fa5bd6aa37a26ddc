"""Replays, with tasks that run here instead of on Spark."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.jobs.dying_logs import BEFORE, BEHIND, WITHIN
from tests.pipeline.jobs.dying_replay import replay_here
from tests.pipeline.test_sink import contents
from tests.pipeline.topics import Topics

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow.parquet as pq  # noqa: E402 -- needs pyarrow

import headrace  # noqa: E402
from headrace.pipeline.jobs import rounds  # noqa: E402
from headrace.pipeline.jobs.replay import job  # noqa: E402
from headrace.pipeline.jobs.replay.delivery import IntoFile  # noqa: E402
from headrace.pipeline.jobs.replay.pacer import TICK, Pace, Pacer  # noqa: E402
from headrace.pipeline.jobs.replay.plan import Plan  # noqa: E402
from headrace.pipeline.jobs.replay.runner import Runner  # noqa: E402
from headrace.pipeline.manifest import ParquetFolder  # noqa: E402
from headrace.pipeline.options import InvalidOption  # noqa: E402
from headrace.pipeline.origin import Range  # noqa: E402
from headrace.pipeline.sink_task import InvalidRows  # noqa: E402

NOON = 1_704_110_400_000


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with headrace.Broker(data=str(tmp_path_factory.mktemp("data"))) as broker:
        yield Topics(broker.kafka)


@pytest.fixture
def replay(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    # Put back what `replay_here` changes.
    monkeypatch.setattr(rounds, "on_spark", rounds.on_spark)
    monkeypatch.setattr(Runner, "_slots", Runner._slots)
    return lambda topic, **options: replay_here(**{"topics": [topic], "bootstrap": topics.address, **options})


def filled(topics: Topics, count: int = 100, partitions: int = 2) -> str:
    """A topic of numbers, the same in each partition; few of them are a second apart, with keys and headers."""
    topic = topics.create(partitions)
    for partition in range(partitions):
        if count > 20:
            topics.fill(topic, (b"%d" % number for number in range(count)), partition=partition, timestamp=NOON)
            continue
        for number in range(count):
            more = {"key": b"k%d" % (number % 5), "headers": [("n", b"%d" % number)]}
            topics.fill(topic, [b"%d" % number], partition=partition, timestamp=NOON + number * 1_000, **more)
    return topic


def by_partition(topics: Topics, topic: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for record in contents(topics, topic):
        found.setdefault(record.partition, []).append(int(record.value))
    return found


def test_records_are_kept_as_they_are(topics: Topics, replay: Any) -> None:
    topic = filled(topics, 10)
    into = f"{topic}-again"
    began = time.time_ns() // 1_000_000
    done = replay(topic, into=into)
    assert (done.read, done.written, done.rounds, done.of, done.left) == (20, 20, 1, 1, 0)
    records = contents(topics, into)
    assert by_partition(topics, into) == {0: list(range(10)), 1: list(range(10))}
    for record in records:
        assert record.key == b"k%d" % (int(record.value) % 5)
        assert list(record.headers) == [("n", record.value)]
        assert record.timestamp >= began
    replay(topic, into=f"{into}-then", keep_timestamps=True)
    assert {record.timestamp - NOON for record in contents(topics, f"{into}-then")} == set(range(0, 10_000, 1_000))
    # Nobody who reads the topic has heard of it.
    assert topics.ask(lambda client: client.admin.groups()) == []


def test_ranges_are_by_time_or_by_offset(topics: Topics, replay: Any) -> None:
    topic = filled(topics, 10)
    for number, (how, wanted) in enumerate(
        [
            ({"since": NOON + 3_000, "until": NOON + 5_000}, [3, 4]),
            ({"since_offset": 7}, [7, 8, 9]),
            ({"until_offset": 2}, [0, 1]),
            ({"since": NOON + 8_500, "until_offset": 50}, [9]),
        ]
    ):
        assert replay(topic, dry_run=True, **how).read == 2 * len(wanted)
        replay(topic, into=f"{topic}-{number}", **how)
        assert by_partition(topics, f"{topic}-{number}") == {0: wanted, 1: wanted}
    assert replay(topic, since=NOON + 60_000, dry_run=True).read == 0


def double(row: dict[str, Any]) -> Any:
    """Each record twice, but for odd ones."""
    return None if int(row["value"]) % 2 else [{**row, "key": None}, {**row, "value": row["value"].decode()}]


def ten_more(blocks: Iterator[Any]) -> Iterator[Any]:
    for block in blocks:
        values = [b"%d" % (int(value) + 10) for value in block.column("value").to_pylist()]
        yield block.set_column(block.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))


def shouted(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame.assign(value=frame["key"].map(lambda key: key.upper()))


def test_records_pass_through_a_function(topics: Topics, replay: Any, tmp_path: Path) -> None:
    topic = filled(topics, 4, 1)
    here = "tests.pipeline.jobs.test_replay"
    replay(topic, into=f"{topic}-rows", function=f"{here}:double", per="rows")
    assert by_partition(topics, f"{topic}-rows") == {0: [0, 0, 2, 2]}
    assert [record.key for record in contents(topics, f"{topic}-rows")] == [None, b"k0", None, b"k2"]
    replay(topic, into=f"{topic}-batches", function=ten_more, per="batches")
    assert by_partition(topics, f"{topic}-batches") == {0: [10, 11, 12, 13]}
    replay(topic, to=tmp_path / "table", function=shouted, per="pandas")
    rows = pq.read_table(tmp_path / "table" / "records").to_pylist()
    assert [(row["value"], row["offset"], row["topic"]) for row in rows] == [
        (b"K%d" % number, number, topic) for number in range(4)
    ]
    for name, wrong in (("nowhere:x", "cannot be had"), ("json:no", "cannot be had"), ("json", "not MODULE:NAME")):
        with pytest.raises(InvalidOption, match=wrong):
            replay(topic, into="x", function=name)
    with pytest.raises(InvalidOption, match="not a function"):
        replay(topic, into="x", function="json:__doc__")


def priced(row: dict[str, Any]) -> dict[str, Any]:
    """Columns of its own, and not always the same ones."""
    number = int(row["value"])
    return {"number": number, "price": number / 2, **({"key": row["key"]} if number >= 3 else {})}


def priced_frames(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame.assign(price=frame["value"].map(int) / 2)[["price", "key"]]


def scratched(row: dict[str, Any]) -> dict[str, Any]:
    """With what is of no use to a topic, and is no column."""
    return {**row, "parsed": int(row["value"]) if int(row["value"]) % 2 else row["value"].decode()}


def test_a_table_takes_any_columns(topics: Topics, replay: Any, tmp_path: Path) -> None:
    topic = filled(topics, 4, 1)
    done = replay(topic, to=tmp_path / "rows", function=priced, per="rows", round_rows=2)
    assert done.written == replay(topic, to=tmp_path / "rows", function=priced, per="rows", dry_run=True).written == 4
    found = [row for path in files(tmp_path / "rows") for row in pq.read_table(path).to_pylist()]
    assert sorted((row["number"], row["price"], row.get("key")) for row in found) == [
        (0, 0.0, None), (1, 0.5, None), (2, 1.0, None), (3, 1.5, b"k3"),
    ]  # fmt: skip
    replay(topic, to=tmp_path / "pandas", function=priced_frames, per="pandas")
    (path,) = files(tmp_path / "pandas")
    assert pq.read_table(path).to_pydict() == {"price": [0.0, 0.5, 1.0, 1.5], "key": [b"k0", b"k1", b"k2", b"k3"]}
    replay(topic, into=f"{topic}-scratched", function=scratched, per="rows")
    assert by_partition(topics, f"{topic}-scratched") == {0: [0, 1, 2, 3]}
    with pytest.raises(InvalidRows, match="'parsed' what cannot be a column"):
        replay(topic, to=tmp_path / "scratched", function=scratched, per="rows")


def test_a_file_ends_where_columns_change(tmp_path: Path) -> None:
    blocks = [
        pa.record_batch({"a": [1]}), pa.record_batch({"a": pa.array([], pa.int64())}), pa.record_batch({"a": [2]}),
        pa.record_batch({"b": ["x"]}),
    ]  # fmt: skip
    answer = IntoFile(str(tmp_path))(iter(blocks))
    assert (answer.written, [each.rows for each in answer.files]) == (3, [2, 1])
    assert [pq.read_table(tmp_path / each.path).to_pydict() for each in answer.files] == [{"a": [1, 2]}, {"b": ["x"]}]
    assert IntoFile(str(tmp_path))(iter(())).files == ()


def files(root: Path) -> list[Path]:
    return sorted((root / "records").glob("*.parquet"))


def test_what_cannot_be_is_said(topics: Topics, replay: Any, tmp_path: Path) -> None:
    topic = filled(topics, 2, 1)
    for how, reason in (
        ({}, "got none"),
        ({"into": "a", "to": tmp_path}, "got both"),
        ({"into": topic}, "replay into another topic"),
        ({"into": "a", "options": {"kafka.group.id": "live"}}, "moves no consumer group"),
        ({"into": "a", "per": "planets"}, "got 'planets'"),
        ({"into": "a", "speed": -1}, "cannot be -1"),
        ({"to": tmp_path, "speed": 1}, "no reader waits"),
        ({"into": "a", "speed": 1, "function": len}, "a frame is read as a whole"),
    ):
        with pytest.raises(InvalidOption, match=reason):
            replay(topic, **how)


def test_a_new_topic_has_the_partitions_of_the_old_one_whatever_is_in_them(topics: Topics, replay: Any) -> None:
    topic = topics.create(4)
    for times in (1, 2):
        into = f"{topic}-{times}"
        done = replay(topic, into=into)
        assert (done.read, done.written, done.left) == (times - 1, times - 1, 0)
        assert len(topics.ask(lambda client, into=into: client.cluster.topic(into)).partitions) == 4
        topics.fill(topic, [b"x"], partition=1)


def test_partitions_follow_keys_where_there_are_fewer(topics: Topics, replay: Any) -> None:
    topic, into = filled(topics, 10, 3), topics.create(2)
    replay(topic, into=into)
    by_key: dict[bytes, set[int]] = {}
    for record in contents(topics, into):
        by_key.setdefault(record.key, set()).add(record.partition)
    assert len(by_key) == 5
    assert all(len(partitions) == 1 for partitions in by_key.values())


class Killed(BaseException):
    """The process is gone from here on."""


def dying_at(step: int, *places: tuple[Any, str]) -> pytest.MonkeyPatch:
    steps = 0

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal steps
            for before in (True, False):
                steps += 1
                if steps == step:
                    raise Killed
                if before:
                    answer = real(*arguments, **named)
            return answer

        return call

    patching = pytest.MonkeyPatch()
    for owner, name in places:
        patching.setattr(owner, name, dying(getattr(owner, name)))
    return patching


def test_a_replay_that_dies_between_steps_goes_on(topics: Topics, replay: Any, tmp_path: Path) -> None:
    topic = filled(topics, 60)
    for into_table in (False, True):
        step, died = 0, True
        while died:
            step += 1
            root = tmp_path / f"{step}"
            name = f"{topic}-{step}"
            goal: dict[str, Any] = {"to": root} if into_table else {"into": name, "application": name}
            places = [(Runner, "run"), (ParquetFolder, "add") if into_table else (job, "_decisions")]
            patching = dying_at(step, *places)
            try:
                replay(topic, round_rows=50, **goal)
                died = False
            except Killed:
                pass
            finally:
                patching.undo()
            assert replay(topic, round_rows=50, **goal).left == 0
            if into_table:
                rows = pq.read_table(root / "records").to_pylist()
                assert Counter((row["partition"], int(row["value"])) for row in rows) == Counter(
                    (partition, number) for partition in range(2) for number in range(60)
                )
            else:
                assert by_partition(topics, name) == {0: list(range(60)), 1: list(range(60))}
        assert step > 8


@pytest.mark.parametrize("where", [BEFORE, WITHIN, BEHIND])
def test_a_driver_that_is_killed_neither_loses_nor_repeats(
    topics: Topics, replay: Any, tmp_path: Path, where: str
) -> None:
    topic, into = filled(topics, 200), topics.create(2)
    with (tmp_path / "said").open("w+") as said:
        command = [sys.executable, "-m", "tests.pipeline.jobs.dying_replay", topics.address, topic, into, where]
        died = subprocess.run(command, timeout=100, stdout=said, stderr=subprocess.STDOUT).returncode
        said.seek(0)
        assert died == -signal.SIGKILL, said.read()[-2_000:]
    # The ranges are those that it began with.
    topics.fill(topic, [b"1000"])
    done = replay(topic, into=into, application=f"replay-{into}", round_rows=100)
    assert (done.of, done.left) == (4, 0)
    assert by_partition(topics, into) == {0: list(range(200)), 1: list(range(200))}
    # To do it again is another replay.
    assert replay(topic, into=into, application=f"replay-{into}").rounds == 0
    other = filled(topics, 1)
    with pytest.raises(InvalidOption, match="has replayed something else"):
        replay(other, into=into, application=f"replay-{into}")


def test_a_replay_can_be_stopped_and_gone_on_with(topics: Topics, replay: Any) -> None:
    topic = filled(topics, 50)
    stop = Event()
    done = replay(topic, into=f"{topic}-s", round_rows=30, progress=lambda _: stop.set(), stop=stop)
    assert (done.rounds, done.of, done.left) == (1, 4, 76)
    done = replay(topic, into=f"{topic}-s", round_rows=30, application=done.application)
    assert (done.rounds, done.left) == (3, 0)
    assert by_partition(topics, f"{topic}-s") == {0: list(range(50)), 1: list(range(50))}


def test_records_leave_at_their_own_pace(topics: Topics, replay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "SLICE_SECONDS", 0.5)
    topic = filled(topics, 10)
    done = replay(topic, into=f"{topic}-slow", speed=8)
    assert (done.read, done.written, done.left) == (20, 20, 0)
    assert done.rounds > 1
    records = contents(topics, f"{topic}-slow")
    assert by_partition(topics, f"{topic}-slow") == {0: list(range(10)), 1: list(range(10))}
    first = min(record.timestamp for record in records)
    for record in records:
        # Late by whatever the machine is, but never early: an eighth of a second for each second of then.
        assert record.timestamp - first >= int(record.value) * 125 - 30 - done.behind * 1000
    assert max(record.timestamp for record in records) - first >= 9 * 125 - 30 - done.behind * 1000


def test_times_that_go_back_do_not_stop_it(topics: Topics, replay: Any) -> None:
    topic = topics.create()
    for number, ms in enumerate((0, 60_000, 20, 40)):
        topics.fill(topic, [b"%d" % number], timestamp=NOON + ms)
    done = replay(topic, into=f"{topic}-slow", speed=1000)
    assert (done.left, by_partition(topics, f"{topic}-slow")) == (0, {0: [0, 1, 2, 3]})


LANES = st.lists(st.lists(st.lists(st.integers(0, 5_000), max_size=6), max_size=4), max_size=3)


@given(LANES, st.sampled_from([0.5, 1.0, 10.0]))
def test_a_pacer_keeps_order_and_lets_nothing_go_early(lanes: list[list[list[int]]], speed: float) -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        assert seconds >= TICK
        now += seconds

    def blocks(lane: int, given: list[list[int]]) -> Iterator[Any]:
        number = 0
        for times in given:
            yield pa.record_batch(
                {
                    "lane": pa.array([lane] * len(times), pa.int64()),
                    "number": pa.array(range(number, number + len(times)), pa.int64()),
                    "timestamp": pa.array([ms * 1000 for ms in times], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
                }
            )
            number += len(times)

    pacer = Pacer([blocks(*each) for each in enumerate(lanes)], Pace(0, 100.0, speed), lambda: now, sleep)
    released: dict[int, list[int]] = {}
    for block in pacer.blocks():
        for row in block.to_pylist():
            released.setdefault(row["lane"], []).append(row["number"])
            due = 100 + row["timestamp"].timestamp() / speed
            assert due <= now + 1e-6
    assert released == {
        lane: list(range(sum(map(len, given)))) for lane, given in enumerate(lanes) if sum(map(len, given))
    }
    # Nobody took any time: only those leave later that are due within a tick.
    assert pacer.behind <= TICK + 1e-6


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 500)), max_size=5), st.integers(1, 9))
def test_rounds_are_all_of_the_ranges_once(given: list[tuple[int, int]], count: int) -> None:
    ranges = tuple(Range("t", index, start, start + length) for index, (start, length) in enumerate(given))
    plan = Plan.load(Plan(ranges, count).dump())
    assert plan == Plan(ranges, count)
    found: dict[int, list[int]] = {}
    for number in range(count):
        for each in plan.round(number):
            found.setdefault(each.partition, []).extend(range(each.start, each.end))
    assert found == {each.partition: list(range(each.start, each.end)) for each in ranges}
    assert json.loads(plan.dump())["rounds"] == count
