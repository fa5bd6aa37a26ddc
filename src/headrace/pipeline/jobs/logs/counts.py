"""Lines counted by window: one small table, and tables that can be added to each other in any order.

Whatever is counted is a sum: lines by service and level, errors by their normalised message, durations by bucket. So
tasks count what they read, Spark's state holds the sum, and what is still open is kept the same way. Buckets grow by 2%
each: a percentile is within 1% of a duration that a line really had, however many lines there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.jobs.logs.fields import ERRORS, Fields, normalised

# What a row counts, and what its name is: a level, a bucket, a normalised message, the level of late lines.
LEVEL, DURATION, MESSAGE, LATE = "level", "duration", "message", "late"

COUNTS = pa.schema(
    [
        # When the window begins, in microseconds.
        ("window", pa.int64()),
        ("service", pa.string()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("lines", pa.int64()),
        # In milliseconds, of the lines in a bucket.
        ("slowest", pa.float64()),
        # One of the lines with a message.
        ("example", pa.string()),
    ]
)
KEYS = ["window", "service", "kind", "name"]
SUMS = [("lines", "sum"), ("slowest", "max"), ("example", "min")]

NEVER = -(1 << 62)
GROWTH = 1.01 / 0.99
# What takes no time at all, or takes less than a nanosecond.
LEAST_MS = 1e-6
# Of one window and service; what comes behind the most frequent ones is counted together.
MESSAGES_MAX = 1_000
OTHERS = "(others)"
EXAMPLE_CHARACTERS = 300


@dataclass(frozen=True)
class Windows:
    """How lines are put into windows, in microseconds."""

    size: int
    lateness: int

    def begin(self, times: Any) -> Any:
        """The window that each time is in."""
        return times // self.size * self.size

    def are_late(self, times: Any, seen: int, closed: int) -> tuple[Any, int]:
        """Which of a partition's lines are late, and the newest time by now; `seen` is the newest before them."""
        newest = np.maximum.accumulate(np.concatenate([[seen], times]))
        ends = self.begin(times) + self.size
        return (ends + self.lateness <= newest[:-1]) | (ends <= closed), int(newest[-1])


def count_lines(fields: Fields, good: Any, late: Any, windows: Any) -> Any:
    """Count lines: `good` and `late` say which (as numpy has it), `windows` which window each belongs to."""
    # Clocks that were set, and numbers that are none, give durations that are none.
    took = pc.and_(pc.is_finite(fields.duration), pc.greater_equal(fields.duration, 0.0))
    timed = good & _mask(pc.fill_null(took, False))
    errors = good & are_errors(fields)
    parts = [
        _count(LEVEL, _lines(fields, good, windows, name=fields.level)),
        _count(LATE, _lines(fields, late, windows, name=fields.level)),
        _count(DURATION, _durations(_lines(fields, timed, windows, slowest=fields.duration)), ("slowest", "max")),
        _count(MESSAGE, _messages(_lines(fields, errors, windows, example=fields.message)), ("example", "min")),
    ]
    return _prune(pa.concat_tables(parts))


def add(tables: list[Any]) -> Any:
    """Several as one."""
    whole = pa.concat_tables([COUNTS.empty_table(), *tables])
    return _prune(_group(whole, SUMS))


def split(counts: Any, before: int) -> tuple[Any, Any]:
    """What is counted in windows that begin before a time, and the rest."""
    first = pc.less(counts.column("window"), before)
    return counts.filter(first), counts.filter(pc.invert(first))


def of_kind(counts: Any, kind: str) -> Any:
    return counts.filter(pc.equal(counts.column("kind"), kind))


def not_of_kind(counts: Any, kind: str) -> Any:
    return counts.filter(pc.not_equal(counts.column("kind"), kind))


def last_window(counts: Any) -> int:
    return int(pc.max(counts.column("window")).as_py())


def total(counts: Any, kind: str, names: tuple[str, ...] = ()) -> int:
    """How many lines there are of a kind, and of some names where they are given."""
    some = of_kind(counts, kind)
    if names:
        some = some.filter(pc.is_in(some.column("name"), value_set=pa.array(names)))
    return int(pc.sum(some.column("lines")).as_py() or 0)


def dump(counts: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, counts.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(counts)
    return bytes(sink.getvalue())


def load(contents: bytes) -> Any:
    return pa.ipc.open_stream(contents).read_all()


def are_errors(fields: Fields) -> Any:
    """Which lines are errors."""
    return _mask(pc.is_in(fields.level, value_set=pa.array(ERRORS)))


def quantile(buckets: Any, lines: Any, share: float) -> float:
    """The duration (ms) that this share of the lines does not exceed; buckets in their order."""
    rank = np.searchsorted(np.cumsum(lines), share * np.sum(lines), side="left")
    bucket = int(buckets[min(int(rank), len(buckets) - 1)])
    return float(2 * GROWTH**bucket / (GROWTH + 1))


def _mask(array: Any) -> Any:
    return array.to_numpy(zero_copy_only=False)


def _lines(fields: Fields, rows: Any, windows: Any, **columns: Any) -> Any:
    """A row for each line, with its window, its service and these columns."""
    indices = pa.array(np.nonzero(rows)[0])
    taken = {name: column.take(indices) for name, column in {"service": fields.service, **columns}.items()}
    return pa.table({"window": windows[rows], **taken})


def _durations(lines: Any) -> Any:
    took = np.maximum(lines.column("slowest").to_numpy(), LEAST_MS)
    buckets = np.ceil(np.log(took) / log(GROWTH)).astype(np.int32)
    return lines.append_column("name", pa.array(buckets).cast(pa.string()))


def _messages(lines: Any) -> Any:
    texts = pc.fill_null(lines.column("example").combine_chunks(), "")
    examples = pc.utf8_slice_codeunits(texts, 0, EXAMPLE_CHARACTERS)
    # Many lines, few messages: each is looked at once.
    encoded = pc.dictionary_encode(examples)
    lines = lines.drop_columns("example").append_column("example", examples)
    return lines.append_column("name", normalised(encoded.dictionary).take(encoded.indices))


def _count(kind: str, lines: Any, *kept: tuple[str, str]) -> Any:
    whole = lines.append_column("kind", pa.repeat(kind, lines.num_rows))
    return _group(whole, [([], "count_all"), *kept])


def _prune(counts: Any) -> Any:
    """At most so many messages of a window and service."""
    messages = of_kind(counts, MESSAGE)
    if messages.num_rows <= MESSAGES_MAX:
        return counts
    ordered = messages.sort_by(
        [("window", "ascending"), ("service", "ascending"), ("lines", "descending"), ("name", "ascending")]
    )
    services = pc.dictionary_encode(ordered.column("service").combine_chunks()).indices.to_numpy()
    starts = np.r_[True, (np.diff(ordered.column("window").to_numpy()) != 0) | (np.diff(services) != 0)]
    index = np.arange(len(starts))
    first = np.maximum.accumulate(np.where(starts, index, 0))
    sizes = np.diff(np.r_[np.nonzero(starts)[0], len(starts)])[np.cumsum(starts) - 1]
    rare = pa.array((sizes > MESSAGES_MAX) & (index - first >= MESSAGES_MAX - 1))
    if not pc.any(rare).as_py():
        return counts
    place = ordered.schema.get_field_index("name")
    together = ordered.set_column(place, "name", pc.if_else(rare, OTHERS, ordered.column("name")))
    return pa.concat_tables(
        [not_of_kind(counts, MESSAGE), _group(together, [("lines", "sum"), ("slowest", "max"), ("example", "min")])]
    )


def _group(table: Any, aggregations: list[Any]) -> Any:
    if not table.num_rows:
        return COUNTS.empty_table()
    found = table.group_by(KEYS, use_threads=False).aggregate(aggregations)
    names = {"count_all": "lines", "lines_sum": "lines", "slowest_max": "slowest", "example_min": "example"}
    found = found.rename_columns([names.get(name, name) for name in found.column_names])
    columns = {
        field.name: found.column(field.name) if field.name in found.column_names else pa.nulls(found.num_rows)
        for field in COUNTS
    }
    return pa.table(columns).cast(COUNTS)
