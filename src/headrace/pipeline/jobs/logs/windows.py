"""Lines counted by window: tables that are small, and that can be added to each other in any order.

Whatever is counted is a sum: lines by service and level, errors by their normalised message, durations by bucket. So
tasks count what they read, the driver adds it up, and what is still open is kept the same way. Buckets grow by 2% each:
a percentile is within 1% of a duration that a line really had, however many lines there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.jobs.logs.fields import ERRORS, Fields, normalised

WINDOW = pa.field("window", pa.int64())
"""When it begins, in microseconds."""

COUNTS = pa.schema([WINDOW, ("service", pa.string()), ("level", pa.string()), ("lines", pa.int64())])
BUCKETS = pa.schema([WINDOW, ("service", pa.string()), ("bucket", pa.int32()), ("lines", pa.int64())])
SLOWEST = pa.schema([WINDOW, ("service", pa.string()), ("slowest", pa.float64())])
MESSAGES = pa.schema(
    [WINDOW, ("service", pa.string()), ("message", pa.string()), ("lines", pa.int64()), ("example", pa.string())]
)

GROWTH = 1.01 / 0.99
# What takes no time at all, or takes less than a nanosecond.
LEAST_MS = 1e-6
# Of one window and service; what comes behind the most frequent ones is counted together.
MESSAGES_MAX = 1_000
OTHERS = "(others)"
EXAMPLE_CHARACTERS = 300


@dataclass(frozen=True)
class Tally:
    """What was counted."""

    counts: Any = field(default_factory=COUNTS.empty_table)
    buckets: Any = field(default_factory=BUCKETS.empty_table)
    slowest: Any = field(default_factory=SLOWEST.empty_table)
    messages: Any = field(default_factory=MESSAGES.empty_table)
    late: Any = field(default_factory=COUNTS.empty_table)

    def split(self, before: int) -> tuple[Tally, Tally]:
        """The windows that begin before a time, and the others. Late lines are with the first."""
        parts = []
        for first in (True, False):
            tables = {
                name: table.filter(pc.equal(pc.less(table.column("window"), before), first))
                for name, table in vars(self).items()
                if name != "late"
            }
            parts.append(Tally(**tables, late=self.late if first else COUNTS.empty_table()))
        return parts[0], parts[1]


def added(tallies: list[Tally]) -> Tally:
    """Several as one."""
    columns = {name: pa.concat_tables([getattr(each, name) for each in tallies]) for name in vars(Tally())}
    return Tally(
        _summed(columns["counts"], "level"),
        _summed(columns["buckets"], "bucket"),
        _grouped(columns["slowest"], ["window", "service"], [("slowest", "max")], SLOWEST),
        _pruned(_grouped(columns["messages"], ["window", "service", "message"], MERGE_MESSAGES, MESSAGES)),
        _summed(columns["late"], "level"),
    )


MERGE_MESSAGES = [("lines", "sum"), ("example", "min")]


def tallied(fields: Fields, good: Any, late: Any, windows: Any) -> Tally:
    """Count lines: `good` and `late` say which (as numpy has it), `windows` which window each belongs to."""
    counts = _counted(fields, good, windows)
    # Clocks that were set, and numbers that are none, give durations that are none.
    took = pc.and_(pc.is_finite(fields.duration), pc.greater_equal(fields.duration, 0.0))
    timed = good & _mask(pc.fill_null(took, False))
    errors = good & are_errors(fields)
    buckets, slowest = _durations(fields, timed, windows)
    return Tally(counts, buckets, slowest, _messages(fields, errors, windows), _counted(fields, late, windows))


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


def _table(rows: Any, windows: Any, **columns: Any) -> Any:
    indices = pa.array(np.nonzero(rows)[0])
    return pa.table({"window": windows[rows], **{name: column.take(indices) for name, column in columns.items()}})


def _counted(fields: Fields, rows: Any, windows: Any) -> Any:
    if not rows.any():
        return COUNTS.empty_table()
    table = _table(rows, windows, service=fields.service, level=fields.level)
    return _grouped(table, ["window", "service", "level"], [([], "count_all")], COUNTS)


def _durations(fields: Fields, rows: Any, windows: Any) -> tuple[Any, Any]:
    if not rows.any():
        return BUCKETS.empty_table(), SLOWEST.empty_table()
    table = _table(rows, windows, service=fields.service, slowest=fields.duration)
    took = np.maximum(table.column("slowest").to_numpy(), LEAST_MS)
    bucket = np.ceil(np.log(took) / log(GROWTH)).astype(np.int32)
    slowest = _grouped(table, ["window", "service"], [("slowest", "max")], SLOWEST)
    table = table.append_column("bucket", pa.array(bucket))
    return _grouped(table, ["window", "service", "bucket"], [([], "count_all")], BUCKETS), slowest


def _messages(fields: Fields, rows: Any, windows: Any) -> Any:
    if not rows.any():
        return MESSAGES.empty_table()
    table = _table(rows, windows, service=fields.service, example=pc.fill_null(fields.message, ""))
    examples = pc.utf8_slice_codeunits(table.column("example"), 0, EXAMPLE_CHARACTERS)
    # Many lines, few messages: each is looked at once.
    encoded = pc.dictionary_encode(examples.combine_chunks())
    messages = normalised(encoded.dictionary).take(encoded.indices)
    table = table.set_column(2, "example", examples).append_column("message", messages)
    keys = ["window", "service", "message"]
    return _pruned(_grouped(table, keys, [([], "count_all"), ("example", "min")], MESSAGES))


def _pruned(messages: Any) -> Any:
    """At most so many messages of a window and service."""
    if messages.num_rows <= MESSAGES_MAX:
        return messages
    sizes = messages.group_by(["window", "service"]).aggregate([([], "count_all")])
    if pc.max(sizes.column("count_all")).as_py() <= MESSAGES_MAX:
        return messages
    ordered = messages.sort_by(
        [("window", "ascending"), ("service", "ascending"), ("lines", "descending"), ("message", "ascending")]
    )
    services = pc.dictionary_encode(ordered.column("service").combine_chunks()).indices.to_numpy()
    starts = np.r_[True, (np.diff(ordered.column("window").to_numpy()) != 0) | (np.diff(services) != 0)]
    index = np.arange(len(starts))
    rank = index - np.maximum.accumulate(np.where(starts, index, 0))
    rare = pa.array(rank >= MESSAGES_MAX - 1)
    texts = pc.if_else(rare, OTHERS, ordered.column("message"))
    together = ordered.set_column(2, "message", texts)
    return _grouped(together, ["window", "service", "message"], MERGE_MESSAGES, MESSAGES)


def _summed(table: Any, by: str) -> Any:
    schema = BUCKETS if by == "bucket" else COUNTS
    return _grouped(table, ["window", "service", by], [("lines", "sum")], schema)


def _grouped(table: Any, keys: list[str], aggregations: list[Any], schema: Any) -> Any:
    found = table.group_by(keys, use_threads=False).aggregate(aggregations)
    names = [{"count_all": "lines"}.get(name, name.rsplit("_", 1)[0]) for name in found.column_names]
    return found.rename_columns(names).select(schema.names).cast(schema)
