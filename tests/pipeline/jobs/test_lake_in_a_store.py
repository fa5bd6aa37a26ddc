"""`headrace pipeline lake` with its tables in an S3-compatible store and an Iceberg REST catalogue, both real.
Tables are queried while they are written, and the driver, the broker, the store and the catalogue are killed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bench.peers import Missing
from bench.peers.iceberg import IcebergRest
from bench.peers.s3 import KEY, PLAIN, S3, SECRET
from tests.pipeline.topics import Topics
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

for package in ("pyspark", "deltalake", "pyiceberg"):
    pytest.importorskip(package)
duckdb = pytest.importorskip("duckdb")

from tests.pipeline.jobs.test_lake_on_spark import SECONDS, Driver, Sent  # noqa: E402 -- packages may be missing

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1_500)]

AWAY = "the table cannot be written"


class Place:
    """The store and the catalogue, and what a reader finds there that knows nothing of Headrace."""

    def __init__(self, store: S3, catalogue: IcebergRest) -> None:
        self.store, self.catalogue = store, catalogue
        self.tables: dict[str, str] = {}
        """Where each topic's table is."""

    def numbers(self, topic: str) -> list[int]:
        """What DuckDB finds now, each number as often as it is there."""
        found = self._load(topic)
        if found is None or "number" not in found.schema.names:
            return []
        return [number for (number,) in duckdb.sql("SELECT number FROM found").fetchall()]

    def _load(self, topic: str) -> Any:
        kind, _, url = self.tables[topic].partition("+")
        if kind == "delta":
            from deltalake import DeltaTable

            options = {**self.store.options, "AWS_ALLOW_HTTP": "true"}
            return DeltaTable(url, storage_options=options).to_pyarrow_table() if self._is_delta(url, options) else None
        from pyiceberg.catalog import load_catalog

        reach = {"s3.endpoint": self.store.options["AWS_ENDPOINT_URL"], "s3.region": "us-east-1"}
        reach |= {"s3.access-key-id": KEY, "s3.secret-access-key": SECRET}
        catalog = load_catalog("reader", type="rest", uri=self.catalogue.uri, **reach)
        name = f"headrace.{topic}"
        return catalog.load_table(name).scan().to_arrow() if catalog.table_exists(name) else None

    @staticmethod
    def _is_delta(url: str, options: dict[str, str]) -> bool:
        from deltalake import DeltaTable

        return DeltaTable.is_deltatable(url, options)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with ExitStack() as running:
        try:
            store = S3()
            catalogue = IcebergRest(store, "s3://lake/warehouse")
        except Missing as reason:
            pytest.skip(str(reason))
        running.callback(store.stop)
        store.start("lake")
        running.callback(catalogue.stop)
        catalogue.start()
        named = {"TYPE": "rest", "URI": catalogue.uri}
        configured = {f"PYICEBERG_CATALOG__LAKE__{name}": value for name, value in named.items()}
        for name, value in (store.options | PLAIN | configured).items():
            monkeypatch.setenv(name, value)
        yield Place(store, catalogue)


def test_tables_in_a_store_follow_their_topics_through_kills(place: Place, tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        topics = Topics(broker.kafka)
        for kind in ("delta", "iceberg"):
            where = f"{kind}+s3://lake/{kind}"
            place.tables[topics.create(2, lake=where, lake_freshness_ms="2000")] = where
        sent = Sent(topics, list(place.tables))
        errors, checkpoints = tmp_path / "stderr", tmp_path / "checkpoints"
        flags = ("--catalog", "lake", "--checkpoints", str(checkpoints))

        def look() -> bool:
            """Whether each table has what was sent. At no time does a table have a record twice, or one of nobody."""
            whole = True
            for topic in place.tables:
                found = Counter(place.numbers(topic))
                assert set(found.values()) <= {1}, (topic, found.most_common(3))
                assert found.keys() <= set(sent.values[topic])
                whole &= len(found) == len(sent.values[topic])
            return whole

        def wait(driver: Driver, until: Any) -> None:
            wait_until(until, seconds=SECONDS, turn=lambda: driver.check() or time.sleep(0.2))

        def at_work(driver: Driver) -> None:
            """Wait until a batch of each topic has begun that was not there."""
            begun = [set(each.glob("offsets/*")) for each in sorted(checkpoints.iterdir())]
            sent.send(100, more="x")

            def both_began() -> bool:
                now = [set(each.glob("offsets/*")) for each in sorted(checkpoints.iterdir())]
                return all(after - before for before, after in zip(begun, now, strict=True))

            wait(driver, both_began)

        def failures() -> int:
            return errors.read_text().count(AWAY)

        sent.send(50)
        with Driver(broker.kafka, errors, *flags) as driver:
            wait(driver, look)
            at_work(driver)
            driver.kill()
        sent.send(20)
        with Driver(broker.kafka, errors, *flags) as driver:
            wait(driver, look)
            at_work(driver)
            broker.kill()
            time.sleep(1)
            broker.start()
            wait(driver, look)
            for server in (place.store, place.catalogue):
                before = failures()
                at_work(driver)
                server.kill()
                sent.send(10)
                # The job has met it: it reports that, and tries again.
                wait(driver, lambda before=before: failures() > before)
                server.restart()
                wait(driver, look)
            rows = len(next(iter(sent.values.values())))
            wait(driver, lambda: all(sum(topics.committed(f"lake-{topic}").values()) == rows for topic in place.tables))
            done = driver.stop()
        assert rows == 2 * (50 + 100 + 20 + 100 + 2 * (100 + 10))
        assert {
            name: (each["rows"], each["misfits"], each["lost"], each["error"]) for name, each in done.items()
        } == dict.fromkeys(place.tables, (rows, 0, 0, ""))
