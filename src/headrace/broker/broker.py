"""The broker: what a message queue means, whichever door asked.

It holds the parts that give the log its meaning (topics, groups, producer ids, metrics) and starts and stops them.
It neither starts the log below it nor the doors above it: `headrace.server` composes the three.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from headrace.broker.archived import Archived
from headrace.broker.audit import Audit
from headrace.broker.audit_reader import AuditReader
from headrace.broker.browse import Browser
from headrace.broker.clients import Clients
from headrace.broker.console import Apps, Documents, Lease, Registrations
from headrace.broker.consumed import Consumed
from headrace.broker.deduplication import Deduplication
from headrace.broker.deliveries import Deliveries
from headrace.broker.dynamic_config import DynamicConfig
from headrace.broker.figures import Figures
from headrace.broker.groups import GroupCoordinator
from headrace.broker.membership import Alone, Membership
from headrace.broker.metrics import Metrics
from headrace.broker.overflow import Overflow
from headrace.broker.prepared import PreparedMessages
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.publish import Publisher
from headrace.broker.queues import Queues
from headrace.broker.quotas import Quotas
from headrace.broker.quotas.book import QuotaBook
from headrace.broker.quotas.owners import own_queues, own_topics
from headrace.broker.redrive import Redrive
from headrace.broker.rocketmq import RocketMqState
from headrace.broker.rocketmq.positions import GroupPositions
from headrace.broker.search.search import Search
from headrace.broker.security import Security
from headrace.broker.settings import BrokerSettings
from headrace.broker.slow_readers import SlowReaders
from headrace.broker.timer import Timer
from headrace.broker.topics import Topics
from headrace.broker.transactions import TransactionCoordinator
from headrace.broker.unpacking import Unpacker
from headrace.errors import HeadraceError
from headrace.log.local import LocalLog
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.broker")

# For each part of a broker that is abandoned.
ABANDON_SECONDS = 2.0


class Broker:
    """One node."""

    def __init__(
        self,
        runtime: Runtime,
        log: LocalLog,
        config: BrokerSettings,
        membership: Membership | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Without a `membership` it runs alone. `metrics` are those of the node's brokers before this one."""
        self.runtime = runtime
        self.log = log
        self.config = config
        self.node_id = config.node_id
        self.membership: Membership = membership or Alone(config.node_id)
        self.topics = Topics(log, config)
        self.audit = Audit(runtime, self.topics, config)
        self.topics.on_managed.append(self.audit.record_topic)
        self.security = Security(runtime, log, self.topics, self.audit, config)
        self.quotas = Quotas(config)
        self.quota_book = QuotaBook(self.security, self.quotas, config)
        self.dynamic = DynamicConfig(runtime, log, self.topics, config)
        self.dynamic.on_altered.append(self.audit.record_settings)
        self.unpacking = Unpacker(runtime.offload, config.decompressed_max_bytes)
        self.audit_reader = AuditReader(runtime, self.topics, self.unpacking)
        self.groups = GroupCoordinator(runtime, log, self.topics, config)
        self.groups.consumers.own_settings = self.dynamic.of_group
        self.deliveries = Deliveries(runtime, self.topics, config)
        self.queues = Queues(runtime, log, self.topics, self.deliveries, config, self.unpacking, self.security)
        self.queues.on_managed.append(self.audit.record_queue)
        store = self.security.store
        self._owners = (
            own_topics(store, self.quotas, self.topics, log),
            own_queues(store, self.quotas, self.queues, log),
        )
        self.redrive = Redrive(self)
        self.timer = Timer(runtime, log, self.topics, config)
        self.producer_ids = ProducerIds(log)
        self.transactions = TransactionCoordinator(runtime, log, self.topics, self.groups, self.producer_ids, config)
        self.metrics = metrics or Metrics()
        self.deduplication = Deduplication(runtime, log, self.topics, self.timer, self.metrics, config)
        self.overflow = Overflow(log, self.topics, self.groups, self.metrics, config, self.queues.lag)
        self.publisher = Publisher(
            *(runtime, log, self.topics, self.timer, self.deduplication, self.overflow, self.transactions),
            *(self.metrics, self.security, self.quotas),
        )
        self.quotas.on_changed.append(self.publisher.admissions.clear)
        self.security.on_changed.append(self.groups.consumers.on_rights_changed)
        self.prepared = PreparedMessages(runtime, log, self.topics, self.publisher, config)
        self.rocketmq = RocketMqState(runtime, log, self.topics, config)
        self.positions = GroupPositions(self.groups.rocketmq)
        self.browser = Browser(runtime, self.unpacking)
        self.search = Search(runtime, log, self.unpacking, config)
        self.slow_readers = SlowReaders(log, self.groups, self.queues, self.metrics, config)
        self.archived = Archived(runtime, log, self.groups, self.slow_readers, config)
        self.consumed = Consumed(log, self.queues, self.slow_readers, config)
        self.figures = Figures(self)
        self.clients = Clients()
        self.documents = Documents(runtime, log, self.topics, config)
        self.alert_lease = Lease()
        self.apps = Apps(runtime, log, self.unpacking)
        self.registrations = Registrations(runtime, self.documents, config.registration, self.security.notify_all)
        if self.registrations.is_asked:
            self.security.is_registered = self.registrations.allows
            self.security.knows_registrations = lambda: self.registrations.is_known
        # In the order in which they start.
        self._parts = (
            *(self.queues, self.groups, self.transactions, self.timer, self.deduplication, self.prepared),
            *(self.slow_readers, self.archived, self.consumed),
        )

    @property
    def cluster_id(self) -> str:
        """Known once the log has started."""
        return self.log.cluster_id

    async def start(self) -> None:
        """Start the parts; the log must have started."""
        for part in (self.dynamic, self.audit, self.security, self.topics, *self._parts, self.registrations):
            await part.start()

    async def follow(self) -> None:
        """What a broker that is not started does for the doors of a node that follows."""
        await self.security.follow()

    async def end_waits(self) -> None:
        """First of all at a stop: answer those that wait for others, or the doors would wait for them. These are joins
        that wait for other members, polls for prepared messages, and producers that wait for readers."""
        await self.overflow.stop()
        await self.positions.stop()
        await self.prepared.end_polls()
        await self.groups.stop()

    async def flush_state(self, seal: Callable[[], None]) -> None:
        """Write down what is in memory alone, and call `seal` behind the last append of that, before anything else
        happens. Returns once it is durable."""
        await self.queues.flush()
        await self.deliveries.flush()
        # What has changed meanwhile is little.
        loop = asyncio.get_running_loop()
        rest = loop.create_task(self.queues.flush())
        loop.call_soon(seal)
        await rest

    async def abandon(self) -> None:
        """Stop without writing: this node does not lead any more, and the log refuses every append. What is not
        committed is void, and what is committed is the next leader's."""
        self.log.detach()
        for part in self._ending():
            try:
                async with asyncio.timeout(ABANDON_SECONDS):
                    await part.stop()
            except (HeadraceError, OSError, TimeoutError) as error:
                logger.warning("a part of the broker did not end cleanly", part=type(part).__name__, error=repr(error))

    def _ending(self) -> tuple[Any, ...]:
        """The parts, in the order in which they end."""
        first = (self.registrations, self.figures, self.overflow)
        return (*first, *reversed(self._parts), self.deliveries, self.security, self.audit)

    async def stop(self) -> None:
        """Stop the parts; the log may stop after this."""
        for owners in self._owners:
            await owners.settle()
        for part in self._ending():
            await part.stop()
