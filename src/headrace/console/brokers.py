"""The brokers that a console watches, by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.console.alerts.watch import AlertWatch
from headrace.console.client.api import Api
from headrace.console.client.transport import NOBODY, Credentials, Transport
from headrace.console.figures.history import History, Point
from headrace.console.figures.sampler import Sampler
from headrace.console.sessions import Session

SAMPLERS_MAX = 50
"""Of one broker: one for each user that watches it, beside the console's own."""


@dataclass(frozen=True, slots=True)
class RecentHistory:
    """The history, until now."""

    store: History

    async def read(self, broker: str, kind: str, name: str, figure: str, seconds: int) -> list[Point]:
        # The last row is that of the last ten seconds.
        now = int(time.time()) - 10
        return await self.store.read(broker, kind, name, figure, now - seconds, now)


@dataclass(slots=True)
class BrokerEntry:
    """A broker."""

    name: str
    transport: Transport
    sampler: Sampler
    """As the console itself, for the history and the alerts; and for all who watch where nobody logs in."""
    alerts: AlertWatch
    history: RecentHistory
    has_logins: bool = False
    """The broker knows users: each person calls it as themselves."""
    _own: dict[str, Sampler] = field(default_factory=dict)

    def api(self, session: Session) -> Api:
        """The broker as the person who is logged in."""
        return Api(self.transport, session.credentials if self.has_logins else self.sampler.api.credentials)

    def sampler_of(self, session: Session) -> Sampler:
        """The figures as this person may see them: one sampler for each user, however many pages."""
        if not self.has_logins:
            return self.sampler
        found = self._own.get(session.user)
        if found is None or found.api.credentials != session.credentials:
            self._retire()
            found = Sampler(self.name, self.api(session))
            found.watch()
            found.start()
            self._own[session.user] = found
        return found

    def shows_all(self, session: Session) -> bool:
        """Whether a person may see what the console itself has seen: its alerts, and the history of the whole broker.
        Where people log in, those whom the broker gives its figures."""
        if not self.has_logins:
            return True
        own = self._own.get(session.user)
        return own is not None and own.overview is not None and not own.refused

    def _retire(self) -> None:
        """End what nobody watches any more, and the oldest beyond the bound."""
        idle = [user for user, each in self._own.items() if not each.is_watched]
        over = list(self._own)[: max(len(self._own) - SAMPLERS_MAX + 1, 0)]
        for user in {*idle, *over}:
            task = asyncio.ensure_future(self._own.pop(user).stop())
            _ending.add(task)
            task.add_done_callback(_ending.discard)

    async def close(self) -> None:
        await self.sampler.stop()
        await self.alerts.close()
        for each in self._own.values():
            await each.stop()
        await self.transport.close()


_ending: set[asyncio.Future[None]] = set()


def parse_credentials(environment: Mapping[str, str]) -> Credentials:
    """Who the console itself is to the brokers: HEADRACE_CONSOLE_TOKEN, or _USER and _PASSWORD."""
    token = environment.get("HEADRACE_CONSOLE_TOKEN", "")
    user = environment.get("HEADRACE_CONSOLE_USER", "")
    if not token and not user:
        return NOBODY
    return Credentials(user, environment.get("HEADRACE_CONSOLE_PASSWORD", ""), token)
