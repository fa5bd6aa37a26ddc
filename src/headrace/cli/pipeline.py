"""`headrace pipeline`: jobs over topics, on Spark.

Every job is a function of `headrace.pipeline.jobs`; a command adds flags or a file of settings, a Spark session, and a
display of how far it has come.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import tomllib
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.connect import assignments
from headrace.cli.durations import HELP as DURATIONS
from headrace.cli.durations import parse_duration
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.pipeline.jobs import Archived

app = typer.Typer(help="Jobs over topics, on Spark: pip install 'headrace[pipeline]'.", no_args_is_help=True)

SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@app.callback()
def jobs() -> None:
    """Jobs over topics, on Spark: pip install 'headrace[pipeline]'."""


@app.command()
def archive(
    to: Annotated[str, typer.Option(metavar="DIR", help="The archive's folder, made if it is missing.")] = "",
    topics: Annotated[str, typer.Option(metavar="NAMES", help="Topics, several with commas.")] = "",
    pattern: Annotated[str, typer.Option(metavar="REGEX", help="Topics by a regular expression instead.")] = "",
    bootstrap: Annotated[
        str, typer.Option(envvar="HEADRACE_BOOTSTRAP", metavar="HOST:PORT", help="A broker. [default: 127.0.0.1:9092]")
    ] = "",
    data: Annotated[str, typer.Option(metavar="DIR", help="The folder of a broker that does not run, instead.")] = "",
    group: Annotated[
        str, typer.Option(help="The consumer group that says how far it is. [default: archive-FOLDER]")
    ] = "",
    every: Annotated[
        str, typer.Option(metavar="DURATION", help=f"Go on, and add files at least so often: {DURATIONS}.")
    ] = "",
    file_size: Annotated[str, typer.Option(metavar="SIZE", help="A file is closed at this size. [default: 128m]")] = "",
    master: Annotated[str, typer.Option(help="Where Spark runs: local[N], spark://HOST:PORT, yarn, k8s://...")] = "",
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the source; may be repeated.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
    ] = None,
    config: Annotated[
        str, typer.Option(metavar="FILE", help="TOML with a table [archive] that has these settings; flags win.")
    ] = "",
) -> None:
    """Topics into Parquet files by date and hour, each record once."""
    flags = {
        "to": to, "topics": topics, "pattern": pattern, "bootstrap": bootstrap, "data": data, "group": group,
        "every": every, "file_size": file_size, "master": master,
        "option": option or [], "conf": conf or [],
    }  # fmt: skip
    said = _with_file(flags, config, "archive")
    if not said["to"]:
        raise HeadraceError("--to is missing: the folder of the archive")
    if not said["data"]:
        said["bootstrap"] = said["bootstrap"] or "127.0.0.1:9092"
    interval = parse_duration(said["every"]) / 1000 if said["every"] else None
    size = parse_size(said["file_size"] or "128m")

    from headrace.logs import log_like_a_server
    from headrace.pipeline.jobs import archive as run
    from headrace.pipeline.session import session

    # What goes well is in the display.
    log_like_a_server("warning", "auto")
    spark = session("headrace archive", said["master"] or "local[*]", assignments(said["conf"], "--conf"))
    stop = _stop_on_signals()
    try:
        with Display("archive") as display:
            done = run(
                spark,
                to=said["to"],
                topics=[each.strip() for each in said["topics"].split(",") if each.strip()],
                pattern=said["pattern"],
                bootstrap=said["bootstrap"],
                data=said["data"],
                group=said["group"],
                every=interval,
                file_bytes=size,
                options=assignments(said["option"], "--option"),
                progress=display.archived,
                stop=stop,
            )
    finally:
        spark.stop()
    print(json.dumps({"rows": done.rows, "files": done.files, "bytes": done.bytes, "rounds": done.rounds}))


def _with_file(flags: dict[str, Any], path: str, table: str) -> dict[str, Any]:
    """Flags, and what a file says where there is no flag."""
    if not path:
        return flags
    try:
        said = tomllib.loads(Path(path).read_text()).get(table, {})
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise HeadraceError(f"{path} cannot be used as settings: {error}") from None
    unknown = sorted(set(said) - {name.replace("_", "-") for name in flags} - set(flags))
    if unknown:
        raise HeadraceError(f"{path} sets {unknown[0]!r} in [{table}], which has no such setting: {', '.join(flags)}")
    merged = dict(flags)
    for name, value in said.items():
        name = name.replace("-", "_")
        if isinstance(flags[name], list):
            pairs = [f"{key}={_text(each)}" for key, each in value.items()] if isinstance(value, dict) else list(value)
            # Of two that say the same, the later one wins.
            merged[name] = [*pairs, *flags[name]]
        elif not flags[name]:
            merged[name] = ",".join(value) if isinstance(value, list) else _text(value)
    return merged


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_size(text: str) -> int:
    """Bytes: `65536`, `64k`, `128m`, `1g`."""
    digits = text.strip().lower().rstrip("kmg")
    unit = text.strip().lower()[len(digits) :]
    if not digits.isdecimal() or not digits.isascii() or unit not in SIZE_UNITS or not int(digits):
        raise HeadraceError(f"{text!r} is no size; it can be bytes, or with a unit: 64k, 128m, 1g")
    return int(digits) * SIZE_UNITS[unit]


def _stop_on_signals() -> Event:
    """Set by SIGINT and SIGTERM: a job ends behind the round that it is in."""
    stop = Event()

    def told(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            sys.exit(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, told)
    return stop


class Display:
    """How far a job has come: one line that changes on a terminal, a line now and then elsewhere."""

    SECONDS = 10.0

    def __init__(self, job: str) -> None:
        self._job = job
        self._began = self._said = time.monotonic()
        self._rows = -1

    def __enter__(self) -> Display:
        from rich.console import Console
        from rich.status import Status

        self._console = Console(stderr=True)
        self._status = Status(f"{self._job}: looking", console=self._console)
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._status.stop()

    def archived(self, done: Archived) -> None:
        now = time.monotonic()
        speed = done.rows / max(now - self._began, 0.001)
        words = (
            f"{self._job}: {done.rows:,} rows in {done.files:,} files, {done.bytes / 1e6:,.1f} MB, "
            f"{speed:,.0f} rows/s, {done.lag:,} waiting"
        )
        self._status.update(words)
        if not self._console.is_terminal and done.rows != self._rows and now - self._said >= self.SECONDS:
            self._said, self._rows = now, done.rows
            print(words, file=sys.stderr)
