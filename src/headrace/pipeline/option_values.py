"""The values of options, read from the texts that Spark hands over."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from headrace.errors import HeadraceError
from headrace.targets import local_path

INT64_MAX = (1 << 63) - 1
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class InvalidOption(HeadraceError):
    """An option of the source has an unknown name or a value that makes no sense."""


def read_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidOption(f"{name} cannot be {text!r}: it is not JSON ({error})") from None


def read_number(options: Mapping[str, str], name: str, default: int = 0, *, least: int = 0) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal() or not least <= int(text) <= INT64_MAX:
        above = f", {least} or more" if least else ""
        raise InvalidOption(f"{name} cannot be {text!r}: it is a whole number{above}")
    return int(text)


def read_seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """A time as Spark has it: `500ms`, `30s`, `15m`; milliseconds without a unit."""
    text = options.get(name)
    if text is None:
        return default
    found = re.fullmatch(r"(\d+)\s*(us|ms|s|m|min|h|d)?", text.strip().lower())
    if found is None:
        raise InvalidOption(f"{name} cannot be {text!r}: it is a time like 500ms, 30s or 15m")
    return int(found[1]) * UNITS[found[2] or "ms"]


def read_path(options: Mapping[str, str], name: str) -> str:
    """A folder or a file of this machine; empty where none is given."""
    text = options.get(name, "")
    return local_path(text, f"the option {name}") if text else ""


def read_word(options: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """One of some words; the first is the default."""
    word = options.get(name, words[0]).lower()
    if word not in words:
        raise InvalidOption(f"{name} cannot be {options[name]!r}: it is one of {', '.join(words)}")
    return word


def read_truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidOption(f"{name} cannot be {text!r}: it is true or false")
    return text.lower() == "true"
