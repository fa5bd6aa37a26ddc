"""What is known of a line once it is read: columns that all formats share, and how their values are made alike.

Words come in few kinds and many spellings. So levels are made alike in a dictionary of the block's different ones, in
Python; everything else is done to whole columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
ERRORS = ("ERROR", "FATAL")
UNKNOWN = "UNKNOWN"

SPELLINGS: Mapping[str, str] = {
    **{level: level for level in LEVELS},
    **dict.fromkeys(("VERBOSE", "FINE", "FINER", "FINEST", "SILLY"), "TRACE"),
    **dict.fromkeys(("DBG", "D", "CONFIG"), "DEBUG"),
    **dict.fromkeys(("INFORMATION", "INFORMATIONAL", "NOTICE", "I", "N"), "INFO"),
    **dict.fromkeys(("WARNING", "W"), "WARN"),
    **dict.fromkeys(("ERR", "SEVERE", "E"), "ERROR"),
    **dict.fromkeys(("CRITICAL", "CRIT", "ALERT", "EMERG", "EMERGENCY", "PANIC", "DPANIC", "F", "C"), "FATAL"),
    # As bunyan and pino count; syslog's own numbers come with its priority.
    **{str(number * 10): level for number, level in enumerate(LEVELS, 1)},
}
SEVERITIES = ("FATAL", "FATAL", "FATAL", "ERROR", "WARN", "INFO", "INFO", "DEBUG")
"""Syslog's, from 0 on."""

# The names that a field goes by, the more particular first.
NAMES: Mapping[str, tuple[str, ...]] = {
    "time": ("timestamp", "@timestamp", "time", "ts", "datetime", "asctime"),
    "service": ("service", "service_name", "service.name", "app", "application", "component", "program"),
    "level": ("level", "severity", "log.level", "lvl", "levelname", "log_level", "loglevel"),
    "message": ("message", "msg", "error", "event"),
    "duration": (
        "duration_ms", "elapsed_ms", "latency_ms", "took_ms", "response_time_ms", "duration", "elapsed", "latency",
        "took", "response_time", "request_time", "duration_s", "duration_seconds", "duration_us", "duration_ns",
    ),
}  # fmt: skip
ROLES = tuple(NAMES)

UNITS_MS: Mapping[str, float] = {
    "ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "m": 6e4,
    "h": 3.6e6,
}  # fmt: skip
DURATION = r"^\s*(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<unit>[a-zµμ]*)\s*$"

# Eight hexadecimal digits or more, a letter and a number among them: by how many letters come first.
LETTERS_FIRST = "|".join(rf"[a-fA-F]{{{count}}}\d[0-9a-fA-F]{{{max(0, 7 - count)},}}" for count in range(1, 16))

# What makes one message out of many: what differs from call to call. The order counts.
NORMALISED: tuple[tuple[str, str], ...] = (
    (r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b", "<id>"),
    (r"\b0[xX][0-9a-fA-F]+\b", "<hex>"),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "<address>"),
    (rf"\b(?:{LETTERS_FIRST}|\d+[a-fA-F][0-9a-fA-F]{{6,}})\b", "<hex>"),
    (r"\d+(?:\.\d+)?", "<n>"),
    (r"\s+", " "),
)


@dataclass(frozen=True)
class Fields:
    """Lines that were read, column by column; all of one length. Where `reason` is not null, a line is broken."""

    time: Any
    """In UTC; null: the line has none."""
    service: Any
    level: Any
    message: Any
    duration: Any
    """Milliseconds."""
    reason: Any

    @classmethod
    def of(cls, rows: int, **columns: Any) -> Fields:
        """With nulls in what is not given."""
        empty = {"time": pa.timestamp("us", tz="UTC"), "duration": pa.float64()}
        return cls(
            **{
                name: columns[name] if name in columns else pa.nulls(rows, empty.get(name, pa.string()))
                for name in (*ROLES, "reason")
            }
        )

    @classmethod
    def joined(cls, parts: list[Fields], order: Any) -> Fields:
        """Parts one behind the other, and then in this order."""
        names = (*ROLES, "reason")
        return cls(**{name: pa.concat_arrays([getattr(part, name) for part in parts]).take(order) for name in names})


@dataclass(frozen=True)
class Names:
    """Which fields of a line mean what."""

    by_role: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict(NAMES))
    unit: str = "ms"
    """Of durations that do not say theirs, in the value or in the name."""

    @classmethod
    def given(cls, named: Mapping[str, str], unit: str) -> Names:
        """Some of them named otherwise."""
        return cls({**NAMES, **{role: (name,) for role, name in named.items() if name}}, unit)

    def scale(self, name: str) -> float:
        """What a number in the field is to be multiplied with to be milliseconds."""
        if name == "request_time":
            # nginx counts these in seconds.
            return UNITS_MS["s"]
        _, _, suffix = name.rpartition("_")
        return UNITS_MS.get(suffix.lower(), UNITS_MS[self.unit])


def levels(words: Any) -> Any:
    """Levels made alike: one of LEVELS, UNKNOWN where there is none, and a word that is not known as it is."""
    encoded = pc.dictionary_encode(words)
    alike = [_level(word) for word in encoded.dictionary.to_pylist()]
    return pc.fill_null(pa.array(alike, pa.string()).take(encoded.indices), UNKNOWN)


def _level(word: str) -> str:
    word = word.strip().strip("[]").upper()
    return SPELLINGS.get(word, word or UNKNOWN)


def durations(texts: Any, scale: float) -> Any:
    """Texts like `12`, `1.5ms` or `3 s` in milliseconds; null where a text is none."""
    parts = pc.extract_regex(texts, pattern=DURATION)
    number = pc.cast(pc.struct_field(parts, "number"), pa.float64())
    encoded = pc.dictionary_encode(pc.struct_field(parts, "unit"))
    scales = [scale if not unit else UNITS_MS.get(unit) for unit in encoded.dictionary.to_pylist()]
    return pc.multiply(number, pa.array(scales, pa.float64()).take(encoded.indices))


def normalised(messages: Any) -> Any:
    """Messages without what differs from call to call."""
    for pattern, word in NORMALISED:
        messages = pc.replace_substring_regex(messages, pattern=pattern, replacement=word)
    return pc.utf8_trim_whitespace(messages)
