"""What the commands of all jobs share: which topics, where Spark runs, and how a run is stopped.

A command is a function whose first parameter is the `Job`, and whose others are its own flags; `job` adds the flags
that all jobs have and fills in what a file of settings says.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.connect import assignments
from headrace.cli.pipeline import beforehand
from headrace.cli.pipeline.display import Display
from headrace.cli.pipeline.failures import explained
from headrace.cli.pipeline.settings import with_file
from headrace.targets import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOOTSTRAP = "127.0.0.1:9092"
SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Parameters by name, with their annotations and defaults, that every job has.
OPTIONS: Mapping[str, tuple[Any, Any]] = {
    "topics": (Annotated[str, typer.Option(metavar="NAMES", help="Topics, several with commas.")], ""),
    "pattern": (Annotated[str, typer.Option(metavar="REGEX", help="Topics by a regular expression instead.")], ""),
    "bootstrap": (
        Annotated[
            str,
            typer.Option(envvar="HEADRACE_BOOTSTRAP", metavar="HOST:PORT", help=f"A broker. By default {BOOTSTRAP}."),
        ],
        "",
    ),
    "data": (
        Annotated[
            str, typer.Option(metavar="DIR", help="The folder of a broker that does not run, or an archive, instead.")
        ],
        "",
    ),
    "option": (
        Annotated[
            list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the source; may be repeated.")
        ],
        None,
    ),
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
            typer.Option(metavar="FILE", help="TOML with a table named like the job with these settings; flags win."),
        ],
        "",
    ),
}


@dataclass(frozen=True)
class Running:
    """A Spark, how far the job has come in it, and whether it was told to end."""

    spark: SparkSession
    display: Display
    stop: Event


@dataclass(frozen=True)
class Job:
    """What a job was told."""

    name: str
    bootstrap: str
    """The broker, also where the topics come from a folder: results go there."""
    source: Mapping[str, Any]
    """Where the topics are, as the jobs' functions take it: topics, pattern, bootstrap or data, options."""
    master: str
    conf: Mapping[str, str]

    @contextmanager
    def running(
        self,
        check: Callable[[], Sequence[str]],
        *,
        writes: str = "",
        stoppable: bool = True,
        shaped: bool = False,
    ) -> Iterator[Running]:
        """A Spark for this job, until it is done. `check` raises where the job's own flags make no sense, and gives the
        topics that it writes. `writes` is a broker that gets results. Signals let a job end behind what it is in, if it
        is `stoppable`. `shaped`: options may say what a row is."""
        from headrace import logs
        from headrace.pipeline import session

        # What goes well is in the display.
        logs.log_like_a_server("warning", "auto")
        with explained():
            beforehand.has_packages()
            written = check()
            beforehand.check(self.master, self.source, writes, written, shaped=shaped)
            with Display(self.name) as display:
                display.show(0, "starting Spark")
                with holding_signals() as held:
                    spark = session.session(f"headrace {self.name}", self.master, self.conf)
                try:
                    if held and not stoppable:
                        sys.exit(128 + held[0])
                    stop = stop_on_signals() if stoppable else Event()
                    if held:
                        stop.set()
                    with explained(stop):
                        yield Running(spark, display, stop)
                finally:
                    _stop(spark)


def _stop(spark: SparkSession) -> None:
    # It may be gone already: killed, or by the same signal as this process.
    with suppress(Exception):
        spark.stop()


def job(command: Callable[..., None]) -> Callable[..., None]:
    """A command of a job: with the flags of all jobs, and with what a file of settings says."""
    name = command.__name__
    own = inspect.signature(command, eval_str=True)
    parameters = list(own.parameters.values())[1:]
    added = [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for option, (annotation, default) in OPTIONS.items()
    ]

    @wraps(command)
    def run(config: str, **flags: Any) -> None:
        flags = {flag: [] if value is None else value for flag, value in flags.items()}
        said = with_file(flags, config, name)
        data = said.pop("data")
        data = local_path(data, "--data") if data else ""
        bootstrap = said.pop("bootstrap") or BOOTSTRAP
        source = {
            "topics": [each.strip() for each in said.pop("topics").split(",") if each.strip()],
            "pattern": said.pop("pattern"),
            "bootstrap": "" if data else bootstrap,
            "data": data,
            "options": assignments(said.pop("option"), "--option"),
        }
        conf = assignments(said.pop("conf"), "--conf")
        command(Job(name, bootstrap, source, said.pop("master") or "local[*]", conf), **said)

    # typer reads the options of a command from its signature.
    run.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters), *added]
    )
    return run


@contextmanager
def holding_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted, and nothing else. PySpark starts a Java that waits for nobody if this process ends
    before it has heard from it."""
    held: list[int] = []

    def told(number: int, frame: FrameType | None) -> None:
        held.append(number)
        os.write(2, b"\nending when Spark has started\n")

    before = {number: signal.signal(number, told) for number in SIGNALS}
    try:
        yield held
    except Exception:
        # What was sent to all processes has ended Spark, too.
        if held:
            sys.exit(128 + held[0])
        raise
    finally:
        for number, handler in before.items():
            # Spark has one of its own.
            if signal.getsignal(number) is told:
                signal.signal(number, handler)


def stop_on_signals() -> Event:
    """Set by SIGINT and SIGTERM: a job ends behind the round that it is in."""
    stop = Event()

    def told(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            sys.exit(128 + number)
        stop.set()
        # Not by print: the signal may have come in the midst of one.
        os.write(2, b"\nending behind what is under way; once more ends it at once\n")

    for number in SIGNALS:
        signal.signal(number, told)
    return stop
