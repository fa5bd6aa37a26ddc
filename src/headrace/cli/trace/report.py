"""Prints lives: each step with its time after the first, the state of each queue and group, and what is not known."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.broker.lives import client_traces
from headrace.broker.lives.records import TracedRecord
from headrace.broker.lives.tracer import PUBLISHED, PUT_ASIDE, SENT_BACK, TO_BE_TRIED, Lives, Step, moment
from headrace.cli.durations import format_rough
from headrace.cli.messages import Form, format_record

COLOURS = {
    PUBLISHED: "bold",
    SENT_BACK: "bold",
    "finished": "green",
    "dead": "red",
    PUT_ASIDE: "red",
    client_traces.CONSUMED: "green",
    client_traces.NOT_CONSUMED: "yellow",
    "timed-out": "yellow",
    "requeued": "yellow",
    "released": "yellow",
    TO_BE_TRIED: "yellow",
}
# In a pipe a row is a line, for grep and awk.
PIPE_COLUMNS = 10_000
# Of a key in a table; JSON has all of it.
KEY_CHARACTERS = 60


def to_json(id: str, lives: Lives) -> dict[str, Any]:
    """Lives for scripts."""
    return {
        "id": id,
        "trace": lives.trace or None,
        "looked": None if lives.searched is None else asdict(lives.searched),
        "messages": [_record(each) for _, each in sorted(lives.messages.items())],
        "steps": [_step(each, lives.began) for each in lives.steps],
        "readers": [{**asdict(each), "message": str(each.message)} for each in lives.readers],
        "notes": lives.notes,
    }


def print_lives(id: str, lives: Lives) -> None:
    """Print lives for people."""
    # In a pipe a step is a line, for grep and awk.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    where = {place.topic for place in lives.messages}
    counts = f"{len(lives.messages)} messages in {len(where)} topics" if lives.messages else "no messages"
    trace = f", trace {lives.trace}" if lives.trace and lives.trace != id else ""
    console.print(f"[bold]{escape(id)}[/bold]{trace}: {counts}, since {moment(lives.began)}")
    if lives.steps:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(justify="right")
        for _ in range(3):
            table.add_column(overflow="fold")
        for step in lives.steps:
            colour = COLOURS.get(step.what, "")
            what = f"[{colour}]{step.what}[/{colour}]" if colour else step.what
            detail = escape(_detail(step, lives.messages.get(step.message)))
            table.add_row(after(step.t - lives.began), escape(str(step.message)), what, detail)
        console.print(table)
    if lives.readers:
        console.print("\n[bold]now[/bold]")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        for each in lives.readers:
            state = f"{each.state} ({each.note})" if each.note else each.state
            table.add_row(escape(str(each.message)), each.kind, escape(each.name), escape(state))
        console.print(table)
    notes = [*lives.notes, *_search_note(lives)]
    if notes:
        console.print("\n[bold]notes[/bold]")
        for note in notes:
            console.print(f"- {escape(note)}")


def after(milliseconds: int) -> str:
    sign = "-" if milliseconds < 0 else "+"
    size = abs(milliseconds)
    if size < 1_000:
        return f"{sign}{size} ms"
    return f"{sign}{size / 1_000:.3f} s" if size < 60_000 else f"{sign}{format_rough(size)}"


def _detail(step: Step, record: TracedRecord | None) -> str:
    """The rest of a step, in words."""
    words = []
    if step.what in (PUBLISHED, SENT_BACK) and record is not None:
        if record.key is not None:
            words.append(f"key {record.key.decode(errors='backslashreplace')[:KEY_CHARACTERS]}")
        words.append(f"{len(record.value or b'')} bytes")
        if record.redriven:
            words.append(f"for the {record.redriven}. time")
    if step.who:
        words.append(step.who)
    if step.consumer:
        words.append(f"by {step.consumer}")
    if step.attempt:
        words.append(f"attempt {step.attempt}")
    if step.delay_ms is not None:
        words.append(f"again in {format_rough(step.delay_ms)}" if step.delay_ms else "again at once")
    if step.at is not None:
        words.append(f"as {step.at}")
    text = ", ".join(words)
    return f"{text}: {step.error}" if step.error else text


def _search_note(lives: Lives) -> list[str]:
    if (searched := lives.searched) is None:
        return []
    where = ", ".join(searched.topics) or "all topics"
    return [
        f"{where} were searched for messages of the trace from {moment(searched.since_ms)} to "
        f"{moment(searched.until_ms)} (--topic, --since, --until, --around)"
    ]


def _record(record: TracedRecord) -> dict[str, Any]:
    parts = (record.place.offset, record.timestamp, record.key, record.value, list(record.headers.items()))
    shown: dict[str, Any] = json.loads(
        format_record(Form.JSON, None, record.place.topic, record.place.partition, parts)
    )
    return {"id": str(record.place), **shown, "trace": record.trace or None}


def _step(step: Step, began: int) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(step).items() if value not in ("", 0, None) or name == "t"}
    fields |= {"message": str(step.message), "after_ms": step.t - began}
    return fields if step.at is None else {**fields, "at": str(step.at)}
