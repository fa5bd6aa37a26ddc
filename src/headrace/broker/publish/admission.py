"""Admissions: what publishing to a topic takes, decided once for each user and kept while it is valid.

Producers send to the same topic again and again, and nearly always nothing about it has changed in between. So what
must be looked up (may clients write there at all; is there a bound, a delay, a window of deduplication ids; where is it
counted) is looked up once. A door keeps the `Admission` beside whatever else it remembers of such a request, and tests
one attribute of it.

It turns false when something about the topic changes (it is altered, grown or deleted, a partition of it goes offline
or gets another leader epoch) or something about the user (a right, a role, a quota; a session of the user is
authenticated anew or expires). A change walks the admissions of that topic or user, never connections. Sessions of one
user share admissions: the end of a session takes none away from the others, and its connection forgets its own.

A user that may not write gets none: asking raises NotAuthorized, so that no door can miss it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator

from headrace.broker.internal import is_protected
from headrace.broker.metrics import Metrics
from headrace.broker.overflow import Overflow
from headrace.broker.security import Operation, Resource, Security, Session
from headrace.broker.topic_config import deduplicates, delays
from headrace.broker.topics import Topics
from headrace.log.interface import Log, Topic

# Users of one topic whose admissions are kept at a time.
USERS_MAX = 1_000


class Admission:
    """What publishing to a topic takes, for one user."""

    __slots__ = (
        "deduplicates",
        "delays",
        "is_guarded",
        "is_protected",
        "metrics",
        "reads_records",
        "topic",
        "user",
        "valid",
    )

    def __init__(self, topic: Topic, overflow: Overflow, metrics: Metrics, user: str) -> None:
        self.topic = topic
        self.user = user
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
    """The admissions of all topics, by user; where rules are about addresses, or a token is narrowed, by these too."""

    def __init__(self, log: Log, topics: Topics, overflow: Overflow, metrics: Metrics, security: Security) -> None:
        self._overflow = overflow
        self._metrics = metrics
        self._security = security
        # By what rights depend on; for most, the user's name.
        self._by_topic: dict[Topic, dict[Hashable, Admission]] = {}
        self._by_user: dict[str, set[tuple[Topic, Hashable]]] = {}
        topics.changed.append(self.invalidate_topic)
        log.on_partition_changed.append(lambda partition: self.invalidate_topic(partition.topic))
        security.invalidations.append(self.invalidate_users)
        security.on_authenticated.append(self.forget_session)

    def admit(self, session: Session, topic: Topic) -> Admission:
        """What a session's publishes to a topic take. A plain call, whether it is known or not. Raises
        NotAuthorized."""
        subject = session.subject = self._security.subject(session)
        by_subject = self._by_topic.get(topic)
        if by_subject is not None:
            known = by_subject.get(subject)
            if known is not None:
                return known
            if len(by_subject) >= USERS_MAX:
                self.invalidate_topic(topic)
        self._security.check(session, Operation.WRITE, Resource.TOPIC, topic.name)
        admission = Admission(topic, self._overflow, self._metrics, session.user)
        if not topic.deleted:
            self._by_topic.setdefault(topic, {})[subject] = admission
            self._by_user.setdefault(session.user, set()).add((topic, subject))
        return admission

    def forget_session(self, session: Session) -> None:
        """A session gets another user, the same one anew, or none because it has expired. Its connection may hold
        admissions of the user that it had."""
        if session.subject is not None:
            session.subject = None
            for _ in self.invalidate_users((session.user,)):
                pass

    def invalidate_topic(self, topic: Topic) -> None:
        """Something about a topic has changed: its sessions ask again."""
        for subject, admission in self._by_topic.pop(topic, {}).items():
            admission.valid = False
            of_user = self._by_user[admission.user]
            of_user.discard((topic, subject))
            if not of_user:
                del self._by_user[admission.user]

    def clear(self) -> None:
        """Something about everything has changed: all sessions ask again."""
        for topic in list(self._by_topic):
            self.invalidate_topic(topic)

    def invalidate_users(self, users: Collection[str] | None) -> Iterator[None]:
        """Something about users, or about all (None), has changed: their sessions ask again, one admission after the
        other. Those that are made meanwhile are made of what is so now."""
        for user in list(self._by_user) if users is None else users:
            for topic, subject in list(self._by_user.get(user, ())):
                self._drop(topic, subject)
                yield

    def _drop(self, topic: Topic, subject: Hashable) -> None:
        by_subject = self._by_topic.get(topic, {})
        admission = by_subject.pop(subject, None)
        if admission is None:
            return
        admission.valid = False
        if not by_subject:
            del self._by_topic[topic]
        of_user = self._by_user[admission.user]
        of_user.discard((topic, subject))
        if not of_user:
            del self._by_user[admission.user]
