"""The commands `logs` and `replay` with a real Spark. Kills of the driver are in ../test_killed_driver.py."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.test_sink import contents
from tests.pipeline.topics import Topics
from typer.testing import CliRunner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NOON = 1_704_110_400_000


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `headrace pipeline` prints last. It gets the Spark of all tests: starting one takes longer than the rest."""
    from headrace import logs
    from headrace.cli import pipeline
    from headrace.cli.pipeline import job
    from headrace.pipeline import session

    monkeypatch.setattr(session, "session", lambda *_: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    # The handlers of signals, and where log lines go, are the test runner's own.
    monkeypatch.setattr(logs, "log_like_a_server", lambda *_: None)
    monkeypatch.setattr(job, "stop_on_signals", Event)

    def run(*arguments: str) -> dict[str, Any]:
        done = CliRunner().invoke(pipeline.app, arguments, catch_exceptions=False)
        assert done.exit_code == 0
        return dict(json.loads(done.stdout.splitlines()[-1]))

    return run


def line(number: int) -> bytes:
    return json.dumps({"ts": NOON + number * 1_000, "service": "api", "level": "info", "took": number}).encode()


def test_logs_is_a_command(topics: Topics, command: Any, spark: SparkSession, tmp_path: Path) -> None:
    topic, into = topics.create(2), topics.create()
    for partition in range(2):
        topics.fill(topic, map(line, range(120)), partition=partition, timestamp=NOON + 120_000)
    topics.fill(topic, [b"what", b"2024-01-01 12:00:07 ERROR web it 7"], timestamp=NOON + 120_000)
    settings = tmp_path / "jobs.toml"
    settings.write_text(
        f'[logs]\ntopics = ["{topic}"]\nbootstrap = "{topics.address}"\nto = "{tmp_path}/elsewhere"\nwindow = "30s"\n'
    )
    done = command("logs", "--config", str(settings), "--to", f"{tmp_path}/out 5%", "--into", into, "--lateness", "1h")
    assert (done["rows"], done["parsed"], done["broken"], done["late"], done["errors"]) == (242, 241, 1, 0, 1)
    rows = (
        spark.read.parquet(f"{tmp_path}/out 5%/windows")
        .selectExpr("service", "lines", "levels['ERROR'] AS e")
        .collect()
    )
    assert sorted(tuple(row) for row in rows) == [*[("api", 60, None)] * 4, ("web", 1, 1)]
    assert len(contents(topics, into)) == done["windows"] == 5
    pytest.importorskip("matplotlib")
    # A topic with nothing in it is no error, and no picture.
    place = ("--topics", topics.create(), "--bootstrap", topics.address, "--to", f"{tmp_path}/none")
    assert command("logs", *place, "--plot", f"{tmp_path}/none.png")["rows"] == 0
    assert not (tmp_path / "none.png").exists()


def through(frame: DataFrame) -> DataFrame:
    """Every other record, by a plan of Spark's."""
    return frame.where("offset % 2 = 0").selectExpr("key", "upper(CAST(value AS STRING)) AS value", "partition")


def test_replay_is_a_command(topics: Topics, command: Any, tmp_path: Path) -> None:
    topic = topics.create(2)
    for partition in range(2):
        topics.fill(topic, (b"a%d" % number for number in range(100)), partition=partition, timestamp=NOON)
    assert command("replay", "--topics", topic, "--bootstrap", topics.address, "--dry-run")["read"] == 200
    place = ["--topics", topic, "--bootstrap", topics.address, "--since", "10", "--until", "20"]
    here = "tests.pipeline.jobs.test_logs_and_replay_on_spark:through"
    done = command("replay", *place, "--into", f"{topic}-up", "--function", here)
    assert (done["read"], done["written"], done["left"]) == (20, 10, 0)
    found: dict[int, list[bytes]] = {}
    for record in contents(topics, f"{topic}-up"):
        found.setdefault(record.partition, []).append(record.value)
    assert found == {each: [b"A%d" % number for number in range(10, 20, 2)] for each in range(2)}
    assert command("replay", *place, "--into", f"{topic}-paced", "--speed", "max", "--keep-timestamps")["written"] == 20
    assert {record.timestamp for record in contents(topics, f"{topic}-paced")} == {NOON}
    assert command("replay", *place, "--to", str(tmp_path / "table"))["written"] == 20
