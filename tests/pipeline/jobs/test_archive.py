"""`archive` without a Spark: what it does where the broker is away, and where records were gone first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from bench.peers import free_port
from tests.pipeline.topics import Topics

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow.dataset as ds
from tests.pipeline.micro_batches import Query

import headrace
from headrace.client.errors import ConnectionLost, RequestTimeout
from headrace.pipeline.jobs import Archived, archive, rounds
from headrace.pipeline.origin import DataLost

job: Any = sys.modules["headrace.pipeline.jobs.archive"]


def values(root: Path) -> list[int]:
    found = ds.dataset(root, format="parquet", partitioning="hive").to_table().column("value").to_pylist()
    return sorted(map(int, found))


class RunningQuery:
    """A query of Spark that goes on: a batch for each look, if there is something to be read."""

    def __init__(self, source: dict[str, str], sink: dict[str, str], once: bool) -> None:
        given = {"path", "table", "checkpointLocation"}
        more = {name: value for name, value in sink.items() if name not in given}
        checkpoint = Path(sink["checkpointLocation"])
        self._query = Query(source, sink["path"], sink["table"], checkpoint=checkpoint, **more)
        self._once = once
        self._failure: Exception | None = None
        self.isActive = True
        self.recentProgress: list[dict[str, Any]] = []

    def awaitTermination(self, seconds: float) -> None:  # noqa: N802 -- Spark's name
        try:
            self._query.run()
            progress = {"timestamp": "", "batchId": len(self.recentProgress)}
            self.recentProgress.append({**progress, "sources": [{"endOffset": None, "latestOffset": None}]})
            self.isActive = not self._once
        except Exception as error:
            self._failure, self.isActive = error, False

    def stop(self) -> None:
        self.isActive = False

    def exception(self) -> Exception | None:
        return self._failure


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "sibling_session", lambda spark: spark)
    monkeypatch.setattr(job._Job, "_start", lambda self, _: RunningQuery(self.source, self.sink, self.every is None))


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[Topics]:
    with headrace.Broker(data=str(tmp_path / "data")) as running:
        yield Topics(running.kafka)


def test_what_retention_took_first_is_reported(topics: Topics, tmp_path: Path) -> None:
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, (b"%d" % number for number in range(10)))
    given: Any = {"to": root, "topics": [topic], "bootstrap": topics.address}
    assert archive(None, **given).rows == 10  # type: ignore[arg-type]
    topics.fill(topic, (b"%d" % number for number in range(10, 20)))
    topics.ask(lambda client: client.admin.delete_records({(topic, 0): 15}))
    with pytest.raises(DataLost, match="10 was to be read first, and the log begins at 15"):
        archive(None, **given)  # type: ignore[arg-type]
    assert archive(None, **given, options={"failOnDataLoss": "false"}).rows == 5  # type: ignore[arg-type]
    assert values(root) == [*range(10), *range(15, 20)]


def test_a_broker_that_is_away_for_long_does_not_end_a_job_that_goes_on(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with ExitStack() as life, ExitStack() as running:
        address = f"127.0.0.1:{free_port()}"
        running.enter_context(headrace.Broker(data=data, kafka=address))
        topics = Topics(address)
        topic = topics.create()
        topics.fill(topic, [b"0", b"1"])

        class Waiting(Event):
            """The broker comes back while the job waits for it."""

            def wait(self, timeout: float | None = None) -> bool:
                if timeout != rounds.AWAY_SECONDS:
                    return super().wait(timeout)
                life.enter_context(headrace.Broker(data=data, kafka=address))
                topics.fill(topic, [b"2"])
                return False

        stop = Waiting()

        def progress(archived: Archived) -> None:
            if archived.rows == 2:
                running.close()
            elif archived.rows == 1:
                # Counted from where the job began again.
                stop.set()

        given: Any = {"topics": [topic], "bootstrap": topics.address, "options": {"timeout": "1"}}
        archive(None, to=tmp_path / "out", every=0.05, stop=stop, progress=progress, **given)  # type: ignore[arg-type]
        # What has an end does not wait for long: the caller wants to know.
        life.close()
        with pytest.raises(ConnectionLost):
            archive(None, to=tmp_path / "out", **given)  # type: ignore[arg-type]
    assert values(tmp_path / "out") == [0, 1, 2]


def test_an_outage_is_told_from_other_errors() -> None:
    away = "pyspark...\n  File x\nheadrace.client.errors.ConnectionLost: no broker can be reached\n\tat org.apache"
    found = [rounds.is_outage(each) for each in (RuntimeError(away), RequestTimeout("x"), DataLost("x"))]
    assert found == [True, True, False]
    assert rounds.find_reason(RuntimeError(away)) == "no broker can be reached"
    assert rounds.find_reason(RuntimeError("one\ntwo")) == "one"
