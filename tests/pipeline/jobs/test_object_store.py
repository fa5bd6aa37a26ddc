"""Tables in an S3-compatible store that really runs, with kills of the query and of the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from bench.peers import Missing
from bench.peers.s3 import PLAIN, S3
from tests.pipeline.jobs.test_tables import HOUR, NOON, Killed
from tests.pipeline.topics import Topics

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("pyspark")

from tests.pipeline.jobs.test_lake import Frame  # noqa: E402 -- the packages above may be missing
from tests.pipeline.micro_batches import Query  # noqa: E402

import headrace  # noqa: E402
from headrace.pipeline import tables  # noqa: E402
from headrace.pipeline.lake_batch import LakeTable  # noqa: E402
from headrace.pipeline.options import parse  # noqa: E402
from headrace.pipeline.origin import Range  # noqa: E402
from headrace.pipeline.range_reader import read_range  # noqa: E402
from headrace.pipeline.table_sink import TableWriter  # noqa: E402
from headrace.pipeline.target import Target  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

KINDS = ("delta", "iceberg")


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with headrace.Broker(data=str(tmp_path_factory.mktemp("data"))) as running:
        yield Topics(running.kafka)


@pytest.fixture(scope="module")
def store() -> Iterator[S3]:
    try:
        running = S3()
    except Missing as reason:
        pytest.skip(str(reason))
    with pytest.MonkeyPatch.context() as patching:
        for name, value in PLAIN.items():
            patching.setenv(name, value)
        try:
            running.start("lake")
            yield running
        finally:
            running.stop()


class Lake:
    """A table in the store, and what is needed to write and to read it."""

    def __init__(self, store: S3, topics: Topics, topic: str, kind: str, folder: Path) -> None:
        self.url = f"s3://lake/{uuid4().hex}"
        self._store, self._kind, self._folder = store, kind, folder
        self._source = {"kafka.bootstrap.servers": topics.address, "subscribe": topic, "maxOffsetsPerTrigger": "20"}

    def query(self) -> Query:
        more = {f"storage.{name}": value for name, value in self._store.options.items()}
        if self._kind == "iceberg":
            more |= {"catalog": "lake", "tableName": "logs.events"}
        return Query(self._source, self.url, self._kind, checkpoint=self._folder / "checkpoint", **more)

    def values(self) -> list[int]:
        """What a reader finds that knows nothing of Headrace."""
        if self._kind == "delta":
            options = {**self._store.options, "AWS_ALLOW_HTTP": "true"}
            found: Any = deltalake.DeltaTable(self.url, storage_options=options).to_pyarrow_table()
        else:
            from pyiceberg.catalog import load_catalog

            reach = {"s3.endpoint": self._store.options["AWS_ENDPOINT_URL"], "s3.region": "us-east-1"}
            reach |= {"s3.access-key-id": "headrace", "s3.secret-access-key": "headrace-secret"}
            found = load_catalog("lake", **reach).load_table("logs.events").scan().to_arrow()
        return sorted(int(value) for value in found.column("value").to_pylist())


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue in pyiceberg's own configuration."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", "s3://lake/warehouse")
    # Read when pyiceberg is imported.
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_in_a_store_has_each_record_once_through_kills(
    store: S3, topics: Topics, tmp_path: Path, kind: str
) -> None:
    """It fails where a commit does not check which batch and which offsets the table has: records come twice."""
    topic = topics.create()
    topics.fill(topic, (b"%d" % number for number in range(20)), timestamp=NOON)
    topics.fill(topic, (b"%d" % number for number in range(20, 40)), timestamp=NOON + HOUR)
    lake = Lake(store, topics, topic, kind, tmp_path)

    def dying(*_: Any) -> None:
        raise Killed

    # Killed before its commit, and behind it.
    for name, place, seen in ((tables, "commit", []), (Query, "_remember_commit", list(range(20)))):
        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(name, place, dying)
            with pytest.raises(Killed):
                lake.query().run()
        assert lake.values() == seen
    # The store is killed while a task writes, and again before the commit: the query fails, and is started again.
    write, commit = TableWriter.write_task, TableWriter.commit
    for method, real in (("write_task", write), ("commit", commit)):

        def without_store(*given: Any, real: Any = real, **named: Any) -> Any:
            store.kill()
            return real(*given, **named)

        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(TableWriter, method, without_store)
            with pytest.raises(OSError, match=r"AWS Error|127\.0\.0\.1"):
                lake.query().run()
        store.restart()
        assert lake.values() == list(range(20))
    job = lake.query()
    job.run()
    assert lake.values() == list(range(40))
    assert job.state().offsets == {(topic, 0): (0, 40)}
    assert lake.query().run() == 0
    if kind == "delta":
        # The source reads it, with credentials of the environment.
        with pytest.MonkeyPatch.context() as patching:
            for name, value in store.options.items():
                patching.setenv(name, value)
            given = parse({"path": lake.url, "subscribe": topic}, streaming=False)
            blocks = list(read_range(given, Range(topic, 0, 5, 35)))
        assert sorted(row["offset"] for block in blocks for row in block.to_pylist()) == list(range(5, 35))


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("kind", KINDS)
def test_the_table_of_a_topic_grows_in_a_store(store: S3, kind: str) -> None:
    options = {name.lower(): value for name, value in store.options.items()}
    target = Target.of(f"s3://lake/{uuid4().hex}", "lake", options)
    table = LakeTable("orders.eu", "1", kind, target, "lake" if kind == "iceberg" else "")
    table.prepare()
    table(Frame([b'{"id": 0}'], [b'{"id": 1, "o": {"a": 1}}']), 0)
    table(Frame([b'{"id": 1, "o": {"a": 1}}', b'{"id": 2, "o": {"b": "x"}}', b"text"], first=1), 1)
    table.prepare()
    loaded: Any = table.open().load()  # type: ignore[attr-defined]
    found = loaded.to_pyarrow_table() if kind == "delta" else loaded.scan().to_arrow()
    rows = sorted(found.to_pylist(), key=lambda row: row["_offset"])
    assert [(row["id"], row["o"] and row["o"]["b"], row["_value"]) for row in rows] == [
        (0, None, None),
        (1, None, None),
        (2, "x", None),
        (None, None, b"text"),
    ]
    assert list(table.open().state().offsets.values()) == [(0, 4)]
