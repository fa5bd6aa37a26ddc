"""What doors and the parts of the broker ask: what may a client use, and how long must it wait?

A door asks for a client's `Meter` and keeps it for as long as its admissions are valid; where no rate is limited there
is none, and nothing to ask. Clients that share a quota share its bucket. Whatever is in use is found again by all; of
what is not, the use is kept for so many clients (`quota_clients_max`) that coming anew does not begin anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from headrace.broker.quota_settings import QuotaSettings
from headrace.broker.quotas.bucket import Bucket, Throttling
from headrace.broker.quotas.connections import Connections
from headrace.broker.quotas.entities import Entity
from headrace.broker.quotas.kinds import Kind
from headrace.broker.quotas.meter import Meter
from headrace.broker.quotas.table import Limit, QuotaTable, Values
from headrace.broker.security.session import ANONYMOUS, Session

BURST_SECONDS = 1.0
# A request may ask for many partitions at once: as Kafka has it.
MUTATION_BURST_SECONDS = 11.0
# How often a read that waits looks at quotas again.
LOOK_SECONDS = 0.5

BucketKey = tuple[Kind, Entity, float, tuple[str | None, str | None]]


class Quotas:
    """The quotas of one broker."""

    def __init__(self, config: QuotaSettings) -> None:
        self.on_changed: list[Callable[[], None]] = []
        """Called after any quota has changed: who keeps a meter asks for another, and lets those go on that wait."""
        self.figures: dict[Kind, Throttling] = {kind: Throttling() for kind in Kind}
        self.table = QuotaTable(config)
        self.is_active = self.table.limits_clients
        """Whether any client may have a meter."""
        self.version = 0
        """Another one, whenever meters that are kept hold no longer."""
        self.connections = Connections(self)
        self._config = config
        self._wait_max = config.quota_throttle_max_ms / 1000
        self._meters: dict[tuple[str, str], Meter | None] = {}
        self._buckets: WeakValueDictionary[BucketKey, Bucket] = WeakValueDictionary()
        # So that the use is not forgotten while nothing else keeps the bucket.
        self._kept: dict[BucketKey, Bucket] = {}

    @property
    def tracked(self) -> int:
        """Buckets whose use is kept."""
        return len(self._kept)

    def meter(self, session: Session, client_id: str | None = None) -> Meter | None:
        """The meter of a session, or of a request in it by another client id; None: nothing is limited."""
        if not self.is_active or session.is_own:
            return None
        key = session.user or ANONYMOUS, session.client_id if client_id is None else client_id
        try:
            return self._meters[key]
        except KeyError:
            if len(self._meters) >= self._config.quota_clients_max:
                self._meters.clear()
            meter = self._meters[key] = self._make(*key)
            return meter

    def loop_time(self, session: Session) -> Bucket | None:
        """What a session's requests take of the loop, in seconds; None: that is not limited."""
        meter = self.meter(session) if self.is_active else None
        return None if meter is None else meter.request

    def take_mutate(self, session: Session, partitions: int) -> None:
        """Count partitions that a client is about to have made, added or deleted. Raises QuotaExceeded."""
        if self.is_active and (meter := self.meter(session)) is not None:
            meter.take_mutate(partitions, asyncio.get_running_loop().time())

    def take_request(self, session: Session) -> None:
        """Before a request whose time is counted by `loop_time`. Raises QuotaExceeded."""
        if self.is_active and (meter := self.meter(session)) is not None:
            meter.take_request(asyncio.get_running_loop().time())

    def take_consume(self, session: Session) -> None:
        """Before a client is sent messages through a door that refuses those that were sent too much (`consumed`).
        Raises QuotaExceeded."""
        if self.is_active and (meter := self.meter(session)) is not None:
            meter.take_consume(asyncio.get_running_loop().time())

    def consumed(self, session: Session, size: int) -> None:
        """Count bytes that a client is sent, through a door that has its next read wait (`wait_to_consume`)."""
        if self.is_active and (meter := self.meter(session)) is not None:
            meter.consumed(size, asyncio.get_running_loop().time())

    async def wait_to_consume(self, session: Session, is_gone: Callable[[], bool] = lambda: False) -> None:
        """Return once a client that has been sent much may be sent more, or is gone."""
        loop = asyncio.get_running_loop()
        while self.is_active and (meter := self.meter(session)) is not None and not is_gone():
            wait = meter.wait_to_consume(loop.time())
            if not wait:
                return
            # Quotas may change meanwhile.
            await asyncio.sleep(min(wait, LOOK_SECONDS))

    def apply(self, entity: Entity, values: Values) -> None:
        """Have these quotas in force for an entity, and no others; none: it has none any more."""
        self.table.put(entity, values)
        self.is_active = self.table.limits_clients
        self._meters.clear()
        self.version += 1
        for call in self.on_changed:
            call()

    def _make(self, user: str, client_id: str) -> Meter | None:
        limits = self.table.rates(user, client_id)
        if not limits:
            return None
        buckets = {kind: self.bucket(kind, limit) for kind, limit in limits.items()}
        return Meter(*(buckets.get(kind) for kind in (Kind.PRODUCE, Kind.CONSUME, Kind.REQUEST, Kind.MUTATE)))

    def bucket(self, kind: Kind, limit: Limit) -> Bucket:
        """The bucket of a quota for those who share it, with what they have used before."""
        key = (kind, limit.entity, limit.value, limit.sharers)
        bucket = self._buckets.get(key)
        if bucket is None:
            rate = limit.value / 100 if kind is Kind.REQUEST else limit.value
            burst = MUTATION_BURST_SECONDS if kind is Kind.MUTATE else BURST_SECONDS
            bucket = self._buckets[key] = Bucket(rate, burst, self._wait_max, self.figures[kind])
        if key not in self._kept:
            if len(self._kept) >= self._config.quota_clients_max:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = bucket
        return bucket
