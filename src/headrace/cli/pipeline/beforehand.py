"""What can be seen to be wrong before Spark is started.

Spark takes seconds to start, and a client of a broker waits for one that is away. Whoever has mistyped an address or a
topic, or lacks a package, wants to know now.
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
    master: str, source: Mapping[str, Any], broker: str = "", written: Sequence[str] = (), *, shaped: bool = False
) -> None:
    """Raises where Java, the topics to be read, or the broker that gets results are missing, where topics that are
    `written` there would be read, and where options say what a row is, unless the job lets them."""
    from headrace.pipeline.jobs.rounds import refuse_loop, refuse_shape, source_of

    if not shaped:
        refuse_shape(source["options"])
    has_java(master)
    has_master(master)
    topics_are_there(source)
    refuse_loop(source_of(**source), broker, written)
    if broker and broker != source["bootstrap"]:
        from headrace.pipeline.jobs.rounds import connection
        from headrace.pipeline.options import parse

        # Of the source's options, those that say how to connect hold for its own broker.
        answers(
            parse(
                {"kafka.bootstrap.servers": broker, "subscribe": "-", **connection(source["options"])}, streaming=False
            )
        )


def has_packages() -> None:
    for name in PACKAGES:
        try:
            import_module(name)
        except ImportError as error:
            from headrace.pipeline.session import SparkMissing

            raise SparkMissing(
                f"jobs run on Spark, which is not installed: pip install 'headrace[pipeline]' ({error})"
            ) from None


def has_java(master: str) -> None:
    from headrace.pipeline.session import SparkMissing, is_remote

    if is_remote(master):
        return
    home = os.environ.get("JAVA_HOME", "")
    if home and not Path(home, "bin", "java").exists():
        raise SparkMissing(f"Spark needs a Java 17 or newer, and JAVA_HOME, {home}, has no bin/java in it")
    if not home and shutil.which("java") is None:
        raise SparkMissing("Spark needs a Java 17 or newer: there is no java in PATH, and JAVA_HOME is not set")


def has_master(master: str) -> None:
    """A standalone cluster's master must answer: Spark itself tries for a minute, and then says little."""
    from headrace.pipeline.session import SparkMissing

    if "://" not in master and not HERE.fullmatch(master):
        raise SparkMissing(
            f"{master!r} is no place for Spark to run: local[N], spark://HOST:PORT, yarn, k8s://..., sc://..."
        )
    if not master.startswith("spark://"):
        return
    failures = []
    # Of several, one is in charge, and the others wait.
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host, int(port)), MASTER_SECONDS).close()
        except (OSError, ValueError, OverflowError) as error:
            failures.append(f"{place}: {error}")
        else:
            return
    raise SparkMissing(f"no Spark master answers at {master} ({'; '.join(failures)})")


def topics_are_there(source: Mapping[str, Any]) -> None:
    from headrace.pipeline import planning
    from headrace.pipeline.jobs.rounds import TOPICS, ask, source_of

    ways = [flag for flag in ("topics", "pattern") if source[flag]]
    others = {name.lower() for name in source["options"]} & set(TOPICS)
    if not ways and not others:
        raise HeadraceError("--topics or --pattern is missing: what is to be read")
    if len(ways) == 2:
        raise HeadraceError("--topics or --pattern says what is to be read: give one, not both")
    options = source_of(**source)
    if not options.folder:
        answers(options)
    # A pattern may fit nothing yet.
    ask(options, lambda origin: planning.partitions_of(origin, options))


def answers(options: SourceOptions) -> None:
    """Once, without retries."""
    import asyncio

    from headrace.pipeline.broker import client_of

    async def reach() -> None:
        async with client_of(options) as client:
            await client.cluster.any_node()

    asyncio.run(reach())
