"""Lines that are JSON, by Arrow's parser.

Every column that is asked for and that a line does not have costs the parser time, so only those are asked for that
were seen; whether there are others in a block is found out first. Lines that are whole objects go to the parser as they
are. Where it does not take them, `JsonDecoder` finds out which ones it is about, and those are read one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from headrace.pipeline.jobs.logs import times
from headrace.pipeline.jobs.logs.fields import ROLES, Fields, Names, durations
from headrace.pipeline.json_decoder import JsonDecoder

Path = tuple[str, ...]

# Lines of a block that are looked at before it is read.
SAMPLED = 32
# No object can begin on one such line and end on another: behind a `}` that does not end it there is no `{`, and texts
# have no line ends. So if there are as many objects as lines, each is of its own line.
WHOLE = r"^\s*\{[^\n]*\}\s*$"


class JsonLines:
    """Reads JSON, and learns which fields lines have, and which of them are numbers."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._paths = {name: _paths(name, names) for role in ROLES for name in names.by_role[role]}
        self._loose = self._made(self._paths, ())
        self._seen = {names.by_role[role][0] for role in ROLES}
        self._numbers: set[str] = set()
        self._decoder = self._made(self._seen, self._numbers)

    def _made(self, names: Iterable[str], numbers: Iterable[str]) -> JsonDecoder:
        tree: dict[str, Any] = {}
        for name in sorted(names):
            for path in self._paths[name]:
                inner = tree
                for part in path[:-1]:
                    inner = inner.setdefault(part, {})
                inner[path[-1]] = pa.float64() if name in numbers else pa.string()
        return JsonDecoder(_struct(tree))

    def parse(self, texts: Any, recorded: Any) -> Fields:
        """The fields of some lines."""
        self._learn(texts)
        if _are_whole(texts):
            return self._read(texts)
        whole = pc.match_substring_regex(texts, pattern=WHOLE)
        rows, others = pc.indices_nonzero(whole), pc.indices_nonzero(pc.invert(whole))
        order = np.argsort(np.concatenate([rows.to_numpy(), others.to_numpy()]), kind="stable")
        return Fields.joined([self._read(texts.take(rows)), self._one_by_one(texts.take(others))], pa.array(order))

    def _read(self, texts: Any) -> Fields:
        """Lines that are whole objects, or look like it."""
        if not len(texts):
            return Fields.of(0)
        at_once = self._at_once(texts)
        if at_once is not None:
            return self._fields(at_once, {})
        decoded, bad = self._decoder.decode(texts.cast(pa.binary()))
        rows = sorted(bad)
        order = np.arange(len(texts))
        order[rows] = len(texts) + np.arange(len(rows))
        again = self._one_by_one(texts.take(pa.array(rows, pa.int64())))
        return Fields.joined([self._fields(decoded, {}), again], pa.array(order))

    def _at_once(self, texts: Any) -> Any:
        fields = self._decoder.kind.fields
        lines = pc.binary_join_element_wise(texts, "\n", "").buffers()[2]
        try:
            table = arrow_json.read_json(
                pa.BufferReader(lines),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=lines.size + 1),
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(texts):
            return None
        columns = [table.column(field.name).combine_chunks() for field in fields]
        return pa.StructArray.from_arrays(columns, fields=fields)

    def _one_by_one(self, texts: Any) -> Fields:
        """Lines with all fields as texts, which takes everything that is an object at all."""
        decoded, broken = self._loose.decode(texts.cast(pa.binary()))
        return self._fields(decoded, broken)

    def _fields(self, decoded: Any, broken: Mapping[int, str]) -> Fields:
        found: dict[str, Any] = {}
        said = None
        there = set(decoded.type.names)
        for role in ROLES:
            for name in self._names.by_role[role]:
                for path in self._paths[name]:
                    if path[0] not in there:
                        continue
                    column = pc.struct_field(decoded, list(path))
                    if column.null_count == len(column):
                        continue
                    if role == "time":
                        text = pc.cast(column, pa.string())
                        said = text if said is None else pc.coalesce(said, text)
                    column = self._as_role(role, name, column)
                    found[role] = pc.coalesce(found[role], column) if role in found else column
        reason = pc.if_else(pc.is_null(decoded), "it is not a JSON object", pa.scalar(None, pa.string()))
        if broken:
            reason = pc.coalesce(pa.array([broken.get(row) for row in range(len(decoded))], pa.string()), reason)
        if said is not None:
            reason = times.unread(reason, said, found["time"])
        return Fields.of(len(decoded), **found, reason=reason)

    def _as_role(self, role: str, name: str, column: Any) -> Any:
        number = pa.types.is_floating(column.type)
        if role == "duration":
            scale = self._names.scale(name)
            return pc.multiply(column, scale) if number else durations(column, scale)
        if role == "time":
            return times.from_numbers(column) if number else times.from_text(column)
        return pc.cast(column, pa.string()) if number else column

    def _learn(self, texts: Any) -> None:
        """See which fields there are, and which are numbers in the first lines."""
        seen, numbers, words = set(self._seen), set(self._numbers), set()
        while unseen := [name for name in self._paths if name not in seen]:
            names = set(unseen) | {self._paths[name][-1][-1] for name in unseen}
            keys = "|".join(re.escape(name) for name in sorted(names))
            found = pc.extract_regex(
                texts.filter(pc.match_substring_regex(texts, pattern=rf'"(?:{keys})"\s*:')),
                pattern=rf'"(?P<key>{keys})"\s*:',
            )
            if not len(found):
                break
            there = set(pc.unique(pc.struct_field(found, "key")).to_pylist())
            seen |= {name for name in unseen if name in there or self._paths[name][-1][-1] in there}
        for line in texts.slice(0, SAMPLED).to_pylist():
            try:
                parsed = json.loads(line)
            except (ValueError, RecursionError):
                continue
            for name in seen:
                for path in self._paths[name]:
                    value = parsed
                    for part in path:
                        value = value.get(part) if isinstance(value, dict) else None
                    if isinstance(value, str):
                        words.add(name)
                    elif isinstance(value, int | float):
                        numbers.add(name)
        numbers -= words
        if (seen, numbers) != (self._seen, self._numbers):
            self._seen, self._numbers = seen, numbers
            self._decoder = self._made(seen, numbers)


def _are_whole(texts: Any) -> bool:
    """Whether all lines are whole objects as nearly all are written: cheaper to find out than by WHOLE."""
    return bool(
        pc.all(pc.starts_with(texts, "{")).as_py()
        and pc.all(pc.ends_with(texts, "}")).as_py()
        and not pc.any(pc.match_substring(texts, "\n")).as_py()
    )


def _paths(name: str, names: Names) -> list[Path]:
    """Where a field may stand: under its name, or in objects that the dots in its name name."""
    parts = tuple(name.split("."))
    taken = {each for role in ROLES for each in names.by_role[role]}
    return [(name,), parts] if len(parts) > 1 and parts[0] not in taken else [(name,)]


def _struct(tree: Mapping[str, Any]) -> Any:
    return pa.struct([(name, _struct(inner) if isinstance(inner, dict) else inner) for name, inner in tree.items()])
