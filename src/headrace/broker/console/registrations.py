"""Registration: a team asks for a topic or a consumer, an operator approves, and use without that is allowed, warned of
or refused (`registration`).

It is asked where every door asks for rights: WRITE on a topic, which an admission then keeps, and READ on a group or a
queue, which a subscription does. A change of what is approved ends admissions, as a change of rights does. Where
registrations cannot be read at the start, `refuse` refuses until they can, and that is tried again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from headrace.broker.console.documents import Documents
from headrace.broker.internal import is_protected
from headrace.broker.rate_limit import RateLimit
from headrace.broker.security.rights import Operation, Resource
from headrace.broker.security.session import ANONYMOUS, Session
from headrace.errors import HeadraceError
from headrace.runtime import Runtime

log = structlog.get_logger("headrace.registration")

KIND = "registration"
TOPIC, CONSUMER = KINDS = ("topic", "consumer")
REQUESTED, APPROVED, REJECTED = STATES = ("requested", "approved", "rejected")
ALLOW, WARN, REFUSE = MODES = ("allow", "warn", "refuse")
RETRY_SECONDS = 1.0
USES_MAX = 1_000
USERS_MAX = 10


@dataclass(slots=True)
class Use:
    """Something that was used without a registration."""

    kind: str
    topic: str
    group: str
    first_ms: int
    last_ms: int
    count: int = 0
    users: dict[str, None] = field(default_factory=dict)


class Registrations:
    """What is approved, and what is used without."""

    def __init__(self, runtime: Runtime, documents: Documents, mode: str, notify: Callable[[], None]) -> None:
        """`notify` is called when something may be used, or no longer."""
        self.mode = mode
        self.uses: dict[tuple[str, str, str], Use] = {}
        """Without a registration, since the start."""
        self._runtime = runtime
        self._documents = documents
        self._notify = notify
        self._topics: frozenset[str] = frozenset()
        self._consumers: frozenset[tuple[str, str]] = frozenset()
        self._groups: frozenset[str] = frozenset()
        self.is_known = False
        """Whether they were read."""
        self._retrying: asyncio.Task[None] | None = None
        self._warnings = RateLimit()
        documents.on_changed.append(self._changed)

    @property
    def is_asked(self) -> bool:
        return self.mode != ALLOW

    async def start(self) -> None:
        """Read what is approved, if it matters."""
        if self.is_asked:
            try:
                await self._documents.load()
            except HeadraceError as error:
                what = "what needs one is refused" if self.mode == REFUSE else "what has none is not noted"
                log.error(f"registrations cannot be read yet: {what} until they can", error=str(error))
                self._retrying = asyncio.get_running_loop().create_task(self._retry())
                return
            self._renew()

    async def _retry(self) -> None:
        while not self.is_known:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                await self._documents.load()
            except HeadraceError:
                continue
            self._renew()
            self._notify()
            log.info("registrations are read")

    async def stop(self) -> None:
        """Read no more."""
        if self._retrying is not None:
            self._retrying.cancel()
            self._retrying = None

    def _changed(self, kind: str, id: str) -> None:
        if kind == KIND:
            self._renew()
            self._notify()

    def _renew(self) -> None:
        approved = [each.body for each in self._documents.known(KIND).values() if each.body["state"] == APPROVED]
        self._topics = frozenset(each["topic"] for each in approved if each["kind"] == TOPIC)
        self._consumers = frozenset((each["topic"], each["group"]) for each in approved if each["kind"] == CONSUMER)
        self._groups = frozenset(group for _, group in self._consumers)
        self.is_known = True

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether something may be used, be it that it is only noted. A plain call, and cheap."""
        if session.is_own:
            return True
        if resource is Resource.TOPIC:
            if operation is not Operation.WRITE or name in self._topics or is_protected(name):
                return True
            return self._note(session, TOPIC, name, "")
        if operation is not Operation.READ or session.door == "http":
            return True
        if resource is Resource.GROUP:
            return name in self._groups or self._note(session, CONSUMER, "", name)
        if resource is Resource.QUEUE:
            topic, _, queue = name.partition("/")
            return (topic, queue) in self._consumers or self._note(session, CONSUMER, topic, queue)
        return True

    def _note(self, session: Session, kind: str, topic: str, group: str) -> bool:
        if not self.is_known:
            return self.mode != REFUSE
        now = self._runtime.clock.now_ms()
        key = (kind, topic, group)
        use = self.uses.get(key)
        if use is None:
            if len(self.uses) >= USES_MAX:
                del self.uses[next(iter(self.uses))]
            use = self.uses[key] = Use(kind, topic, group, now, now)
        use.last_ms = now
        use.count += 1
        if len(use.users) < USERS_MAX:
            use.users[session.user or ANONYMOUS] = None
        if due := self._warnings.count(now / 1000):
            what = {"kind": kind, "topic": topic, "group": group, "door": session.door, "uses": due}
            log.warning("used without a registration", **{name: value for name, value in what.items() if value})
        return self.mode != REFUSE
