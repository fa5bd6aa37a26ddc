"""The topics that clients may read, as Fetch remembers them.

A reader asks for the same topics over and over. So what its user may read is looked up once and kept while it is
`valid`, by what rights depend on: for most, the user. It turns false when rights change, and those who wait for records
look again.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from headrace.broker.security import Operation, Resource, Security, Session
from headrace.log.interface import Topic

# Users whose topics are kept at a time, and topics of one of them.
USERS_MAX = 1_000
TOPICS_MAX = 100_000


class Readable:
    """What the clients of one user may read, as far as it was asked for."""

    __slots__ = ("topics", "user", "valid")

    def __init__(self, user: str) -> None:
        self.user = user
        self.topics: set[Topic] = set()
        self.valid = True


class ReadableTopics:
    """Those of all users."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._by_subject: dict[Hashable, Readable] = {}

    def of(self, session: Session) -> Readable:
        """What is known of a session's user."""
        subject = self._security.subject(session)
        found = self._by_subject.get(subject)
        if found is None:
            if len(self._by_subject) >= USERS_MAX:
                self.forget(None)
            found = self._by_subject[subject] = Readable(session.user)
        return found

    def allows(self, session: Session, readable: Readable, topic: Topic) -> bool:
        """Whether a session may read a topic that is not known to be readable."""
        if not self._security.allows(session, Operation.READ, Resource.TOPIC, topic.name):
            return False
        if len(readable.topics) >= TOPICS_MAX:
            readable.topics.clear()
        readable.topics.add(topic)
        return True

    def drop(self, topic: Topic) -> None:
        """A topic has changed: one that is deleted is not kept for it."""
        if topic.deleted:
            for readable in self._by_subject.values():
                readable.topics.discard(topic)

    def forget(self, users: Collection[str] | None) -> None:
        """The rights of these users, or of any, have changed."""
        gone = [each for each, known in self._by_subject.items() if users is None or known.user in users]
        for subject in gone:
            self._by_subject.pop(subject).valid = False
