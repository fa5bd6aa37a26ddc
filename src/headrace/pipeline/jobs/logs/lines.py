"""Blocks of records into lines that were read: each row good, with its fields, or broken, with the reason.

Where the format is `auto`, each line is taken by how it begins, so that services which log differently can share a
topic. The lines of one format are read together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.arrow_schema import MOST_TIME
from headrace.pipeline.jobs.logs.fields import Fields, Names, levels
from headrace.pipeline.jobs.logs.formats import BEGINS, FORMATS, Parse, parser
from headrace.pipeline.option_values import InvalidOption

AUTO = "auto"


@dataclass(frozen=True)
class LineFormat:
    """How lines are read; it can be sent to another process."""

    name: str = AUTO
    regex: str = ""
    names: Names = field(default_factory=Names)
    ahead_ms: int = 3_600_000
    """A line that is further ahead of its record's time is broken: it would make late what comes behind it."""

    def __post_init__(self) -> None:
        if self.name not in (AUTO, *FORMATS):
            raise InvalidOption(f"the format cannot be {self.name!r}: it is one of {AUTO}, {', '.join(FORMATS)}")
        if (self.name == "regex") != bool(self.regex):
            raise InvalidOption("the format regex and a regular expression go together: give both, or neither")
        # What is wrong with it is reported here, and not by a task.
        self.reader()

    def reader(self) -> Lines:
        return Lines(self)


class Lines:
    """Reads blocks of records."""

    def __init__(self, wanted: LineFormat) -> None:
        self._ahead_us = wanted.ahead_ms * 1000
        names = tuple(BEGINS) if wanted.name == AUTO else (wanted.name,)
        self._auto = wanted.name == AUTO
        self._parsers: dict[str, Parse] = {name: parser(name, wanted.names, wanted.regex) for name in names}

    def read(self, block: pa.RecordBatch) -> Fields:
        """The fields of a block's lines: levels alike, and a service and a time for each that is not broken."""
        recorded = block.column("timestamp")
        texts, broken = _texts(block.column("value"))
        found = self._parsed(texts, recorded)
        reason = pc.coalesce(broken, found.reason) if broken is not None else found.reason
        time = pc.coalesce(found.time, recorded)
        micros = time.cast(pa.int64())
        for wrong, why in (
            (pc.greater(pc.subtract(micros, recorded.cast(pa.int64())), self._ahead_us), "ahead of its record's"),
            (pc.less(micros, 0), "before 1970"),
            (pc.greater_equal(micros, MOST_TIME), "behind the year 9999"),
        ):
            if pc.any(wrong).as_py():
                said = pc.if_else(wrong, f"its time is {why}", pa.scalar(None, pa.string()))
                reason = pc.coalesce(reason, said)
        return replace(
            found,
            time=time,
            service=pc.coalesce(found.service, block.column("topic")),
            level=levels(found.level),
            reason=reason,
        )

    def _parsed(self, texts: Any, recorded: Any) -> Fields:
        if not self._auto:
            (parse,) = self._parsers.values()
            return parse(texts, recorded)
        if pc.all(pc.starts_with(texts, "{")).as_py():
            return self._parsers["json"](texts, recorded)
        left = np.arange(len(texts))
        parts, places = [], []
        for name, parse in self._parsers.items():
            some = texts if len(left) == len(texts) else texts.take(pa.array(left))
            fits = pc.match_substring_regex(some, pattern=BEGINS[name]).to_numpy(zero_copy_only=False)
            if not fits.any():
                continue
            if len(left) == len(texts) and fits.all():
                return parse(texts, recorded)
            rows = left[fits]
            indices = pa.array(rows)
            parts.append(parse(texts.take(indices), recorded.take(indices)))
            places.append(rows)
            left = left[~fits]
            if not len(left):
                break
        if len(left):
            reason = pc.if_else(pc.equal(texts.take(pa.array(left)), ""), "it is empty", "it is of no known format")
            parts.append(Fields.of(len(left), reason=reason))
            places.append(left)
        return Fields.joined(parts, pa.array(np.argsort(np.concatenate(places), kind="stable")))


def _texts(values: Any) -> tuple[Any, Any]:
    """Values as texts, and why some of them are none; those are empty."""
    broken = None
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        listed = [_decode(value) for value in values.to_pylist()]
        texts = pa.array([text for text, _ in listed], pa.string())
        broken = pa.array([reason for _, reason in listed], pa.string())
    if texts.null_count:
        missing = pc.if_else(pc.is_null(values), "it has no value", pa.scalar(None, pa.string()))
        broken = missing if broken is None else pc.coalesce(broken, missing)
        texts = pc.fill_null(texts, "")
    return pc.utf8_rtrim(texts, characters="\r\n"), broken


def _decode(value: bytes | None) -> tuple[str | None, str | None]:
    try:
        return None if value is None else value.decode(), None
    except UnicodeDecodeError as error:
        return "", f"it is not UTF-8 (byte {error.start})"
