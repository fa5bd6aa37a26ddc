"""A Spark for a job: on this machine, or on a cluster by its address."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkMissing(HeadraceError):
    """There is no PySpark, or no Java for it."""


def session(name: str, master: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session that says nothing but errors. `conf` are settings of Spark, and win over those made here."""
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissing(f"jobs run on Spark: pip install 'headrace[pipeline]' ({error})") from None
    # Workers must run the same Python, with the same packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**settings, **(conf or {})}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise SparkMissing(f"Spark does not start on {master}: it needs a Java 17 or newer ({error})") from None
