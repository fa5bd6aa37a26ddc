"""What a search asks: terms, all of which a message must have, in a range of time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headrace.errors import InvalidSearch
from headrace.format.records import Record
from headrace.format.terms import HEADER, ID, KEY, TAGS, Matcher, digest
from headrace.log.local import Question

# Of times in milliseconds, both ends included.
EVER = -(1 << 62)
NEVER = (1 << 62) - 1
TERMS_MAX = 16
VALUE_BYTES_MAX = 65_536
# Batches that are looked at before the index is asked again.
BATCHES_MAX = 256

TRACEPARENT = "traceparent"
TRACE = re.compile(rb"[0-9a-f]{32}")
ALL = (1 << 31) - 1

Term = tuple[str, bytes]
"""A field (`headrace.format.terms`) and its value."""


class TraceMatcher:
    """Compares records with a trace, beside what another matcher asks."""

    def __init__(self, trace: bytes, matcher: Matcher) -> None:
        self._trace = trace
        self._matcher = matcher

    def match(self, batch: bytes, max_bytes: int, start: int, end: int, limit: int) -> list[Record]:
        """The first records that match, at offsets from `start` up to `end`; at most `limit`."""
        found = self._matcher.match(batch, max_bytes, start, end, ALL)
        return [record for record in found if self._has_trace(record)][:limit]

    def _has_trace(self, record: Record) -> bool:
        return any(
            name == TRACEPARENT and value is not None and value[3:35] == self._trace for name, value in record[4]
        )


@dataclass(frozen=True, slots=True)
class Query:
    """A question about the messages of a topic. Raises InvalidSearch."""

    terms: tuple[Term, ...]
    since: int = EVER
    until: int = NEVER
    trace: bytes = b""
    """The id of the trace that a message must belong to by its `traceparent`; empty: any."""
    matcher: Matcher | TraceMatcher = field(init=False, repr=False, compare=False)
    question: Question = field(init=False, repr=False, compare=False)
    needle: bytes = field(init=False, repr=False, compare=False)
    """Bytes that an uncompressed batch has if it has such a message."""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise InvalidSearch(problem)
        ordered = sorted(self.terms, key=_commonness)
        wanted = tuple((field, digest(field, value)) for field, value in ordered)
        matcher = Matcher(self.terms, self.since, self.until)
        object.__setattr__(self, "matcher", TraceMatcher(self.trace, matcher) if self.trace else matcher)
        object.__setattr__(self, "question", Question(wanted, self.since, self.until, BATCHES_MAX))
        object.__setattr__(self, "needle", self.trace or max((value for _, value in self.terms), key=len))

    def _problem(self) -> str | None:
        if self.trace and not TRACE.fullmatch(self.trace):
            return f"the trace is {self.trace.decode(errors='replace')[:80]!r}: it must be 32 small hex digits"
        if not (self.trace or self.terms) or len(self.terms) > TERMS_MAX:
            return f"a search must have 1 to {TERMS_MAX} terms (got {len(self.terms)})"
        for name, value in self.terms:
            if not 0 < len(value) <= VALUE_BYTES_MAX:
                return f"the value of {name} must have 1 to {VALUE_BYTES_MAX} bytes (got {len(value)})"
        if self.since > self.until:
            return f"the range of time ends ({self.until}) before it begins ({self.since})"
        return None


def _commonness(term: Term) -> int:
    """How many messages may have such a term, roughly: ids are one's own, tags are many's."""
    name = term[0]
    return {ID: 0, KEY: 1, TAGS: 3}.get(name, 2)


def key(value: bytes) -> Term:
    """The message's key, or one of RocketMQ's KEYS."""
    return KEY, value


def unique_key(value: bytes) -> Term:
    """RocketMQ's unique key."""
    return ID, value


def tag(value: bytes) -> Term:
    """RocketMQ's tag."""
    return TAGS, value


def header(name: str, value: bytes) -> Term:
    """The value of a header."""
    return HEADER + name, value
