"""What a search asks: terms, all of which a message must have, in a range of time."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import InvalidSearch
from headrace.format.terms import HEADER, ID, KEY, TAGS, Matcher, digest
from headrace.log.local import Question

# Of times in milliseconds, both ends included.
EVER = -(1 << 62)
NEVER = (1 << 62) - 1
TERMS_MAX = 16
VALUE_BYTES_MAX = 65_536
# Batches that are looked at before the index is asked again.
BATCHES_MAX = 256

Term = tuple[str, bytes]
"""A field (`headrace.format.terms`) and its value."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question about the messages of a topic. Raises InvalidSearch."""

    terms: tuple[Term, ...]
    since: int = EVER
    until: int = NEVER
    matcher: Matcher = field(init=False, repr=False, compare=False)
    question: Question = field(init=False, repr=False, compare=False)
    needle: bytes = field(init=False, repr=False, compare=False)
    """Bytes that an uncompressed batch has if it has such a message."""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise InvalidSearch(problem)
        ordered = sorted(self.terms, key=_commonness)
        wanted = tuple((field, digest(field, value)) for field, value in ordered)
        object.__setattr__(self, "matcher", Matcher(self.terms, self.since, self.until))
        object.__setattr__(self, "question", Question(wanted, self.since, self.until, BATCHES_MAX))
        object.__setattr__(self, "needle", max((value for _, value in self.terms), key=len))

    def _problem(self) -> str | None:
        if not 0 < len(self.terms) <= TERMS_MAX:
            return f"a search has 1 to {TERMS_MAX} terms, not {len(self.terms)}"
        for name, value in self.terms:
            if not 0 < len(value) <= VALUE_BYTES_MAX:
                return f"the value of {name} has {len(value)} bytes: it must have 1 to {VALUE_BYTES_MAX}"
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
