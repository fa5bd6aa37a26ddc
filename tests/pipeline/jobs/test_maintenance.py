"""`headrace pipeline maintain`: a table stays the same for its readers, whatever is compacted, expired and removed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.topics import Topics
from typer.testing import CliRunner

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from tests.pipeline.jobs.test_tables import NOON, query, values

import headrace
from headrace.cli import pipeline
from headrace.errors import HeadraceError
from headrace.pipeline.tables import table_of
from headrace.pipeline.target import Target


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with headrace.Broker(data=str(tmp_path_factory.mktemp("data"))) as running:
        yield Topics(running.kafka)


def maintain(root: Path, *flags: str) -> dict[str, Any]:
    ran = CliRunner().invoke(pipeline.app, ["maintain", str(root), *flags], catch_exceptions=False)
    assert ran.exit_code == 0
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def aged(root: Path) -> None:
    """All files are of an hour ago."""
    then = time.time() - 3_600
    for path in root.rglob("*"):
        os.utime(path, (then, then))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_is_compacted_and_swept_and_stays_the_same(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic, root = topics.create(), tmp_path / "out"
    for number in range(3):
        topics.fill(topic, [b"%d" % number], timestamp=NOON)
        query(topics, root, topic, kind).run()
    job = query(topics, root, topic, kind)
    table = table_of(kind, Target(str(root)))
    before = job.state()
    aged(root)
    # Each task ran twice: three files are no table's.
    dry = maintain(root, "--dry-run", "--older-than", "0s")
    assert (dry["small"], dry["compacted"], dry["orphans"], dry["dry_run"]) == (3, 0, 3, True)
    assert len(table.files(topic)) == 3
    assert len(list(root.glob("topic=*/**/*.parquet"))) == 6
    done = maintain(root, "--older-than", "1d")
    assert (done["small"], done["compacted"], done["orphans"]) == (3, 1, 0)
    assert len(table.files(topic)) == 1
    assert values(kind, root) == [0, 1, 2]
    # The query does not mind: what the table has is the same, and it goes on.
    assert job.state() == before
    topics.fill(topic, [b"3"], timestamp=NOON)
    assert job.run() == 1
    assert values(kind, root) == [0, 1, 2, 3]
    swept = maintain(root, "--older-than", "0s")
    assert swept["compacted"] == 1
    assert swept["orphans"] >= 7
    if kind == "iceberg":
        assert swept["snapshots"] >= 4
    assert [str(path) for path in root.glob("topic=*/**/*.parquet")] == table.files(topic)
    assert values(kind, root) == [0, 1, 2, 3]
    assert query(topics, root, topic, kind).run() == 0
    again = maintain(root, "--older-than", "0s")
    assert (again["small"], again["orphans"]) == (0, 0)


def test_what_is_no_table_is_refused(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    topics.fill(topic, [b"0"])
    query(topics, tmp_path / "out", topic).run()
    for place in ("out", "nothing"):
        ran = CliRunner().invoke(pipeline.app, ["maintain", str(tmp_path / place)])
        assert isinstance(ran.exception, HeadraceError)
        assert "is not a Delta or Iceberg table" in str(ran.exception)
