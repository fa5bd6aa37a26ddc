"""Names and patterns, and the topics that they mean.

Patterns come from clients and are matched on the loop, so they are RE2's: it takes time in proportion to what it reads,
whatever the pattern. Kafka matches them in the same language, and the internal topics as well.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import structlog

from headrace.broker.fields import INT32, INT64
from headrace.broker.groups.consumer.consumer_member import Traits
from headrace.broker.groups.consumer.viewer import Viewer
from headrace.broker.groups.protocol import GroupError, Problem
from headrace.log.interface import Topic

log = structlog.get_logger("headrace.groups")

NONE: frozenset[str] = frozenset()
PATTERN_CHARACTERS_MAX = 4_096
# Some short patterns take seconds to prepare: those are refused, as they take more than this.
PATTERN_BYTES_MAX = 256 << 10


def compile_pattern(pattern: str) -> Any:
    """The pattern, ready to match. Raises GroupError."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES_MAX
    try:
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            raise re2.error(f"it must have at most {PATTERN_CHARACTERS_MAX} characters (got {len(pattern)})")
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error.args[0]
        raise GroupError(
            Problem.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern[:200]}` is not a valid regular expression: {why}.",
        ) from None


Wish = tuple[tuple[str, ...], str, Viewer | None]
"""Names, a pattern, and which topics it can mean (None: all). Most members of a group have the same."""


class Subscriptions:
    """What the members of a group read, as topics were when it was last renewed."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        """Every name that a member subscribes to, whether there is such a topic or not."""
        self.sizes: dict[UUID, int] = {}
        self.fingerprint = 0
        """A number that differs where the topics or their partitions do; where there are none, 0."""
        self.has_shifted = False
        """Whether, since this was last set back, a member of a pattern got other topics than it had."""
        self.patterns: Counter[str] = Counter()
        self._wishes: dict[str, Wish] = {}
        # What members with a viewer had when this was last renewed.
        self._had: dict[str, frozenset[UUID]] = {}
        self._wishing: Counter[Wish] = Counter()
        self._meaning: dict[Wish, frozenset[UUID]] = {}
        # The catalogue's turn that this is true for, and whether it is of the wishes as they are.
        self._turn: int | None = None
        self._renewed = False
        # The topics of that turn, and what each pattern matches of them: names, and their ids.
        self._tried: frozenset[str] = NONE
        self._matched: dict[str, tuple[frozenset[str], frozenset[UUID]]] = {}

    def of(self, member_id: str) -> frozenset[UUID]:
        """The topics of a member."""
        return self._meaning[self._wishes[member_id]]

    def put(self, member_id: str, traits: Traits) -> None:
        """A member has come, or wishes for something else."""
        before = self._wishes.get(member_id)
        self._replace(member_id, (traits.topics, traits.pattern, before[2] if before and traits.pattern else None))

    def view(self, member_id: str, viewer: Viewer | None) -> None:
        """A member is heard of as this one. Without a pattern it does not matter: names are checked as they come."""
        names, pattern, before = self._wishes[member_id]
        if pattern and viewer != before:
            self._replace(member_id, (names, pattern, viewer))

    def _replace(self, member_id: str, wish: Wish) -> None:
        self.drop(member_id, had=True)
        self._wishes[member_id] = wish
        if wish not in self._wishing:
            self._renewed = False
        self._wishing[wish] += 1
        if wish[1]:
            self.patterns[wish[1]] += 1

    def drop(self, member_id: str, *, had: bool = False) -> None:
        """A member has gone; or it wishes for something else, and what it had counts."""
        if not had:
            self._had.pop(member_id, None)
        wish = self._wishes.pop(member_id, None)
        if wish is None:
            return
        self._wishing[wish] -= 1
        if not self._wishing[wish]:
            del self._wishing[wish]
            self._renewed = False
        self.patterns[wish[1]] -= 1
        self.patterns = +self.patterns

    def renew(self, turn: int, catalogue: Mapping[str, Topic]) -> None:
        """See what the members' wishes mean in the catalogue of that turn."""
        if self._turn == turn and self._renewed:
            return
        self._match(turn, catalogue)
        # Many members, each with a name of its own beside a pattern, must not cost what the pattern matches each time.
        self._meaning = {}
        for wish in self._wishing:
            matched = self._visible(wish, catalogue)
            named = {catalogue[name].id for name in wish[0] if name in catalogue}
            self._meaning[wish] = matched if named <= matched else matched | named
        names = NONE.union(*(names for names, _ in self._matched.values()), *(wish[0] for wish in self._wishing))
        if any(wish[2] is not None for wish in self._wishing):
            # Of what patterns match, that which a member sees.
            meant = frozenset[UUID]().union(*self._meaning.values())
            by_name = NONE.union(*(wish[0] for wish in self._wishing))
            names = by_name | {name for name in names if name in catalogue and catalogue[name].id in meant}
        found = [catalogue[name] for name in names if name in catalogue]
        sizes = {topic.id: len(topic.partitions) for topic in found}
        self._compare()
        if sizes != self.sizes:
            self.fingerprint = _fingerprint(sizes)
        self.names, self.sizes = names, sizes
        self._renewed = True

    def _visible(self, wish: Wish, catalogue: Mapping[str, Topic]) -> frozenset[UUID]:
        """What a member's pattern means."""
        _, pattern, viewer = wish
        if not pattern:
            return frozenset()
        names, ids = self._matched[pattern]
        if viewer is None:
            return ids
        seen = viewer.visible(names, catalogue)
        return ids if seen is names else frozenset(catalogue[name].id for name in seen)

    def _compare(self) -> None:
        """See whether rights have given a member other topics, where all of the group may be the same."""
        had, self._had = self._had, {}
        for member_id, wish in self._wishes.items():
            if wish[2] is None and member_id not in had:
                continue
            means = self._meaning[wish]
            if had.get(member_id, means) != means:
                self.has_shifted = True
            if wish[2] is not None:
                self._had[member_id] = means

    def _match(self, turn: int, catalogue: Mapping[str, Topic]) -> None:
        """Only names and patterns that are new are tried: a pattern of a large group meets many."""
        # Without a pattern, the many names of a large catalogue are not kept.
        everything = frozenset(catalogue) if self.patterns else NONE
        new, gone = everything - self._tried, self._tried - everything
        # A topic goes a while before the turn rises.
        unchanged = self._turn == turn and not new and not gone
        before, self._matched = self._matched, {}
        for pattern in self.patterns:
            if pattern not in before:
                names = _matching(pattern, everything)
            elif unchanged:
                self._matched[pattern] = before[pattern]
                continue
            else:
                names = (before[pattern][0] - gone) | (_matching(pattern, new) if new else NONE)
            self._matched[pattern] = names, frozenset(catalogue[name].id for name in names)
        self._turn, self._tried = turn, everything


def _matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    try:
        matcher = compile_pattern(pattern)
    except GroupError as refusal:
        # It was taken once, and comes from the log.
        log.warning("a stored pattern matches nothing", pattern=pattern[:200], why=str(refusal))
        return NONE
    return frozenset(name for name in names if matcher.fullmatch(name))


def _fingerprint(sizes: Mapping[UUID, int]) -> int:
    if not sizes:
        return 0
    catalogued = b"".join(sorted(topic.bytes + INT32.pack(size) for topic, size in sizes.items()))
    return int(INT64.unpack(hashlib.blake2b(catalogued, digest_size=8).digest())[0])
