"""Names and patterns, and the topics that they mean.

Patterns come from clients and are matched on the loop, so they are RE2's: it takes time in proportion to what it reads,
whatever the pattern. Kafka matches them in the same language, and the internal topics as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import structlog

from headrace.broker.fields import INT32, INT64
from headrace.broker.groups.consumer.member import Traits
from headrace.broker.groups.consumer.protocol import Refused
from headrace.broker.groups.protocol import Problem
from headrace.log.interface import Topic

log = structlog.get_logger("headrace.groups")

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


class Subscriptions:
    """What the members of a group read, as topics are at the moment."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        """Every name that somebody subscribes to, whether there is such a topic or not."""
        self.sizes: dict[UUID, int] = {}
        self.by_member: dict[str, frozenset[UUID]] = {}
        self.fingerprint = 0
        """A number that differs where the topics or their partitions do; where there are none, 0."""
        # By pattern: the names that it has been tried on, and those of them that it matches.
        self._tried: dict[str, tuple[frozenset[str], frozenset[str]]] = {}

    def renew(self, members: Iterable[tuple[str, Traits]], catalogue: Mapping[str, Topic]) -> None:
        """See what the members' names and patterns mean now."""
        names: set[str] = set()
        sizes: dict[UUID, int] = {}
        known: dict[tuple[tuple[str, ...], str], frozenset[UUID]] = {}
        everything = frozenset(catalogue)
        tried: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        by_member: dict[str, frozenset[UUID]] = {}
        for member_id, traits in members:
            wish = (traits.topics, traits.pattern)
            if wish not in known:
                wanted = set(traits.topics)
                if traits.pattern:
                    tried[traits.pattern] = everything, self._matching(traits.pattern, everything)
                    wanted |= tried[traits.pattern][1]
                found = [catalogue[name] for name in wanted if name in catalogue]
                names |= wanted
                sizes.update((topic.id, len(topic.partitions)) for topic in found)
                known[wish] = frozenset(topic.id for topic in found)
            by_member[member_id] = known[wish]
        self.names, self.sizes, self.by_member = frozenset(names), sizes, by_member
        self._tried = tried
        self.fingerprint = _fingerprint(sizes)

    def _matching(self, pattern: str, everything: frozenset[str]) -> frozenset[str]:
        """Only names that are new are tried: a pattern of a large group meets many."""
        tried, matched = self._tried.get(pattern, (frozenset(), frozenset()))
        try:
            matcher = compiled(pattern)
        except Refused as refusal:
            # It was taken once, and comes from the log.
            log.warning("a stored pattern matches nothing", pattern=pattern[:200], why=str(refusal))
            return frozenset()
        new = (name for name in everything - tried if matcher.fullmatch(name))
        return matched.intersection(everything).union(new)


def _fingerprint(sizes: Mapping[UUID, int]) -> int:
    if not sizes:
        return 0
    told = b"".join(topic.bytes + INT32.pack(sizes[topic]) for topic in sorted(sizes))
    return int(INT64.unpack(hashlib.blake2b(told, digest_size=8).digest())[0])
