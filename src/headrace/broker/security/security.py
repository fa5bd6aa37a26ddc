"""What doors and the parts of the broker ask, before they do something for a client.

A decision is made once for a user, an address (where any rule is about one), an operation and a resource, and is
remembered until the rules change. What is refused is counted, logged and audited here, so that no door has to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING
from weakref import ref

import structlog

from headrace.broker.internal import HIDDEN
from headrace.broker.rate_limit import RateLimit
from headrace.broker.security.accounts import Accounts
from headrace.broker.security.authenticator import Authenticator
from headrace.broker.security.given_admins import GivenAdmins
from headrace.broker.security.grants import Explanation, Grants
from headrace.broker.security.identity import Identity, is_allowed
from headrace.broker.security.index import RuleIndex
from headrace.broker.security.rights import CLUSTER_NAME, OPERATIONS, Operation, Resource
from headrace.broker.security.rules import ANY, Rule
from headrace.broker.security.session import ANONYMOUS, Session
from headrace.broker.security.sessions import Sessions
from headrace.broker.security.store import SecurityStore
from headrace.broker.security.users import Users
from headrace.broker.security.watches import ChangedUsers, OnRevoked, Watch, Watches
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics import Topics
from headrace.errors import NotAuthorized, Unregistered
from headrace.log.interface import Log
from headrace.runtime import Runtime

if TYPE_CHECKING:
    from headrace.broker.audit import Audit

log = structlog.get_logger("headrace.security")

OFF, LOG_ONLY = "off", "log-only"
# What is forgotten between two turns of the loop after a change of rules: about half a millisecond.
STEP_INVALIDATIONS = 512


class Security:
    """Identities, rights, quotas and audit of one broker."""

    def __init__(self, runtime: Runtime, log: Log, topics: Topics, audit: Audit, config: BrokerSettings) -> None:
        self.audit = audit
        self.is_registered: Callable[[Session, Operation, Resource, str], bool] | None = None
        """Asked for what is allowed, where use without a registration is noted or refused."""
        self.knows_registrations: Callable[[], bool] = lambda: True
        """Whether that is answered by what is registered: it may be unreadable as yet."""
        self.on_changed: list[Callable[[ChangedUsers], None]] = []
        """Called once after a change of the rights of some users, with their names as sessions have them (empty: of
        clients that are not authenticated); None: those of any user may have changed."""
        self.invalidations: list[Callable[[ChangedUsers], Iterator[None]]] = []
        """Called likewise. What was let in before is forgotten in steps, all of them before the change returns."""
        self.on_authenticated: list[Callable[[Session], None]] = []
        """Called when a session is about to have another user, the same one anew, or none."""
        self.on_login: list[Callable[[Session], None]] = []
        """Called after a session has got an identity."""
        self.store = SecurityStore(runtime, log, topics, config)
        self.users = Users(runtime.random.bytes(32))
        self.authenticator = Authenticator(runtime, self.users, config)
        self.authenticator.on_failed.append(audit.record_failed_login)
        self.refused: dict[tuple[Operation, Resource], int] = {}
        """How often something was not allowed, also where that was only logged."""
        self.is_enforced = config.authorization != OFF
        """Whether anything can be refused: what asks for many rights at once can leave it out otherwise."""
        self._is_log_only = config.authorization == LOG_ONLY
        self._super_users = frozenset(_names(config.super_users))
        self._runtime = runtime
        self._index = RuleIndex()
        self._decisions: dict[Hashable, bool] = {}
        self._decisions_max = config.authorization_cache_max
        self._refusal_log = RateLimit()
        self._sessions = Sessions(self.end)
        self._expiring: dict[ref[Session], asyncio.TimerHandle] = {}
        self.accounts = Accounts(runtime, self, config)
        self.grants = Grants(self, config.rules_max)
        self.given_admins = GivenAdmins(self)
        self._watches = Watches(self)
        self.store.on_followed.append(self.notify_all)

    async def start(self) -> None:
        """Load users and rules. Raises PartitionOffline or CorruptLog."""
        await self.store.start()
        self.notify_all()

    async def follow(self) -> None:
        """The same on a node that follows, and go on with what the leader changes."""
        await self.store.follow()
        self.notify_all()

    async def stop(self) -> None:
        """Follow no more."""
        await self.store.stop()

    # --- decisions ----------------------------------------------------------------------------------------------------

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether a session may do that. A plain call; a refusal is counted, logged and audited here."""
        if self._decides(session, operation, resource, name):
            if self.is_registered is not None and not self.is_registered(session, operation, resource, name):
                return False
            if self.audit.has_reads and operation is Operation.READ:
                self.audit.record(session, "read", resource, name)
            return True
        if name in HIDDEN and _is_hidden(operation, resource):
            return False
        self._report(session, operation, resource, name)
        return self._is_log_only

    def check(self, session: Session, operation: Operation, resource: Resource, name: str) -> None:
        """Raise NotAuthorized unless a session may do that."""
        if not self.allows(session, operation, resource, name):
            if self.is_registered is not None and self._decides(session, operation, resource, name):
                raise Unregistered(resource.name, name, is_known=self.knows_registrations())
            raise NotAuthorized(operation.name, resource.name, name)

    def check_any(self, session: Session, *rights: tuple[Operation, Resource, str]) -> None:
        """Raise NotAuthorized, for the last of some rights, unless a session has one of them."""
        if not any(self._decides(session, *right) for right in rights):
            self.check(session, *rights[-1])

    def would_allow(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        """The decision alone, also where it is only logged: nothing is reported. For what another right
        allows, too, or what is done in part without this one."""
        return self._decides(session, operation, resource, name)

    def check_create(self, session: Session, topic: str) -> None:
        """Raise NotAuthorized unless a session may make a topic of that name."""
        create = Operation.CREATE
        self.check_any(session, (create, Resource.CLUSTER, CLUSTER_NAME), (create, Resource.TOPIC, topic))

    def watch(
        self, session: Session, operation: Operation, resource: Resource, name: str, on_revoked: OnRevoked
    ) -> Watch:
        """Ask for a right that a session goes on using, and call back when it has gone. Raises NotAuthorized."""
        self.check(session, operation, resource, name)
        if self._may_all(session):
            return Watch(None, session, operation, resource, name, on_revoked)
        return self._watches.add(session, operation, resource, name, on_revoked)

    def allows_some(self, session: Session, operation: Operation, resource: Resource) -> bool:
        """Whether there can be a resource of that kind to which a session may do that. Refusals are not reported."""
        if self._may_all(session):
            return True
        scope = session.scope
        return (scope is None or scope.allows_some(operation, resource)) and (
            (session.user or ANONYMOUS) in self._super_users
            or self._index.allows_some(session.user or ANONYMOUS, session.host, operation, resource)
            or self._is_log_only
        )

    def visible(self, session: Session, resource: Resource, names: Iterable[str]) -> list[str]:
        """Those of some names that a session may describe: what lists show. What is left out is no refusal."""
        if self._is_log_only or self._may_all(session):
            return [name for name in names if name not in HIDDEN]
        return [name for name in names if self._decides(session, Operation.DESCRIBE, resource, name)]

    def operations(self, session: Session, resource: Resource, name: str) -> frozenset[Operation]:
        """What a session may do to a resource."""
        every = OPERATIONS[resource]
        if self._is_log_only or self._may_all(session):
            return every
        return frozenset(each for each in every if self._decides(session, each, resource, name))

    def end_user(self, user: str, reason: str, token_id: str | None = None) -> None:
        """End all sessions of a user, or those of one of its tokens."""
        self._sessions.end(user, reason, token_id)

    def subject(self, session: Session) -> Hashable:
        """What the rights of a session depend on: those with the same one have the same."""
        if session.is_own:
            return session
        if session.scope is None and not self._index.has_hosts:
            return session.user
        return session.user, session.host, session.scope

    def _may_all(self, session: Session) -> bool:
        return session.is_own or not self.is_enforced

    def _decides(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether a session may do that, for whatever reason; reports nothing."""
        if session.is_own:
            return True
        if name in HIDDEN and _is_hidden(operation, resource):
            return False
        if not self.is_enforced:
            return True
        key = self.subject(session), operation, resource, name
        known = self._decisions.get(key)
        if known is None:
            known = self._decide(session, operation, resource, name)
            if len(self._decisions) >= self._decisions_max:
                self._decisions.clear()
            self._decisions[key] = known
        return known

    def _decide(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        scope = session.scope
        if scope is not None and not is_allowed(scope.decide(operation, resource, name)):
            return False
        if (session.user or ANONYMOUS) in self._super_users:
            return True
        if not self.store.is_loaded:
            return False
        return is_allowed(self._index.decide(session.user or ANONYMOUS, session.host, operation, resource, name))

    def explain(self, user: str, host: str, operation: Operation, resource: Resource, name: str) -> Explanation:
        """What `authorization=on` decides for a user at an address, and why."""
        if name in HIDDEN and _is_hidden(operation, resource):
            return Explanation(False, f"no client may {operation.name} {name}, whatever the rules say")
        if user in self._super_users:
            return Explanation(True, f"{user} is a super user (super_users)")
        rule = self._index.decide(user, host, operation, resource, name)
        if rule is None:
            return Explanation(False, f"no rule allows {user} {operation.name} on the {resource.name.lower()} '{name}'")
        return Explanation(is_allowed(rule), f"by the rule: {rule}", rule)

    def _report(self, session: Session, operation: Operation, resource: Resource, name: str) -> None:
        self.refused[operation, resource] = self.refused.get((operation, resource), 0) + 1
        self.audit.record_refusal(session, operation, resource, name, log_only=self._is_log_only)
        due = self._refusal_log.count(asyncio.get_running_loop().time())
        if due:
            what = {"operation": operation.name, "resource": resource.name, "name": name[:256], "refusals": due}
            log.warning(
                "would be refused: authorization is log-only" if self._is_log_only else "refused",
                **{"user": session.user or ANONYMOUS, "host": session.host, "door": session.door, **what},
            )

    # --- rules --------------------------------------------------------------------------------------------------------

    def change_rules(self, removed: Iterable[Rule], added: Iterable[Rule]) -> None:
        """Have other rules in force. What was decided before holds until `notify_rules`."""
        for rule in removed:
            self._index.discard(rule)
        for rule in added:
            self._index.put(rule)

    def set_rules(self, rules: Iterable[Rule], users: ChangedUsers = None) -> None:
        """Have these rules in force and no others, which changes the rights of some users, or of any. They are not
        stored: that is for `Grants`."""
        self._index = RuleIndex(rules)
        for _ in self._notify(users):
            pass

    async def notify_rules(self, users: Iterable[str]) -> None:
        """Rules about these users, as rules name them, have changed: return once nothing is let in by those before."""
        named = set(users)
        changed = None if ANY in named else frozenset("" if user == ANONYMOUS else user for user in named)
        steps = self._notify(changed)
        for _ in steps:
            for _ in islice(steps, STEP_INVALIDATIONS):
                pass
            await asyncio.sleep(0)

    def notify_all(self) -> None:
        """The rights of any user may have changed, and the loop has nothing else to do before that counts."""
        for _ in self._notify(None):
            pass

    def _notify(self, users: ChangedUsers) -> Iterator[None]:
        self._decisions = {}
        for call in self.on_changed:
            call(users)
        for invalidate in self.invalidations:
            yield from invalidate(users)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def login(self, session: Session, identity: Identity) -> None:
        """Give a session an identity: its first, another one, or the same anew."""
        self._forget(session)
        session.identity, session.user, session.scope = identity, identity.user, identity.scope
        self._sessions.add(session, identity)
        self.audit.record(session, "login", detail=identity.how)
        if identity.expires_at is not None:
            self._expire_later(ref(session, self._discard), identity.expires_at)
        for call in self.on_login:
            call(session)

    def logout(self, session: Session) -> None:
        """The client has gone. Other sessions of its user keep what they have."""
        self._sessions.discard(session)
        self._discard(ref(session))
        session.identity, session.user, session.scope = None, "", None

    def end(self, session: Session, reason: str) -> None:
        """Take a session's identity away while its client is there: the door closes it (`Session.on_ended`)."""
        self._forget(session)
        if session.on_ended is not None:
            session.on_ended(reason)

    def _forget(self, session: Session) -> None:
        for call in self.on_authenticated:
            call(session)
        self.logout(session)

    def _discard(self, session: ref[Session]) -> None:
        """A session expires no more, or is no more."""
        handle = self._expiring.pop(session, None)
        if handle is not None:
            handle.cancel()

    def _expire_later(self, session: ref[Session], expires_at: int) -> None:
        delay = max(0, expires_at - self._runtime.clock.now_ms()) / 1000
        self._expiring[session] = asyncio.get_running_loop().call_later(delay, self._expire, session, expires_at)

    def _expire(self, session: ref[Session], expires_at: int) -> None:
        del self._expiring[session]
        found = session()
        if found is None:
            return
        if self._runtime.clock.now_ms() < expires_at:
            # The calendar was set back.
            self._expire_later(session, expires_at)
        else:
            self.end(found, "the authentication has expired")


def _is_hidden(operation: Operation, resource: Resource) -> bool:
    """Whether no client may do that to the topic with users and rules, whatever the rules say."""
    return resource is Resource.TOPIC and operation in (Operation.READ, Operation.DESCRIBE)


def _names(text: str) -> list[str]:
    """Names of users with semicolons between, as Kafka has them or without its prefix."""
    return [each.strip().removeprefix("User:") for each in text.split(";") if each.strip()]
