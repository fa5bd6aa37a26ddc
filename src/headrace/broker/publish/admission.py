"""Admissions: what publishing to a topic takes, decided once for each user and kept while it is valid.

Producers send to the same topic again and again, and nearly always nothing about it has changed in between. So what
must be looked up (may clients write there at all; is there a bound, a delay, a window of deduplication ids; where is it
counted) is looked up once. A door keeps the `Admission` beside whatever else it remembers of such a request, and tests
one attribute of it.

It turns false when something about the topic changes (it is altered, grown or deleted, a partition of it goes offline
or gets another leader epoch) or something about the user (a right, a role, a quota; a session of the user is
authenticated anew or expires). A change walks the admissions of that topic or user, never connections. Sessions of one
user share admissions: the end of a session takes none away from the others, and its connection forgets its own.
"""

from __future__ import annotations

from typing import TypeVar

from headrace.broker.internal import is_protected
from headrace.broker.metrics import Metrics
from headrace.broker.overflow import Overflow
from headrace.broker.security import Session
from headrace.broker.topic_config import deduplicates, delays
from headrace.broker.topics import Topics
from headrace.log.interface import Log, Topic

# Users of one topic whose admissions are kept at a time.
USERS_MAX = 1_000

Key = TypeVar("Key")
Other = TypeVar("Other")


class Admission:
    """What publishing to a topic takes, for one user."""

    __slots__ = ("deduplicates", "delays", "is_guarded", "is_protected", "metrics", "reads_records", "topic", "valid")

    def __init__(self, topic: Topic, overflow: Overflow, metrics: Metrics) -> None:
        self.topic = topic
        self.valid = True
        """Whether all of this still holds. Once false it stays so: ask for another."""
        self.metrics = metrics.topic(topic.name)
        self.is_protected = is_protected(topic.name)
        self.is_guarded = overflow.guards(topic)
        """Room must be asked for before each publish."""
        self.delays = delays(topic.config)
        self.deduplicates = deduplicates(topic.config)
        self.reads_records = topic.settings.compact or topic.settings.bounds_times or self.delays or self.deduplicates
        """Batches are unpacked on their way in."""

    @property
    def is_plain(self) -> bool:
        """Whether a batch is appended as it comes, with no other question than whether this is `valid`."""
        return not (self.is_protected or self.is_guarded or self.delays or self.deduplicates)


class Admissions:
    """The admissions of all topics, by user."""

    def __init__(self, log: Log, topics: Topics, overflow: Overflow, metrics: Metrics) -> None:
        self._overflow = overflow
        self._metrics = metrics
        self._by_topic: dict[Topic, dict[str, Admission]] = {}
        self._by_user: dict[str, dict[Topic, Admission]] = {}
        topics.changed.append(self.invalidate_topic)
        log.on_partition_changed.append(lambda partition: self.invalidate_topic(partition.topic))

    def admit(self, session: Session, topic: Topic) -> Admission:
        """What a session's publishes to a topic take. A plain call, whether it is known or not."""
        user = session.user
        by_user = self._by_topic.get(topic)
        if by_user is not None:
            known = by_user.get(user)
            if known is not None:
                return known
            if len(by_user) >= USERS_MAX:
                self.invalidate_topic(topic)
        admission = Admission(topic, self._overflow, self._metrics)
        if not topic.deleted:
            self._by_topic.setdefault(topic, {})[user] = self._by_user.setdefault(user, {})[topic] = admission
        return admission

    def authenticate(self, session: Session, user: str) -> None:
        """A session gets another user, the same one anew, or none because it has expired."""
        self.invalidate_user(session.user)
        session.user = user

    def invalidate_topic(self, topic: Topic) -> None:
        """Something about a topic has changed: its sessions ask again."""
        _invalidate(topic, self._by_topic, self._by_user)

    def invalidate_user(self, user: str) -> None:
        """Something about a user has changed: the user's sessions ask again."""
        _invalidate(user, self._by_user, self._by_topic)


def _invalidate(
    key: Key, by_key: dict[Key, dict[Other, Admission]], by_other: dict[Other, dict[Key, Admission]]
) -> None:
    """End the admissions of one topic or user, in both tables."""
    for other, admission in by_key.pop(key, {}).items():
        admission.valid = False
        rest = by_other[other]
        del rest[key]
        if not rest:
            del by_other[other]
