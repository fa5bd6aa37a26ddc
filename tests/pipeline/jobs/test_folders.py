"""Whose a folder or a checkpoint is, what must not be read, and what connects to a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from headrace.errors import HeadraceError
from headrace.pipeline import tables
from headrace.pipeline.jobs.folders import ARCHIVE, LOGS, LOGS_SETTINGS, PLAN, REPLAY, check_folder, take_checkpoint
from headrace.pipeline.jobs.publisher import Publisher
from headrace.pipeline.jobs.rounds import connection, refuse_loop
from headrace.pipeline.manifest import ParquetFolder
from headrace.pipeline.options import parse
from headrace.pipeline.target import Target

QUERIES = ("questions", "counts")


def committed(root: Path) -> Path:
    table = ParquetFolder(Target(str(root)))
    table.recover()
    tables.commit(table, "q", 0, [], {("t", 0): (0, 7)})
    return root


def test_a_folder_of_another_job_is_refused(tmp_path: Path) -> None:
    archive, logs, replay = (committed(tmp_path / name) for name in (ARCHIVE, LOGS, REPLAY))
    (logs / LOGS_SETTINGS).touch()
    (replay / PLAN).touch()
    for root in (archive, logs, replay):
        for job in (ARCHIVE, LOGS, REPLAY):
            if root.name == job:
                check_folder(root, job)
            else:
                with pytest.raises(HeadraceError, match=f"has the results of `{root.name}`, and cannot .* `{job}`"):
                    check_folder(root, job)
    for job in (ARCHIVE, LOGS, REPLAY):
        check_folder(tmp_path / "new", job)


def test_a_checkpoint_says_whose_it_is(tmp_path: Path) -> None:
    checkpoint = tmp_path / "deep" / "checkpoint"
    take_checkpoint(checkpoint, "sessions", "questions", QUERIES)
    (checkpoint / "questions").mkdir()
    take_checkpoint(checkpoint, "sessions", "questions", QUERIES)
    with pytest.raises(HeadraceError, match="is that of `sessions` to questions, not of `sessions` to others"):
        take_checkpoint(checkpoint, "sessions", "others", QUERIES)
    # One of before it was said so.
    old = tmp_path / "old"
    (old / "questions").mkdir(parents=True)
    take_checkpoint(old, "sessions", "questions", QUERIES)
    # A query of Spark's own, or somebody's home.
    strange = tmp_path / "strange"
    (strange / "commits").mkdir(parents=True)
    with pytest.raises(HeadraceError, match="it contains commits"):
        take_checkpoint(strange, "sessions", "questions", QUERIES)
    (checkpoint / "headrace.json").write_text("[")
    with pytest.raises(HeadraceError, match="something else"):
        take_checkpoint(checkpoint, "sessions", "questions", QUERIES)


@pytest.mark.parametrize(
    ("chosen", "loops"),
    [
        ({"subscribe": "site"}, False),
        ({"subscribe": "site,site.state"}, True),
        ({"subscribePattern": "site"}, False),
        ({"subscribePattern": "site.*"}, True),
    ],
)
def test_what_is_written_is_not_read(chosen: dict[str, str], loops: bool) -> None:
    source = parse({"kafka.bootstrap.servers": "a:1", **chosen}, streaming=False)
    refuse_loop(source, "b:1", ["site.events", "site.state"])
    if loops:
        with pytest.raises(HeadraceError, match="is written, and would be read, too"):
            refuse_loop(source, "a:1", ["site.events", "site.state"])
    else:
        refuse_loop(source, "a:1", ["site.events", "site.state"])


def test_what_says_how_to_connect_holds_for_results_too() -> None:
    given = {"Kafka.SSL.truststore.location": "/ca", "timeout": "5", "failOnDataLoss": "false", "isolation": "x"}
    assert connection(given) == {"Kafka.SSL.truststore.location": "/ca", "timeout": "5"}
    assert connection(None) == {}
    assert Publisher("a:1", "t", "app", connection(given))._options.ca == "/ca"
