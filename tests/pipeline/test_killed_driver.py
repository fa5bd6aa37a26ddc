"""A driver that is killed neither loses nor repeats: of the sink, and of `archive` beside it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.test_sink import pour, run, values
from tests.pipeline.topics import Topics
from typer.testing import CliRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NOON = 1_704_110_400_000


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
    """Between the end of the tasks and the decision, and behind it. What lies between is, step by step, in
    test_sink_commit.py and jobs/test_tables.py, where no Spark has to be started for each."""
    import pyarrow.dataset as ds
    from tests.pipeline.dying_driver import BEFORE, BEHIND

    source, sink = topics.create(2), topics.create(2)
    out = tmp_path / "archive"
    sent = 0
    # How many of a batch's two transactions each driver leaves open, and how many commits it has made.
    for where, left, commits in ((BEFORE, 2, 0), (BEHIND, 0, 1)):
        for partition in range(2):
            numbers = range(sent, sent + 100)
            lines = (b"%d " % number + os.urandom(300).hex().encode() for number in numbers)
            topics.fill(source, lines, partition=partition, timestamp=NOON)
            sent += 100
        died, said = run(
            tmp_path, "tests.pipeline.dying_driver", topics.address, source, sink, str(tmp_path), where
        )  # fmt: skip
        assert died == -signal.SIGKILL, said
        listed = topics.ask(lambda client: client.transactions.list_all(states=["Ongoing"]))
        assert len(listed) == left, (where, listed)
        assert list(out.rglob("_headrace/staging/**/*.staged")), "the tasks had written nothing"
        assert len(list(out.rglob("_headrace/commits/*.json"))) == commits
        assert not list(out.glob("topic=*/**/*.parquet"))
    # The first batch is written, and Spark does not know.
    assert values(topics, sink) == list(range(200))
    topics.fill(source, [b"%d last" % sent], timestamp=NOON)

    pour(spark, topics, source, sink, tmp_path / "checkpoint")
    assert values(topics, sink) == list(range(sent + 1))

    settings = tmp_path / "job.toml"
    settings.write_text(
        f'[archive]\nto = "{out}"\ntopics = ["{source}"]\nbootstrap = "{topics.address}"\nfile-size = "80k"\n'
        'master = "nowhere"\n[archive.conf]\n"spark.sql.shuffle.partitions" = 1\n'
    )
    said = command(spark, monkeypatch, "archive", "--config", str(settings), "--master", "local[2]")
    rows = ds.dataset(out, format="parquet", partitioning="hive").to_table().to_pylist()
    found = sorted((row["partition"], int(row["value"].split()[0])) for row in rows)
    # The partitions were filled in turn, a hundred at a time.
    assert found == sorted((number // 100 % 2, number) for number in range(sent + 1))
    assert not list(out.rglob("_headrace/staging/*"))
    assert topics.committed("archive-archive") == {(source, 0): sent // 2 + 1, (source, 1): sent // 2}
    assert json.loads(said.splitlines()[-1])["rows"] == 201
