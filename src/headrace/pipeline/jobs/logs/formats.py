"""The formats that log lines come in, each from a column of texts to columns of fields.

Text formats are one regular expression each, which Arrow runs over the whole column; JSON has a file of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.jobs.logs import times
from headrace.pipeline.jobs.logs.fields import ROLES, SEVERITIES, Fields, Names, durations
from headrace.pipeline.jobs.logs.json_lines import JsonLines
from headrace.pipeline.option_values import InvalidOption

Parse = Callable[[Any, Any], Fields]
"""From texts and the times of their records."""

STAMP = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?\s?(?:Z|UTC|[+-]\d\d:?\d\d)?"
KNOWN = r"(?i:trace|debug|info|notice|warn|warning|err|error|crit|critical|fatal|severe|alert|emerg)"

SYSLOG_5424 = (
    r"^<(?P<priority>\d{1,3})>\d{1,2} (?P<time>\S+) (?:\S+) (?P<service>\S+) (?:\S+) (?:\S+) "
    r"(?:-|(?:\[(?:[^\]\\\"]|\\.|\"(?:[^\"\\]|\\.)*\")*\])+)(?: \x{FEFF}?(?s:(?P<message>.*)))?$"
)
SYSLOG_3164 = (
    r"^(?:<(?P<priority>\d{1,3})>)?(?P<time>[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d) (?:\S+) "
    r"(?P<service>[^\s:\[]+)(?:\[(?:[^\]]*)\])?: ?(?s:(?P<message>.*))$"
)
ACCESS = (
    r"^(?:\S+) \S+ \S+ \[(?P<time>[^\]]+)\] \"(?P<message>(?:[^\"\\]|\\.)*)\" (?P<status>\d{3}) (?:\d+|-)"
    r"(?: \"(?:[^\"\\]|\\.)*\" \"(?:[^\"\\]|\\.)*\")?(?: (?:\w+=)?\"?(?P<duration>\d+(?:\.\d+)?)\"?)?(?:\s.*)?$"
)
TEXT = (
    r"^\[?(?P<time>" + STAMP + r")\]?[\s|-]+(?:\[(?:[^\]]*)\]\s+)?"
    r"\[?(?P<level>" + KNOWN + r")\]?[\s|:-]+(?:\[(?:[^\]]*)\]\s+)?"
    r"\[?(?P<service>[A-Za-z_][^\s:\]|]*)\]?(?::|\s-|\s\||)\s+(?s:(?P<message>.*))$"
)  # fmt: skip
# How long something took, in a message.
TOOK = r"(?i:\b(?:duration|elapsed|latency|took|completed in|finished in)(?:_ms)?[=: ]\s*)(?P<took>\d+(?:\.\d+)?\s*(?:ns|us|µs|ms|s)?)\b"  # noqa: E501

# How a line of each format begins. The first that fits is taken, so the order counts.
BEGINS: Mapping[str, str] = {
    "json": r"^\s*\{",
    "syslog": r"^(?:<\d{1,3}>(?:\d{1,2} |[A-Z][a-z]{2}\s)|[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d \S+ [^\s:]+:)",
    "access": r"^\S+ \S+ \S+ \[\d\d/[A-Z][a-z]{2}/\d{4}:",
    "text": r"^\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d",
    "logfmt": r"^\s*[A-Za-z_@][\w.@-]*=",
}
FORMATS = (*BEGINS, "regex")


def parser(name: str, names: Names, regex: str = "") -> Parse:
    """What reads lines of a format. Raises InvalidOption."""
    if name == "regex":
        return _by_regex(_check(regex), names)
    made: Mapping[str, Callable[[Names], Parse]] = {
        "json": lambda names: JsonLines(names).parse,
        "syslog": lambda names: _syslog,
        "access": _access,
        "text": lambda names: _by_regex(TEXT, names, "a time, a level, a service and a message"),
        "logfmt": _logfmt,
    }
    return made[name](names)


def _check(regex: str) -> str:
    try:
        found = re.findall(r"\(\?P?<(\w+)>", regex)
        pc.extract_regex(pa.array([""]), pattern=regex)
    except (re.error, pa.ArrowInvalid) as error:
        raise InvalidOption(f"the regular expression {regex!r} cannot be used (RE2's syntax): {error}") from None
    if not set(found) & set(ROLES):
        raise InvalidOption(f"the regular expression {regex!r} names none of the groups {', '.join(ROLES)}")
    return regex


def _part(parts: Any, name: str) -> Any:
    """A group's texts; null where it is empty or not there."""
    if parts.type.get_field_index(name) < 0:
        return pa.nulls(len(parts), pa.string())
    found = pc.struct_field(parts, name)
    return pc.if_else(pc.equal(found, ""), None, found)


def _unlike(texts: Any, parts: Any, what: str) -> Any:
    """The reasons of lines that an expression did not fit."""
    return pc.if_else(pc.is_null(parts), f"it is not {what}", pa.scalar(None, pa.string()))


def _by_regex(pattern: str, names: Names, what: str = "like the regular expression") -> Parse:
    def parse(texts: Any, recorded: Any) -> Fields:
        parts = pc.extract_regex(texts, pattern=pattern)
        said = _part(parts, "time")
        time = times.from_text(said)
        message = _part(parts, "message")
        took = _part(parts, "duration")
        if parts.type.get_field_index("duration") < 0:
            took = _took(message)
        return Fields(
            time,
            _part(parts, "service"),
            _part(parts, "level"),
            message,
            durations(took, names.scale("duration")),
            times.unread(_unlike(texts, parts, what), said, time),
        )

    return parse


def _took(messages: Any) -> Any:
    """How long something took, where a message says so."""
    # To find out whether is much cheaper than to find out what.
    if not pc.any(pc.match_substring_regex(messages, pattern=TOOK)).as_py():
        return pa.nulls(len(messages), pa.string())
    return pc.struct_field(pc.extract_regex(messages, pattern=TOOK), "took")


def _syslog(texts: Any, recorded: Any) -> Fields:
    new, old = pc.extract_regex(texts, pattern=SYSLOG_5424), pc.extract_regex(texts, pattern=SYSLOG_3164)
    said_new, said_old = _part(new, "time"), _part(old, "time")
    said_new = pc.if_else(pc.equal(said_new, "-"), None, said_new)
    time = pc.coalesce(times.from_text(said_new), times.from_syslog(said_old, recorded))
    priority = pc.cast(pc.coalesce(_part(new, "priority"), _part(old, "priority")), pa.int32())
    severity = pc.bit_wise_and(priority, 7)
    service = pc.coalesce(_part(new, "service"), _part(old, "service"))
    message = pc.coalesce(_part(new, "message"), _part(old, "message"))
    none = pc.and_(pc.is_null(new), pc.is_null(old))
    reason = pc.if_else(none, "it is not syslog (RFC 5424 or 3164)", pa.scalar(None, pa.string()))
    return Fields(
        time,
        pc.if_else(pc.equal(service, "-"), None, service),
        pa.array(SEVERITIES).take(severity),
        message,
        durations(_took(message), 1.0),
        times.unread(reason, pc.coalesce(said_new, said_old), time),
    )


def _access(names: Names) -> Parse:
    def parse(texts: Any, recorded: Any) -> Fields:
        parts = pc.extract_regex(texts, pattern=ACCESS)
        said = _part(parts, "time")
        time = times.from_access(said)
        status = pc.cast(_part(parts, "status"), pa.int32())
        level = pc.if_else(
            pc.greater_equal(status, 500), "ERROR", pc.if_else(pc.greater_equal(status, 400), "WARN", "INFO")
        )
        reason = times.unread(_unlike(texts, parts, "an access log's line (common or combined)"), said, time)
        message = pc.binary_join_element_wise(_part(parts, "status"), _part(parts, "message"), " ")
        # What servers add at the end is seconds.
        duration = durations(_part(parts, "duration"), 1e3)
        return Fields.of(len(texts), time=time, level=level, message=message, duration=duration, reason=reason)

    return parse


def _logfmt(names: Names) -> Parse:
    def field(texts: Any, name: str) -> Any:
        quoted = r"\"(?P<quoted>(?:[^\"\\]|\\.)*)\""
        pattern = r"(?:^|\s)" + re.escape(name) + r"=(?:" + quoted + r"|(?P<plain>[^\s\"]*))(?:\s|$)"
        parts = pc.extract_regex(texts, pattern=pattern)
        if parts.null_count == len(parts):
            return None
        text = pc.replace_substring(pc.struct_field(parts, "quoted"), '\\"', '"')
        return pc.coalesce(pc.if_else(pc.equal(text, ""), None, text), _part(parts, "plain"))

    def parse(texts: Any, recorded: Any) -> Fields:
        found: dict[str, Any] = {}
        for role in ROLES:
            for name in names.by_role[role]:
                column = field(texts, name)
                if column is None:
                    continue
                if role == "duration":
                    column = durations(column, names.scale(name))
                found[role] = pc.coalesce(found[role], column) if role in found else column
                if not found[role].null_count:
                    break
        said = found.pop("time", pa.nulls(len(texts), pa.string()))
        time = times.from_text(said)
        like = pc.match_substring_regex(texts, pattern=BEGINS["logfmt"])
        reason = pc.if_else(like, pa.scalar(None, pa.string()), "it is not logfmt (name=value ...)")
        return Fields.of(len(texts), **found, time=time, reason=times.unread(reason, said, time))

    return parse
