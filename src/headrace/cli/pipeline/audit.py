"""`headrace pipeline audit`."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.durations import HELP as DURATIONS
from headrace.cli.durations import parse_duration
from headrace.cli.options import assignments
from headrace.cli.output import show as show_rows
from headrace.cli.pipeline.job import Job, job, split
from headrace.cli.positions import TIME_HELP, parse_time
from headrace.doors.http.settings import HttpSettings
from headrace.errors import HeadraceError
from headrace.targets import local_path

if TYPE_CHECKING:
    from headrace.pipeline.jobs.audit_report import Latency, Minute, QueueMinute, Report

TOPIC_COLUMNS = ("topic", "minute", "produced", "stored", "lost", "deleted", "duplicates", "failed", "unreported")
QUEUE_COLUMNS = (
    "queue", "minute", "share", "watched", "delivered", "again", "acknowledged", "dead", "passed", "undelivered",
    "unacknowledged", "delivery ms", "acknowledgement ms",
)  # fmt: skip
UNKNOWN = 2
VERDICTS = {0: "all is well", 1: "not all is well", 2: "it could not be judged"}


def no_verdict(command: Callable[..., None]) -> Callable[..., None]:
    """Give errors an exit code of their own: an error is no verdict on the messages."""

    @wraps(command)
    def run(**arguments: Any) -> None:
        try:
            command(**arguments)
        except typer.Exit:
            raise
        except HeadraceError as error:
            print(f"headrace: {error}", file=sys.stderr)
            raise typer.Exit(UNKNOWN) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except Exception:
            traceback.print_exc()
            raise typer.Exit(UNKNOWN) from None

    return run


@no_verdict
@job
def audit(
    job: Job,
    since: Annotated[
        str, typer.Option(metavar="TIME", help=f"From this minute on: {TIME_HELP}; by default an hour.")
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="Up to this minute; by default up to the last settled one.")
    ] = "",
    settle: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help=f"How old a message must be to count as missing: {DURATIONS}; by default 1m."
        ),
    ] = "",
    http: Annotated[
        str,
        typer.Option(
            envvar="HEADRACE_HTTP",
            metavar="HOST:PORT",
            help=f"The broker's HTTP door, for its queues, or off; by default {HttpSettings.http}.",
        ),
    ] = "",
    share: Annotated[
        list[str] | None,
        typer.Option(
            metavar="QUEUE=SHARE", help="Without the HTTP door: the share that a queue samples; may be repeated."
        ),
    ] = None,
    groups: Annotated[
        str, typer.Option(metavar="NAMES", help="Consumer groups to judge by their offsets, separated by commas.")
    ] = "",
    id_header: Annotated[
        str, typer.Option(metavar="NAME", help="The header that identifies duplicates; by default headrace-id.")
    ] = "",
    id_field: Annotated[
        str, typer.Option(metavar="NAME", help="Identify duplicates by a field of JSON values instead.")
    ] = "",
    judge: Annotated[
        str,
        typer.Option(
            metavar="WORDS", help="What to judge, with commas; by default stored,duplicates,delivered,acknowledged."
        ),
    ] = "",
    max_loss: Annotated[
        str,
        typer.Option(metavar="COUNT|SHARE%", help="The most messages that may be missing at any stage; by default 0."),
    ] = "",
    max_duplicates: Annotated[
        str, typer.Option(metavar="COUNT|SHARE%", help="The most duplicates; by default 0.")
    ] = "",
    max_deleted: Annotated[
        str,
        typer.Option(metavar="COUNT|SHARE%", help="The most messages that retention may have deleted; by default 0."),
    ] = "",
    parquet: Annotated[
        str, typer.Option(metavar="DIR", help="Also write minutes.parquet and queues.parquet there.")
    ] = "",
    output: Annotated[str, typer.Option("--format", help="table for people, json for scripts.")] = "",
) -> None:
    """Counts messages by topic and minute: produced, stored, delivered, acknowledged.

    Exit code 0: all is well. 1: loss or duplicates above the limits. 2: no verdict, with the reason.
    """
    if output not in ("", "table", "json"):
        raise HeadraceError(f"--format must be table or json (got {output!r})")
    shares = {queue: _share(text) for queue, text in assignments(share or [], "--share").items()}
    door = "" if http == "off" or shares or (job.source["data"] and not http) else http or HttpSettings.http
    now = round(time.time() * 1_000)
    first, last = (parse_time(text, now) if text else None for text in (since, until))
    settling = parse_duration(settle or "1m") / 1_000
    folder = Path(local_path(parquet, "--parquet")) if parquet else None

    def check() -> Sequence[str]:
        from headrace.pipeline.jobs.audit import check_words, span
        from headrace.pipeline.jobs.audit_queues import check_shares
        from headrace.pipeline.jobs.audit_report import Threshold
        from headrace.pipeline.manifest import check_writable

        check_shares(shares)
        if folder is not None:
            check_writable(folder)
        check_words(split(judge), job.source["options"])
        span(first, last, settling)
        for each in (max_loss, max_duplicates, max_deleted):
            Threshold.parse(each or "0")
        return ()

    with job.start(check, stoppable=False) as running:
        from headrace.pipeline.jobs import audit as run
        from headrace.pipeline.jobs.audit_log import ID_HEADER
        from headrace.pipeline.jobs.audit_report import JUDGED

        report = run(
            running.spark,
            **job.source,
            since=first,
            until=last,
            settle=settling,
            http=door,
            shares=shares,
            groups=split(groups),
            id_header=id_header or ID_HEADER,
            id_field=id_field,
            judge=split(judge) or JUDGED,
            max_loss=max_loss or "0",
            max_duplicates=max_duplicates or "0",
            max_deleted=max_deleted or "0",
            progress=lambda words: running.display.show(0, words),
        )
    if folder is not None:
        _write(report, folder)
    if job.as_json or output == "json":
        print(json.dumps(report.as_json()))
    else:
        show(report)
    raise typer.Exit(report.code)


def show(report: Report) -> None:
    """Print the minutes, then the whole range of each topic and queue, then the verdict."""
    print(f"{_clock(report.since, '%Y-%m-%d %H:%M')} to {_clock(report.until, '%Y-%m-%d %H:%M')} UTC\n")
    topics = [_topic_row(each) for each in (*report.minutes, *report.topics)]
    show_rows(topics, False, TOPIC_COLUMNS)
    if report.queues:
        shares = {(each.topic, each.queue): each.share for each in report.watched}
        print()
        queues = [_queue_row(each, shares[each.topic, each.queue]) for each in (*report.queue_minutes, *report.queues)]
        show_rows(queues, False, QUEUE_COLUMNS)
    print()
    for title, lines in (("wrong", report.wrong), ("not known", report.unknown), ("note", report.notes)):
        for line in lines:
            print(f"{title}: {line}")
    print(VERDICTS[report.code])


def _topic_row(each: Minute) -> dict[str, Any]:
    return {**asdict(each), "minute": _minute(each.minute)}


def _queue_row(each: QueueMinute, share: float | None) -> dict[str, Any]:
    return {
        **asdict(each),
        "queue": f"{each.topic}/{each.queue}",
        "minute": _minute(each.minute),
        # A queue without events is judged by its position.
        "share": "position" if share is None else f"{share:.4g}",
        "again": each.redelivered,
        "delivery ms": _latency(each.delivery),
        "acknowledgement ms": _latency(each.acknowledgement),
    }


def _latency(each: Latency | None) -> str:
    return f"{each.p50:,} {each.p95:,} {each.p99:,}" if each else ""


def _minute(at: int | None) -> str:
    return "all" if at is None else _clock(at, "%H:%M")


def _clock(at: int, how: str) -> str:
    return datetime.fromtimestamp(at / 1_000, UTC).strftime(how)


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise HeadraceError(f"--share must be a number above 0 and at most 1 (got {text!r})") from None


def _write(report: Report, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in report.tables().items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
