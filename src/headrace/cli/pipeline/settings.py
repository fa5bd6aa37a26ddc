"""The settings of a job: flags, and a TOML file for what has no flag."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.targets import local_path

SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
SIZE = re.compile(r"([0-9]{1,15})([kmg]?)")


def merge_file(flags: dict[str, Any], path: str, table: str) -> dict[str, Any]:
    """Flags, with the values of the file's table for flags that are not given: those are empty texts, false, and empty
    lists."""
    if not path:
        return flags
    try:
        tables = tomllib.loads(Path(local_path(path, "--config")).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise HeadraceError(f"{path} cannot be used as settings: {error}") from None
    settings = tables.get(table)
    if not isinstance(settings, dict):
        there = ", ".join(f"[{name}]" for name in tables) or "nothing"
        raise HeadraceError(f"{path} has no table [{table}]; it has {there}")
    unknown = sorted(set(settings) - {name.replace("_", "-") for name in flags} - set(flags))
    if unknown:
        raise HeadraceError(f"{path}: [{table}] has no setting {unknown[0]!r}. The settings are {', '.join(flags)}.")
    merged = dict(flags)
    for name, value in settings.items():
        name = name.replace("-", "_")
        if isinstance(flags[name], list):
            # Of two values of one name, the later one counts.
            merged[name] = [*_pairs(value), *flags[name]]
        elif isinstance(flags[name], bool):
            if not isinstance(value, bool):
                raise HeadraceError(f"{path}: {name!r} in [{table}] must be true or false (got {value!r})")
            merged[name] = flags[name] or value
        elif not flags[name]:
            merged[name] = ",".join(map(_text, value)) if isinstance(value, list) else _text(value)
    return merged


def _pairs(value: Any) -> list[str]:
    """A table of names and values, or texts like those behind a flag, or one of them."""
    if isinstance(value, dict):
        return [f"{name}={_text(each)}" for name, each in _named(value)]
    return [_text(each) for each in (value if isinstance(value, list) else [value])]


def _named(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of a table. TOML takes a name with dots, unless it is quoted, for tables in tables."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", each) for inner, each in _named(value))
        else:
            yield name, value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_size(text: str) -> int:
    """Bytes: `65536`, `64k`, `128m`, `1g`."""
    found = SIZE.fullmatch(text.strip().lower())
    if found is None or not int(found[1]):
        raise HeadraceError(f"{text[:40]!r} is not a size. Use bytes, or a unit: 64k, 128m, 1g.")
    return int(found[1]) * SIZE_UNITS[found[2]]
