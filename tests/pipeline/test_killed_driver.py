"""A driver that is killed neither loses nor repeats: of the sink, and of `archive` and `logs` beside it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.test_sink import contents, pour, run, values
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


def line(number: int) -> bytes:
    return json.dumps({"ts": NOON + number * 1_000, "service": "api", "level": "info", "took": number}).encode()


def lines_of_logs(topics: Topics) -> str:
    """A topic with five minutes of lines in two partitions."""
    topic = topics.create(2)
    for partition in range(2):
        lines = [line(number) for number in range(300)]
        lines[100] = b"what"
        # Its minute has ended, by more than a minute, at the time of the one before it.
        lines[250] = line(7)
        topics.fill(topic, lines, partition=partition, timestamp=NOON + 300_000)
    return topic


def check_logs_continue(spark: SparkSession, topics: Topics, topic: str, into: str, root: Path) -> None:
    import pyarrow.parquet as pq

    from headrace.pipeline.jobs import logs

    topics.fill(topic, [line(30), line(301)], timestamp=NOON + 301_000)
    done = logs(spark, to=root, topics=[topic], bootstrap=topics.address, into=into)
    assert (done.rows, done.parsed, done.broken, done.late, done.open) == (602, 597, 2, 3, 0)
    rows = sorted(
        (row["window"].timestamp() * 1_000 - NOON, row["lines"]) for row in pq.read_table(root / "windows").to_pylist()
    )
    assert rows == [(0, 120), (60_000, 118), (120_000, 120), (180_000, 120), (240_000, 118), (300_000, 1)]
    aside = [(row["partition"], row["offset"], row["reason"]) for row in pq.read_table(root / "aside").to_pylist()]
    assert sorted(aside) == [
        (0, 100, "it is of no known format"), (0, 250, "late"), (0, 300, "late"),
        (1, 100, "it is of no known format"), (1, 250, "late"),
    ]  # fmt: skip
    published = [json.loads(record.value) for record in contents(topics, into)]
    assert sorted(each["lines"] for each in published if "lines" in each) == sorted(count for _, count in rows)
    assert sum(each.get("late", 0) for each in published) == 3


def test_a_driver_that_is_killed_neither_loses_nor_repeats(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of the tasks and the decision, and behind it; of `logs`, between the results in files and those
    in a topic, and before Spark knows of either. What lies between is, step by step, in test_sink_commit.py,
    jobs/test_tables.py and jobs/test_logs.py, where no Spark has to be started for each."""
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq
    from tests.pipeline.dying_driver import BEFORE, BEHIND

    source, sink = topics.create(2), topics.create(2)
    out = tmp_path / "archive"
    sent = 0
    counted = []
    # How many of a batch's two transactions each driver leaves open, and how many commits it has made.
    for where, left, commits in ((BEFORE, 2, 0), (BEHIND, 0, 1)):
        for partition in range(2):
            numbers = range(sent, sent + 100)
            lines = (b"%d " % number + os.urandom(300).hex().encode() for number in numbers)
            topics.fill(source, lines, partition=partition, timestamp=NOON)
            sent += 100
        lines, into = lines_of_logs(topics), topics.create()
        died, said = run(
            tmp_path, "tests.pipeline.dying_driver", topics.address, source, sink, str(tmp_path), where, lines, into
        )  # fmt: skip
        assert died == -signal.SIGKILL, said
        listed = topics.ask(lambda client: client.transactions.list_all(states=["Ongoing"]))
        assert len([each for each in listed if sink in str(each)]) == left, (where, listed)
        # `logs` had written, and Spark does not know.
        results = tmp_path / f"logs-{lines}"
        assert pq.read_table(results / "windows").num_rows == 3
        assert not list((results / "_headrace" / "checkpoint" / "commits").glob("[0-9]*"))
        counted.append((lines, into, results))
        assert list(out.rglob("_headrace/staging/**/*.staged")), "the tasks had written nothing"
        assert len(list(out.rglob("_headrace/commits/*.json"))) == commits
        assert not list(out.glob("topic=*/**/*.parquet"))
    for each in counted:
        check_logs_continue(spark, topics, *each)
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
