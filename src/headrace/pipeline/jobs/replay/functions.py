"""The user's function between what is read and what is written, in the shapes that it may have.

    frame     DataFrame -> DataFrame, a plan of Spark's
    batches   an iterator of Arrow's record batches -> another one
    pandas    an iterator of pandas' frames -> another one
    rows      a record as a dict -> a dict, a list of them, or None

Whatever comes out has a column `value` and, if they are to be kept, `key`, `headers`, `timestamp` and `partition`; for
a table it may have any columns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa

from headrace.pipeline.arrow_schema import FIELDS, HEADERS
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.sink_task import InvalidRows

FRAME, BATCHES, PANDAS, ROWS = PER = ("frame", "batches", "pandas", "rows")

Blocks = Iterator[pa.RecordBatch]

TYPES = {field.name: field.type for field in (*FIELDS, HEADERS)}


def load_function(text: str) -> Callable[..., Any]:
    """The function that `module:name` is. Workers get it by value, so they need not have the module."""
    module, colon, name = text.partition(":")
    if not module or not colon or not name:
        raise InvalidOption(f"the function {text!r} is not MODULE:NAME")
    if "" not in sys.path:
        # As for `python -m`: what lies in the current folder can be imported.
        sys.path.insert(0, "")
    try:
        found = import_module(module)
        function = getattr(found, name)
    except Exception as error:
        # Whatever the module raises as it is imported.
        raise InvalidOption(f"the function {text!r} cannot be had: {error or type(error).__name__}") from None
    if not callable(function):
        raise InvalidOption(f"{text!r} is not a function: {function!r}")
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(found)
    return function


def is_plan(function: Callable[..., Any] | None, per: str) -> bool:
    """Whether Spark reads the records and runs the function's plan over them."""
    return function is not None and per == FRAME


def in_task(function: Callable[..., Any] | None, per: str, *, table: bool = False) -> Callable[[Blocks], Blocks]:
    """A function over a task's blocks. A `table` takes all columns that it gives, and a topic those of a record."""
    if function is None:
        return lambda blocks: blocks
    if per == BATCHES:
        return function
    return _Pandas(function, table) if per == PANDAS else _Rows(function, table)


class _Pandas:
    def __init__(self, function: Callable[..., Any], table: bool) -> None:
        self._function = function
        self._table = table

    def __call__(self, blocks: Blocks) -> Blocks:
        for frame in self._function(block.to_pandas() for block in blocks):
            columns = {str(name): frame[name] for name in frame.columns if self._table or name in TYPES}
            made = pa.table({name: _column(name, values) for name, values in columns.items()})
            yield from made.combine_chunks().to_batches()


class _Rows:
    def __init__(self, function: Callable[..., Any], table: bool) -> None:
        self._function = function
        self._table = table

    def __call__(self, blocks: Blocks) -> Blocks:
        for block in blocks:
            found: list[dict[str, Any]] = []
            for row in block.to_pylist():
                answer = self._function(row)
                found += [answer] if isinstance(answer, dict) else answer or []
            if found:
                yield self._as_block(found)

    def _as_block(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        given = dict.fromkeys(name for row in rows for name in row)
        names = [name for name in TYPES if name in given]
        names += [name for name in given if self._table and name not in TYPES]
        for name in ("key", "value"):
            for row in rows:
                if isinstance(row.get(name), str):
                    row[name] = row[name].encode()
        return pa.record_batch({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: Any) -> Any:
    """A column of a record by its own type, and another one by what is in it."""
    try:
        return pa.array(values, TYPES.get(name), from_pandas=True)
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidRows(f"the function gave {name!r} what cannot be a column: {error}") from None
