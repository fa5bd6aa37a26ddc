"""Source, sink and `archive` on a standalone cluster of two workers, and all jobs behind a Spark Connect server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.peers import Missing
from bench.peers.spark import Cluster, Connect
from tests.pipeline.jobs.questions import NOON, SECOND, histories
from tests.pipeline.jobs.test_sessions_on_spark import check, end, fill
from tests.pipeline.test_killed_driver import NOON as LOGS_NOON
from tests.pipeline.test_killed_driver import lines_of_logs
from tests.pipeline.test_sink import contents, run, values
from tests.pipeline.topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

ROWS = 300


@pytest.fixture(scope="module")
def source(topics: Topics) -> str:
    topic = topics.create(2)
    for partition in range(2):
        numbers = range(partition * ROWS, (partition + 1) * ROWS)
        topics.fill(topic, (b"%d " % number + os.urandom(90).hex().encode() for number in numbers), partition=partition)
    return topic


def test_the_command_is_the_same_on_a_cluster(cluster: Cluster, topics: Topics, source: str, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    from tests.pipeline.on_cluster import CONF

    flags = ["--topics", source, "--bootstrap", topics.address, "--to", str(tmp_path / "out"), "--table", "delta"]
    settings = [each for name, value in CONF.items() for each in ("--conf", f"{name}={value}")]
    command = ["-m", "headrace.cli", "pipeline", "archive", *flags, "--master", cluster.master, *settings]
    done = subprocess.run(
        [sys.executable, *command, "--file-size", "30k"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == 2 * ROWS
    found = deltalake.DeltaTable(str(tmp_path / "out")).to_pyarrow_table().column("value").to_pylist()
    assert sorted(int(value.split()[0]) for value in found) == list(range(2 * ROWS))
    # Both workers had a part in it.
    assert len({path.parts[-3] for path in cluster.folder.glob("worker-*/app-*/*/stderr")}) == 1
    assert len(list(cluster.folder.glob("worker-*/app-*/*/stderr"))) == 2


def test_second_attempts_and_lost_executors_neither_lose_nor_repeat(
    cluster: Cluster, topics: Topics, source: str, tmp_path: Path
) -> None:
    import pyarrow.dataset as ds

    sink = topics.create()
    arguments = (cluster.master, topics.address, source, sink, str(tmp_path))
    code, said = run(tmp_path, "tests.pipeline.on_cluster", *arguments)
    assert code == 0, said
    seen = {path.name for path in tmp_path.iterdir()}
    # The slow tasks did not come to their end: others were begun beside them. And one executor was lost.
    assert {"sink-slow", "archive-slow", "sink-died"} <= seen
    assert not {"sink-woke", "archive-woke"} & seen
    # Two batches, and one attempt more of each task.
    assert [len(list(tmp_path.glob(f"sink-{task}-*"))) >= 3 for task in range(2)] == [True, True], seen
    assert values(topics, sink) == list(range(2 * ROWS))
    rows = ds.dataset(tmp_path / "archive", format="parquet", partitioning="hive").to_table().column("value")
    assert sorted(int(value.split()[0]) for value in rows.to_pylist()) == list(range(2 * ROWS))


@pytest.mark.timeout(1_200)
def test_second_attempts_and_lost_executors_count_no_line_twice(
    cluster: Cluster, topics: Topics, tmp_path: Path
) -> None:
    """Where files are named after attempts, and not after their batch, lines are aside twice: test_logs.py was seen to
    fail for that, where each task runs twice, too."""
    import pyarrow.parquet as pq

    topic, into = lines_of_logs(topics), topics.create()
    executors = len(list(cluster.folder.glob("worker-*/app-*/*/stderr")))
    arguments = (cluster.master, topics.address, topic, into, str(tmp_path))
    code, said = run(tmp_path, "tests.pipeline.jobs.logs_on_cluster", *arguments, seconds=1_000)
    assert code == 0, said
    # One attempt failed, one was slow and overtaken by another, and two executors were lost: one that counted, and the
    # one that had the state of the windows. Each is replaced by a new one.
    seen = {path.name for path in tmp_path.iterdir()}
    assert {"failed", "slow", "counting-died", "writing-died"} <= seen
    assert "woke" not in seen
    assert len(list(cluster.folder.glob("worker-*/app-*/*/stderr"))) >= executors + 4
    done = json.loads(said.splitlines()[-1])
    assert [done[name] for name in ("rows", "parsed", "broken", "late", "open", "lag")] == [600, 596, 2, 2, 0, 0]
    found = pq.read_table(tmp_path / "results" / "windows").to_pylist()
    rows = sorted((row["window"].timestamp() * 1_000 - LOGS_NOON, row["lines"]) for row in found)
    assert rows == [(0, 120), (60_000, 118), (120_000, 120), (180_000, 120), (240_000, 118)]
    aside = pq.read_table(tmp_path / "results" / "aside").to_pylist()
    assert sorted((row["partition"], row["offset"]) for row in aside) == [(0, 100), (0, 250), (1, 100), (1, 250)]
    published = [json.loads(record.value) for record in contents(topics, into)]
    assert sorted(each["lines"] for each in published if "lines" in each) == [118, 118, 120, 120, 120]
    assert sum(each.get("late", 0) for each in published) == 2


def test_spark_connect(topics: Topics, source: str, tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    pytest.importorskip("grpc")
    pytest.importorskip("pyspark")
    try:
        server = Connect()
    except Missing as reason:
        pytest.skip(str(reason))
    sink, questions = topics.create(2), topics.create(2)
    happened = histories(5, 1)
    fill(topics, questions, happened)
    topics.fill(questions, [b"{"])
    end(topics, questions, NOON + 600 * SECOND)
    try:
        server.start(["spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"])
        arguments = (server.master, topics.address, source, sink, questions, str(tmp_path))
        code, said = run(tmp_path, "tests.pipeline.through_connect", *arguments)
        assert code == 0, said
    finally:
        server.stop()
    all_rows = 2 * ROWS
    assert json.loads(said.splitlines()[-1]) == {
        "source": all_rows,
        # Its values are no log lines: all of them are counted as broken.
        "logs": [all_rows, all_rows],
        "replay": [all_rows, 3, ROWS],
        "audit": all_rows,
        "sessions": [len(happened) + 2, 0, 1],
    }
    check(topics, f"{questions}-told", happened, idle=True)
    assert values(topics, f"{source}-again") == list(range(all_rows))
    assert values(topics, sink) == list(range(2 * ROWS))
    rows = ds.dataset(tmp_path / "archive", format="parquet", partitioning="hive").to_table().column("value")
    assert sorted(int(value.split()[0]) for value in rows.to_pylist()) == list(range(2 * ROWS))
