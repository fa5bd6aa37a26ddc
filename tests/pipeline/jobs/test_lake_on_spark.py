"""`headrace pipeline lake` as it runs: tables are queried while they are written, and the driver and the broker are
killed. What was sent is recorded apart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.topics import Topics
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

for package in ("pyspark", "deltalake", "pyiceberg", "duckdb"):
    pytest.importorskip(package)

from tests.pipeline.conftest import SETTINGS  # noqa: E402 -- the packages above may be missing
from tests.pipeline.jobs.test_lake import KINDS, read  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SECONDS = 240.0


class Driver:
    """The command in a process group of its own, with its Spark."""

    def __init__(self, bootstrap: str, errors: Path, *flags: str, marks: Path | None = None) -> None:
        """With `marks`, it stands still where dying_lake.py says."""
        conf = [f"--conf={name}={value}" for name, value in SETTINGS.items()]
        module = "headrace.cli" if marks is None else "tests.pipeline.jobs.dying_lake"
        command = [sys.executable, "-m", module, "pipeline", "lake", "--bootstrap", bootstrap]
        self._errors = errors
        with errors.open("a") as file:
            self._process = subprocess.Popen(
                [*command, "--master", "local[2]", "--option", "timeout=10", *conf, *flags],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, "MARKS": str(marks)},
                start_new_session=True,
            )

    def check(self) -> None:
        assert self._process.poll() is None, self._errors.read_text()[-4000:]

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def stop(self) -> dict[str, Any]:
        """End it as an operator would; its summary."""
        self._process.send_signal(signal.SIGTERM)
        said, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0, self._errors.read_text()[-4000:]
        found: dict[str, Any] = json.loads(said.splitlines()[-1])["tables"]
        return found

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()


class Sent:
    """An independent record of what was sent, by topic."""

    def __init__(self, topics: Topics, names: list[str]) -> None:
        self._topics = topics
        self._numbers = iter(range(1_000_000))
        self.values: dict[str, list[int]] = {name: [] for name in names}

    def send(self, count: int, **more: Any) -> None:
        for name, values in self.values.items():
            for partition in range(2):
                numbers = [next(self._numbers) for _ in range(count)]
                lines = (json.dumps({"number": number, **more}).encode() for number in numbers)
                self._topics.fill(name, lines, partition=partition)
                values += numbers


def numbers(kind: str, root: Path, topic: str) -> list[int]:
    """What DuckDB finds now, each number as often as it is there."""
    if not list(root.glob("_headrace/catalog.db" if kind == "iceberg" else "*")):
        return []
    try:
        return [number for (number,) in read(kind, root, "number", topic)]
    except Exception as error:
        # The table was just created, and has no such column yet; or no file.
        if not any(words in str(error) for words in ("number", "No files found", "does not exist", "No such table")):
            raise
        return []


def test_tables_follow_their_topics_through_kills(tmp_path: Path) -> None:
    """The driver is killed before the commit of one table and behind those of the others, and then the broker is.

    It fails where tasks do not pass over what the table has and a commit does not check it either (records come twice),
    and where a batch is told to Spark before the table has it (records are missing)."""
    with ServeProcess(tmp_path / "data") as broker:
        topics = Topics(broker.kafka)
        tables = {topics.create(2, lake=f"{kind}+{tmp_path}/{kind}", lake_freshness_ms="2000"): kind for kind in KINDS}
        sent = Sent(topics, list(tables))

        def look() -> bool:
            """Whether each table has what was sent. At no time does a table have a record twice, or one of nobody."""
            whole = True
            for topic, kind in tables.items():
                found = Counter(numbers(kind, tmp_path / kind, topic))
                assert set(found.values()) <= {1}, (topic, found.most_common(3))
                assert found.keys() <= set(sent.values[topic])
                whole &= len(found) == len(sent.values[topic])
            return whole

        def follow(driver: Driver) -> None:
            wait_until(look, seconds=SECONDS, turn=lambda: driver.check() or time.sleep(0.2))

        errors, marks = tmp_path / "stderr", tmp_path / "marks"
        marks.mkdir()
        sent.send(50)
        with Driver(broker.kafka, errors, marks=marks) as driver:
            follow(driver)
            (marks / "armed").touch()
            sent.send(200, more="x")
            wait_until(lambda: len(list(marks.iterdir())) == 1 + len(KINDS), seconds=SECONDS, turn=driver.check)
            driver.kill()
        for topic, kind in tables.items():
            # What was sent last may have come in time for the batch, or too late.
            assert (len(numbers(kind, tmp_path / kind, topic)) == 100) == (kind == "parquet")
            # Spark has begun the batch, and does not know what became of it.
            checkpoint = tmp_path / kind / "_headrace" / "checkpoint"
            began, done = (len(list((checkpoint / each).glob("[0-9]*"))) for each in ("offsets", "commits"))
            assert began == done + 1
        sent.send(20)
        with Driver(broker.kafka, errors) as driver:
            follow(driver)
            broker.kill()
            time.sleep(1)
            broker.start()
            sent.send(30, other={"a": 1})
            follow(driver)
            wait_until(lambda: all(sum(topics.committed(f"lake-{topic}").values()) == 600 for topic in tables))
            done = driver.stop()
        assert {
            name: (each["rows"], each["misfits"], each["lost"], each["error"]) for name, each in done.items()
        } == dict.fromkeys(tables, (600, 0, 0, ""))


def test_what_a_job_could_not_have_is_reported(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """Records that were deleted first are counted, and a schema that is declared is used."""
    from headrace.pipeline.jobs import lake

    topic = topics.create(lake=f"delta+{tmp_path}/t", lake_schema="id BIGINT, at TIMESTAMP")
    topics.fill(topic, [b'{"id": 1, "at": "2026-01-01T00:00:00Z"}', b'{"id": "x"}'])

    def run() -> Any:
        return lake(spark, bootstrap=topics.address, pattern=topic, once=True, checkpoints=tmp_path / "c")[topic]

    first = run()
    assert (first.rows, first.misfits, first.lost, first.error) == (2, 1, 0, "")
    topics.fill(topic, [b'{"id": 2}'] * 5)
    topics.ask(lambda client: client.admin.delete_records({(topic, 0): 4}))
    second = run()
    assert (second.rows, second.lost, second.error) == (5, 2, "")
    assert [row[0] for row in read("delta", tmp_path / "t", "_offset")] == [0, 1, 4, 5, 6]
    # A checkpoint that is gone costs nothing: the table knows what it has.
    for path in (tmp_path / "c").iterdir():
        path.rename(tmp_path / "gone")
    topics.fill(topic, [b'{"id": 3}'])
    assert run().rows == 6
    # Nor does one that is left of a table that is gone.
    (tmp_path / "t").rename(tmp_path / "old")
    assert run().rows == 4
