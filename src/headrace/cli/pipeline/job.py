"""What the commands of all jobs share: the topics, where Spark runs, and how a run is stopped.

A command is a function whose first parameter is the `Job`, and whose others are its own flags. `job` adds the flags
that all jobs have, and fills in the settings of a file.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Options, add_options, assignments
from headrace.cli.pipeline import login, preflight
from headrace.cli.pipeline.display import Display
from headrace.cli.pipeline.failures import explain_errors
from headrace.cli.pipeline.settings import merge_file
from headrace.cli.positions import TIME_HELP, parse_time
from headrace.errors import HeadraceError
from headrace.targets import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOOTSTRAP = "127.0.0.1:9092"
SIGNALS = (signal.SIGINT, signal.SIGTERM)

OPTIONS: Options = {
    "topics": (Annotated[str, typer.Option(metavar="NAMES", help="The topics to read, separated by commas.")], ""),
    "pattern": (Annotated[str, typer.Option(metavar="REGEX", help="Read the topics whose names match, instead.")], ""),
    "bootstrap": (
        Annotated[
            str,
            typer.Option(
                envvar="HEADRACE_BOOTSTRAP",
                metavar="HOST:PORT",
                help=f"The broker's Kafka door; by default {BOOTSTRAP}.",
            ),
        ],
        "",
    ),
    "data": (
        Annotated[
            str,
            typer.Option(metavar="DIR", help="Read the data directory of a stopped broker, or an archive, instead."),
        ],
        "",
    ),
    "option": (
        Annotated[
            list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the source; may be repeated.")
        ],
        None,
    ),
    **login.OPTIONS,
    "master": (
        Annotated[
            str,
            typer.Option(help="Where Spark runs, by default local[*]: spark://HOST:PORT, yarn, k8s://..., sc://..."),
        ],
        "",
    ),
    "conf": (
        Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")],
        None,
    ),
    "config": (
        Annotated[
            str,
            typer.Option(
                metavar="FILE", help="TOML with these settings in a table named like the job. Flags override it."
            ),
        ],
        "",
    ),
    "as_json": (
        Annotated[bool, typer.Option("--json", help="Print the result as JSON: the default of all jobs but audit.")],
        False,
    ),
}
# Of a job that finds its topics itself, at a broker.
FINDING = ("pattern", "bootstrap", "option", *login.OPTIONS, "master", "conf", "config", "as_json")
# A backfill: the same range of records again, for jobs that have no such flags of their own.
RANGE_OPTIONS: Options = {
    "since": (
        Annotated[str, typer.Option(metavar="TIME", help=f"Begin at the first record of this time: {TIME_HELP}.")],
        "",
    ),
    "until": (
        Annotated[str, typer.Option(metavar="TIME", help="End before the first record of this time, as --since.")],
        "",
    ),
}


@dataclass(frozen=True)
class Run:
    """A job that runs: its Spark, its display, and the event that stops it."""

    spark: SparkSession
    display: Display
    stop: Event


@dataclass(frozen=True)
class Job:
    """The settings that all jobs have."""

    name: str
    bootstrap: str
    """The broker that gets results, also where the topics come from a folder."""
    source: Mapping[str, Any]
    """The topics, as the jobs' functions take them: topics, pattern, bootstrap or data, options."""
    master: str
    conf: Mapping[str, str]
    as_json: bool = False
    finds_topics: bool = False
    """The job itself finds its topics, at the broker."""

    @contextmanager
    def start(
        self,
        check: Callable[[], Sequence[str]],
        *,
        writes: str = "",
        stoppable: bool = True,
        shaped: bool = False,
    ) -> Iterator[Run]:
        """A Spark for this job. `check` raises where the job's own flags are wrong, and returns the topics that the job
        writes. `writes` is the broker that gets results. On a signal, a `stoppable` job ends where it can resume.
        `shaped`: options may change the shape of a row."""
        from headrace import logs
        from headrace.pipeline import session

        # The display has everything below a warning.
        logs.log_like_a_server("warning", "auto")
        with explain_errors():
            preflight.check_packages()
            written = check()
            preflight.check(self.master, self.source, writes, written, shaped=shaped, finds_topics=self.finds_topics)
            with Display(self.name) as display:
                display.show(0, "starting Spark")
                with hold_signals() as held:
                    spark = session.session(f"headrace {self.name}", self.master, self.conf)
                try:
                    if held and not stoppable:
                        sys.exit(128 + held[0])
                    stop = stop_on_signals() if stoppable else Event()
                    if held:
                        stop.set()
                    with explain_errors(stop):
                        yield Run(spark, display, stop)
                finally:
                    _stop(spark)


def _stop(spark: SparkSession) -> None:
    # It may be gone already: killed, or by the same signal as this process.
    with suppress(Exception):
        spark.stop()


def job(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a job: with the flags of all jobs, and with the settings of a file."""
    has_range = "since" in inspect.signature(command).parameters
    return _make(command, OPTIONS if has_range else {**OPTIONS, **RANGE_OPTIONS})


def finding_job(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a job that finds its topics itself."""
    return _make(command, {name: OPTIONS[name] for name in FINDING})


def _make(command: Callable[..., None], options: Options) -> Callable[..., None]:
    name = command.__name__

    def run(config: str, as_json: bool, **flags: Any) -> None:
        flags = {flag: [] if value is None else value for flag, value in flags.items()}
        settings = merge_file(flags, config, name)
        data = settings.pop("data", "")
        data = local_path(data, "--data") if data else ""
        bootstrap = settings.pop("bootstrap") or BOOTSTRAP
        source = {
            "topics": split(settings.pop("topics", "")),
            "pattern": settings.pop("pattern"),
            "bootstrap": "" if data else bootstrap,
            "data": data,
            "options": login.source_options(settings) | assignments(settings.pop("option"), "--option"),
        }
        if "since" in options:
            source["options"] |= _range(settings.pop("since"), settings.pop("until"), settings.get("every", ""))
        conf = assignments(settings.pop("conf"), "--conf")
        master = settings.pop("master") or "local[*]"
        command(Job(name, bootstrap, source, master, conf, as_json, "topics" not in options), **settings)

    return add_options(command, run, options, ["job"])


def _range(since: str, until: str, every: str) -> dict[str, str]:
    """The source's options for records of some time."""
    if until and every:
        raise HeadraceError("--until and --every exclude each other. A job that keeps running has no end.")
    now = time.time_ns() // 1_000_000
    begin, end = (parse_time(text, now) if text else None for text in (since, until))
    if begin is not None and end is not None and begin >= end:
        raise HeadraceError(f"--since must be before --until (got {since} and {until})")
    times = {"startingTimestamp": begin, "endingTimestamp": end}
    return {name: str(value) for name, value in times.items() if value is not None}


def split(text: str) -> list[str]:
    """Names that are separated by commas."""
    return [each.strip() for each in text.split(",") if each.strip()]


@contextmanager
def hold_signals() -> Iterator[list[int]]:
    """Hold SIGINT and SIGTERM back. The Java that PySpark starts never ends if this process ends before the two have
    connected."""
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)
        os.write(2, b"\nending once Spark has started\n")

    before = {number: signal.signal(number, hold) for number in SIGNALS}
    try:
        yield held
    except Exception:
        # A signal to all processes has ended Spark, too.
        if held:
            sys.exit(128 + held[0])
        raise
    finally:
        for number, handler in before.items():
            # Spark may have set its own.
            if signal.getsignal(number) is hold:
                signal.signal(number, handler)


def stop_on_signals() -> Event:
    """An event that SIGINT and SIGTERM set, for the job to end where the next run can resume."""
    stop = Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            sys.exit(128 + number)
        stop.set()
        # Not by print: the signal may have interrupted one.
        os.write(2, b"\nending: what is unfinished is for the next run; a second signal ends the job at once\n")

    for number in SIGNALS:
        signal.signal(number, on_signal)
    return stop
