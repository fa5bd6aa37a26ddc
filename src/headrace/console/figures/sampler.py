"""One reader of a broker's figures for all who watch it.

While pages watch it samples every two seconds, otherwise every ten, for the history and the alerts. A broker that does
not answer is `away`: its last figures stand, with the time since when, and it is asked again until it is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from headrace.console.client import models as m
from headrace.console.client.api import Api
from headrace.console.client.transport import ApiError, BrokerAway
from headrace.console.figures.history import FIGURES, History, Sample
from headrace.console.figures.table import Change, FigureTable, Key, number, numbers

log = structlog.get_logger("headrace.console")

WATCHED_SECONDS = 2.0
IDLE_SECONDS = 10.0
# A page renews its watch with each look; one that is closed is forgotten after so long.
WATCH_SECONDS = 20.0
RETRY_SECONDS = 1.0
# Of a full answer: 50 pages of 5,000 rows.
PAGES_MAX = 50

PUBLISHING = ("produce", "pub", "mpub", "dpub", "send_message", "send_message_v2", "publish")
"""The requests that store messages, in the words of each protocol."""

Clock = Callable[[], float]
OnSample = Callable[["Sampler"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Away:
    """The broker does not answer."""

    since: float
    reason: str


class Sampler:
    """The figures of one broker, as one user sees them."""

    def __init__(
        self,
        broker: str,
        api: Api,
        history: History | None = None,
        on_sample: OnSample | None = None,
        clock: Clock = time.time,
    ) -> None:
        self.broker = broker
        self.api = api
        self.table = FigureTable()
        self.cluster: m.Cluster | None = None
        self.overview: m.Overview | None = None
        self.away: Away | None = None
        self.refused = ""
        """Why this user gets no figures, in words."""
        self.number = 0
        """Of samples, and of changes between away and back: pages draw again when it has changed."""
        self._history = history
        self._on_sample = on_sample
        self._clock = clock
        self._watched = 0.0
        self._recorded = 0
        self._changes: dict[tuple[str, Key], Change] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"sampler {self.broker}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def watch(self) -> None:
        """A page looks."""
        now = self._clock()
        if now - self._watched > WATCH_SECONDS:
            self._wake.set()
        self._watched = now

    @property
    def is_watched(self) -> bool:
        return self._clock() - self._watched <= WATCH_SECONDS

    async def _run(self) -> None:
        while True:
            try:
                await self.sample()
            except Exception:
                log.exception("a sample failed", broker=self.broker)
            pause = RETRY_SECONDS if self.away else WATCHED_SECONDS if self.is_watched else IDLE_SECONDS
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
            except TimeoutError:
                pass

    async def sample(self) -> None:
        """Ask the broker once."""
        try:
            if self.cluster is None or self.away:
                self.cluster = await self.api.cluster()
            await self._read()
        except BrokerAway as error:
            if self.away is None:
                log.warning("the broker is away", broker=self.broker, reason=str(error))
                self.away = Away(self._clock(), str(error))
                self.number += 1
        except ApiError as error:
            self.refused, self.away = str(error), None
            self.number += 1
        else:
            if self.away is not None:
                log.info("the broker is back", broker=self.broker)
            self.away, self.refused = None, ""
            self.number += 1
            await self._record()
        if self._on_sample is not None:
            await self._on_sample(self)

    async def _read(self) -> None:
        pages: list[m.FigurePage] = []
        since = self.table.version
        for _ in range(PAGES_MAX):
            page = await self.api.figures(since)
            pages.append(page)
            since = page.version
            if not page.more:
                break
        for change in self.table.take(pages):
            self._changes[change.kind, change.key] = change
        self.overview = await self.api.overview()

    async def _record(self) -> None:
        """Give the history what changed, every ten seconds."""
        at = int(self._clock())
        at -= at % 10
        if self._history is None or at == self._recorded:
            return
        self._recorded = at
        changes, self._changes = self._changes, {}
        samples = [Sample(self.broker, "node", "", self.node_figures())]
        for kind, key in changes:
            if kind in FIGURES and kind != "node":
                row = self.table.rows(kind).get(key)
                if row is not None:
                    samples.append(Sample(self.broker, kind, "/".join(key), numbers(row)))
        await self._history.record(at, samples)

    def node_figures(self) -> dict[str, float]:
        """The figures of the broker as a whole."""
        table = self.table
        found = numbers(table.node)
        found["p99_ms"] = self.latency_ms()
        return found

    def latency_ms(self) -> float:
        """The slowest p99 of the requests that publish, in the last minute."""
        rows = [row for (_, api), row in self.table.rows("apis").items() if api.lower() in PUBLISHING]
        return max((number(row, "p99_ms") for row in rows), default=0.0)
