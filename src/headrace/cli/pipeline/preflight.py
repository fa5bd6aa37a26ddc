"""Checks before Spark is started.

Spark takes seconds to start, and a client waits for a broker that is away. A mistyped address or topic, or a missing
package, should be reported at once.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.pipeline.options import SourceOptions

PACKAGES = ("pyarrow", "pyspark")
MASTER_SECONDS = 5.0
# Masters that are no addresses, as Spark reads them.
HERE = re.compile(r"local(\[(\d*[1-9]\d*|\*)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn")


def check(
    master: str,
    source: Mapping[str, Any],
    broker: str = "",
    written: Sequence[str] = (),
    *,
    shaped: bool = False,
    finds_topics: bool = False,
) -> None:
    """Raises where Java, the topics to read, or the broker for the results is missing, where the job would read topics
    that it has `written`, and where options change the shape of a row, unless the job is `shaped` by them. A job that
    `finds_topics` itself needs a broker alone."""
    from headrace.pipeline.jobs.rounds import refuse_loop, refuse_shape, source_of

    if not shaped:
        refuse_shape(source["options"])
    check_java(master)
    check_master(master)
    if finds_topics:
        check_broker(source_of(**{**source, "pattern": source["pattern"] or ".*"}))
        return
    check_topics(source)
    refuse_loop(source_of(**source), broker, written)
    if broker and broker != source["bootstrap"]:
        from headrace.pipeline.jobs.rounds import connection_of_writer
        from headrace.pipeline.options import parse

        ways = connection_of_writer(source["options"], source["bootstrap"], broker)
        check_broker(parse({"kafka.bootstrap.servers": broker, "subscribe": "-", **ways}, streaming=False))


def check_packages() -> None:
    for name in PACKAGES:
        try:
            import_module(name)
        except ImportError as error:
            from headrace.pipeline.session import SparkMissing

            raise SparkMissing(
                f"jobs run on Spark, which is not installed. Run pip install 'headrace[pipeline]'. ({error})"
            ) from None


def check_java(master: str) -> None:
    from headrace.pipeline.session import SparkMissing, is_remote

    if is_remote(master):
        return
    home = os.environ.get("JAVA_HOME", "")
    if home and not Path(home, "bin", "java").exists():
        raise SparkMissing(f"Spark needs Java 17 or newer, and JAVA_HOME has no bin/java ({home})")
    if not home and shutil.which("java") is None:
        raise SparkMissing("Spark needs Java 17 or newer: there is no java in PATH, and JAVA_HOME is not set")


def check_master(master: str) -> None:
    """Check that a standalone cluster's master answers: Spark itself tries for a minute, and then reports little."""
    from headrace.pipeline.session import SparkMissing

    if "://" not in master and not HERE.fullmatch(master):
        raise SparkMissing(
            f"--master must be local[N], spark://HOST:PORT, yarn, k8s://... or sc://... (got {master!r})"
        )
    if not master.startswith("spark://"):
        return
    failures = []
    # Of several masters one is active, the others stand by.
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host, int(port)), MASTER_SECONDS).close()
        except (OSError, ValueError, OverflowError) as error:
            failures.append(f"{place}: {error}")
        else:
            return
    raise SparkMissing(f"no Spark master answers at {master} ({'; '.join(failures)})")


def check_topics(source: Mapping[str, Any]) -> None:
    from headrace.pipeline import read_plan
    from headrace.pipeline.jobs.rounds import TOPICS, ask, source_of

    ways = [flag for flag in ("topics", "pattern") if source[flag]]
    others = {name.lower() for name in source["options"]} & set(TOPICS)
    if not ways and not others:
        raise HeadraceError("--topics or --pattern is missing. Give the topics to read.")
    if len(ways) == 2:
        raise HeadraceError("--topics and --pattern exclude each other. Give one of them.")
    options = source_of(**source)
    if not options.folder:
        check_broker(options)
    # A pattern may fit nothing yet.
    ask(options, lambda origin: read_plan.find_partitions(origin, options))


def check_broker(options: SourceOptions) -> None:
    """Connect once, without retries."""
    import asyncio

    from headrace.pipeline.broker import make_client

    async def reach() -> None:
        async with make_client(options) as client:
            await client.cluster.any_node()

    asyncio.run(reach())
