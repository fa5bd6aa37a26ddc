"""One Spark and one broker for all tests of the pipeline."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bench.peers import Missing
from bench.peers.spark import Cluster
from tests.pipeline.topics import Topics

import headrace
from headrace.pipeline.interpreter import interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # Tests are short: code that runs a few times is not worth compiling well.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
}


@contextmanager
def a_spark(warehouse: Path, **settings: str) -> Iterator[SparkSession]:
    """A Spark in this process, which can have one at a time."""
    sql: Any = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None:
        pytest.skip("Spark needs a Java 17 or newer")
    os.environ["PYSPARK_PYTHON"] = interpreter()
    builder = sql.SparkSession.builder.master("local[2]").appName("headrace tests")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.warehouse.dir", str(warehouse)).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with a_spark(tmp_path_factory.mktemp("warehouse")) as session:
        yield session


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    data: Path = tmp_path_factory.mktemp("broker")
    with headrace.Broker(data=str(data)) as broker:
        yield Topics(broker.kafka)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A standalone Spark of two workers."""
    pytest.importorskip("pyspark")
    try:
        running = Cluster()
    except Missing as reason:
        pytest.skip(str(reason))
    try:
        running.start()
        yield running
    finally:
        running.stop()
