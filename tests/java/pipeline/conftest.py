"""A Spark with its own Kafka connector, where that is to be had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from bench.peers import Missing, jars
from tests.pipeline.conftest import a_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def connector() -> list[str]:
    """The connector's jars."""
    try:
        return jars.connector()
    except Missing as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        settings = {"spark.jars": ",".join(jars.connector())}
    except Missing:
        settings = {}
    with a_spark(tmp_path_factory.mktemp("warehouse"), **settings) as session:
        yield session
