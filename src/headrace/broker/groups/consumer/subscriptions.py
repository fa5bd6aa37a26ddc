"""Names and patterns, and the topics that they mean.

Patterns come from clients and are matched on the loop, so they are RE2's: it takes time in proportion to what it reads,
whatever the pattern. Kafka matches them in the same language, and the internal topics as well.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import structlog

from headrace.broker.fields import INT32, INT64
from headrace.broker.groups.consumer.member import Traits
from headrace.broker.groups.consumer.protocol import Refused
from headrace.broker.groups.protocol import Problem
from headrace.log.interface import Topic

log = structlog.get_logger("headrace.groups")

NONE: frozenset[str] = frozenset()
PATTERN_CHARACTERS_MAX = 4_096
# Some short patterns take seconds to prepare: those are refused, as they take more than this.
PATTERN_BYTES_MAX = 256 << 10


def compiled(pattern: str) -> Any:
    """The pattern, ready to match. Raises Refused."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES_MAX
    try:
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            raise re2.error(f"it has {len(pattern)} characters, and {PATTERN_CHARACTERS_MAX} are taken")
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error.args[0]
        raise Refused(
            Problem.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern[:200]}` is not a valid regular expression: {why}.",
        ) from None


Wish = tuple[tuple[str, ...], str]
"""Names, and a pattern. Most members of a group have the same."""


class Subscriptions:
    """What the members of a group read, as topics were when it was last renewed."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        """Every name that somebody subscribes to, whether there is such a topic or not."""
        self.sizes: dict[UUID, int] = {}
        self.fingerprint = 0
        """A number that differs where the topics or their partitions do; where there are none, 0."""
        self.patterns: Counter[str] = Counter()
        self._wishes: dict[str, Wish] = {}
        self._wishing: Counter[Wish] = Counter()
        self._meaning: dict[Wish, frozenset[UUID]] = {}
        # The catalogue's turn that this is true for; None where wishes have changed since.
        self._turn: int | None = None
        # By pattern: the names that it has been tried on, and those of them that it matches.
        self._tried: dict[str, tuple[frozenset[str], frozenset[str]]] = {}

    def of(self, member_id: str) -> frozenset[UUID]:
        """The topics of a member."""
        return self._meaning[self._wishes[member_id]]

    def put(self, member_id: str, traits: Traits) -> None:
        """A member has come, or wishes for something else."""
        self.drop(member_id)
        wish = self._wishes[member_id] = (traits.topics, traits.pattern)
        if wish not in self._wishing:
            self._turn = None
        self._wishing[wish] += 1
        if traits.pattern:
            self.patterns[traits.pattern] += 1

    def drop(self, member_id: str) -> None:
        """A member has gone."""
        wish = self._wishes.pop(member_id, None)
        if wish is None:
            return
        self._wishing[wish] -= 1
        if not self._wishing[wish]:
            del self._wishing[wish]
            self._turn = None
        self.patterns[wish[1]] -= 1
        self.patterns = +self.patterns

    def renew(self, turn: int, catalogue: Mapping[str, Topic]) -> None:
        """See what the members' wishes mean in the catalogue of that turn."""
        if self._turn == turn:
            return
        self._turn = turn
        everything = frozenset(catalogue)
        self._tried = {pattern: (everything, self._matching(pattern, everything)) for pattern in self.patterns}
        names: set[str] = set()
        self.sizes, self._meaning = {}, {}
        for wish in self._wishing:
            wanted = {*wish[0], *self._tried.get(wish[1], (NONE, NONE))[1]}
            found = [catalogue[name] for name in wanted & everything]
            names |= wanted
            self.sizes.update((topic.id, len(topic.partitions)) for topic in found)
            self._meaning[wish] = frozenset(topic.id for topic in found)
        self.names = frozenset(names)
        self.fingerprint = _fingerprint(self.sizes)

    def _matching(self, pattern: str, everything: frozenset[str]) -> frozenset[str]:
        """Only names that are new are tried: a pattern of a large group meets many."""
        tried, matched = self._tried.get(pattern, (NONE, NONE))
        try:
            matcher = compiled(pattern)
        except Refused as refusal:
            # It was taken once, and comes from the log.
            log.warning("a stored pattern matches nothing", pattern=pattern[:200], why=str(refusal))
            return NONE
        new = (name for name in everything - tried if matcher.fullmatch(name))
        return matched.intersection(everything).union(new)


def _fingerprint(sizes: Mapping[UUID, int]) -> int:
    if not sizes:
        return 0
    told = b"".join(topic.bytes + INT32.pack(sizes[topic]) for topic in sorted(sizes))
    return int(INT64.unpack(hashlib.blake2b(told, digest_size=8).digest())[0])
