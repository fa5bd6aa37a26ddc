"""`archive` with a real Spark: through kills of the driver, failed tasks, and the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.topics import Topics
from typer.testing import CliRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

NOON = 1_704_110_400_000
HOUR = 3_600_000


def run(folder: Path, module: str, *arguments: str) -> tuple[int, str]:
    """A process's exit code, and what it said. To a file: Spark's own processes outlive a driver that is killed for a
    moment, and would hold a pipe open."""
    with (folder / "said").open("w+") as said:
        command = [sys.executable, "-m", module, *arguments]
        code = subprocess.run(command, timeout=200, stdout=said, stderr=subprocess.STDOUT).returncode
        said.seek(0)
        return code, said.read()[-3_000:]


def test_an_archive_is_read_by_spark_and_by_others(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    from headrace.pipeline.jobs import archive

    topic = topics.create(3)
    for partition in range(3):
        topics.fill(topic, (b"%d" % number for number in range(100)), partition=partition, timestamp=NOON)
        topics.fill(topic, [b"late"], partition=partition, timestamp=NOON + 30 * HOUR, headers=[("h", b"1")])
    done = archive(spark, to=tmp_path / "out", topics=[topic], bootstrap=topics.address, group="keeper")
    assert (done.rows, done.lag) == (303, 0)
    assert topics.committed("keeper") == {(topic, partition): 101 for partition in range(3)}
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert frame.count() == 303
    assert frame.where("date = '2024-01-02' AND hour = 18").count() == 3
    assert frame.selectExpr("count(DISTINCT partition, offset) AS count").collect()[0]["count"] == 303
    table = ds.dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table()
    assert table.num_rows == 303
    # Nothing new, nothing done; and no Spark for nothing.
    assert archive(spark, to=tmp_path / "out", topics=[topic], bootstrap=topics.address, group="keeper").rounds == 0


def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What `headrace pipeline` prints. It gets the Spark of all tests: starting one takes longer than the rest."""
    from headrace import logs
    from headrace.cli import pipeline
    from headrace.cli.pipeline import job
    from headrace.pipeline import session

    asked = []
    monkeypatch.setattr(session, "session", lambda *given: asked.append(given) or spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    # The handlers of signals, and where log lines go, are the test runner's own.
    monkeypatch.setattr(logs, "log_like_a_server", lambda *_: None)
    monkeypatch.setattr(job, "stop_on_signals", Event)
    done = CliRunner().invoke(pipeline.app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert asked == [("headrace archive", "local[2]", {"spark.sql.shuffle.partitions": "1"})]
    return done.stdout


def test_a_driver_that_is_killed_neither_loses_nor_repeats(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.dataset as ds

    topic = topics.create(2)
    out = tmp_path / "out"
    sent = 0
    for where in ("before the commit", "after the commit"):
        for partition in range(2):
            topics.fill(
                topic,
                (b"%d " % number + os.urandom(300) for number in range(sent, sent + 200)),
                partition=partition,
                timestamp=NOON,
            )
        sent += 200
        died, said = run(tmp_path, "tests.pipeline.jobs.dying_driver", topics.address, topic, str(out), where)
        assert died == -signal.SIGKILL, said
        assert list(out.rglob("_headrace/staging/*/*.parquet")), "the tasks had written nothing"
        assert len(list(out.rglob("_headrace/commits/*.json"))) == (1 if where == "after the commit" else 0)
        assert not list(out.glob("topic=*/**/*.parquet"))
    topics.fill(topic, [b"%d last" % sent], timestamp=NOON)
    settings = tmp_path / "job.toml"
    settings.write_text(
        f'[archive]\nto = "{out}"\ntopics = ["{topic}"]\nbootstrap = "{topics.address}"\nfile-size = "80k"\n'
        'master = "nowhere"\n[archive.conf]\n"spark.sql.shuffle.partitions" = 1\n'
    )
    said = command(spark, monkeypatch, "archive", "--config", str(settings), "--master", "local[2]")
    rows = ds.dataset(out, format="parquet", partitioning="hive").to_table().to_pylist()
    found = sorted((row["partition"], int(row["value"].split()[0])) for row in rows)
    assert found == [*((0, number) for number in range(sent + 1)), *((1, number) for number in range(sent))]
    assert not list(out.rglob("_headrace/staging/*"))
    assert topics.committed("archive-out") == {(topic, 0): sent + 1, (topic, 1): sent}
    assert json.loads(said.splitlines()[-1])["rows"] == 1
