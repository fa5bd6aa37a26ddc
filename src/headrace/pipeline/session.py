"""A Spark for a job: on this machine, on a cluster by its address, or behind a Spark Connect server.

Whatever runs tasks must have the same Python with Headrace in it: by default at the path where it is here, or where
`PYSPARK_PYTHON` says. A Connect server has the Python and the settings that it was started with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.pipeline.interpreter import interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


class SparkMissing(HeadraceError):
    """There is no PySpark, or no Java for it."""


def session(name: str, master: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session that logs errors only. `conf` are settings of Spark, and win over those made here."""
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissing(f"jobs run on Spark: pip install 'headrace[pipeline]' ({error})") from None
    builder = SparkSession.builder.appName(name)
    settings = {"spark.sql.session.timeZone": "UTC"}
    if is_remote(master):
        builder = builder.remote(master)
    else:
        # Workers must run the same Python, with the same packages: see `headrace.pipeline`.
        if master.startswith("local") and os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable:
            os.environ["PYSPARK_PYTHON"] = interpreter()
        builder = builder.master(master)
        settings |= {
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
        }
        if _is_here(master):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for key, value in {**settings, **(conf or {})}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise SparkMissing(f"Spark does not start on {master}: it needs a Java 17 or newer ({error})") from None
    except ImportError as error:
        raise SparkMissing(f"{master} needs more: pip install 'headrace[connect]' ({error})") from None


def sibling_session(
    spark: SparkSession, conf: Mapping[str, str] | None = None, partitions: int | None = None
) -> SparkSession:
    """A session beside the given one, with settings of its own; behind a Connect server, the given one. A shuffle has
    so many `partitions`, or, where neither this nor the context configures it, as many as tasks run at once: Spark's
    200 are for clusters."""
    settings = dict(conf or {})
    own = spark
    if not is_connect(spark):
        own = spark.newSession()
        context = spark.sparkContext
        if partitions is not None or context.getConf().get(SHUFFLE_PARTITIONS) is None:
            settings[SHUFFLE_PARTITIONS] = str(partitions or max(2, context.defaultParallelism))
        if spark.getActiveSession() is None:
            # Spark asks the active session of a thread whether there is a source, and only the first thread has one.
            assert spark._jvm is not None
            spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    for key, value in settings.items():
        own.conf.set(key, value)
    return own


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """The session that Spark takes for this thread's; behind a Connect server, each call names its own."""
    if is_connect(spark):
        yield
        return
    assert spark._jvm is not None
    sessions = spark._jvm.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def is_connect(spark: SparkSession) -> bool:
    """Whether this session is that of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_remote(master: str) -> bool:
    """Whether this is the address of a Spark Connect server."""
    return master.startswith("sc://")


def _is_here(master: str) -> bool:
    """Whether workers reach the driver over loopback; elsewhere Spark finds the driver's name itself."""
    return master.startswith(("local", "spark://127.", "spark://localhost:"))
