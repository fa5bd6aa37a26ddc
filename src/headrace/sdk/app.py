"""The application: what it reads, what it sends, and its life.

app = App("shop.orders", "headrace://127.0.0.1")

@app.subscribe("orders", scenario="task")
async def pay(order: Order, message: Message) -> None: ...

app.run()
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec
import structlog

from headrace.sdk.auditing import Audit
from headrace.sdk.batch_runner import BatchRunner
from headrace.sdk.declarations import (
    NO_PLAN,
    Select,
    Subscription,
    TopicPlan,
    check_topic,
    headers_of,
    in_lots_by,
    keys_of,
    make_tuning,
)
from headrace.sdk.handler import Handler
from headrace.sdk.live import Live, make_registration
from headrace.sdk.logs import Logs
from headrace.sdk.message import Outgoing, Receipt
from headrace.sdk.metrics import Metrics, MetricsServer
from headrace.sdk.observer import Observer, Watch
from headrace.sdk.payload import encode, field_of
from headrace.sdk.providers import enter_value
from headrace.sdk.runner import SubscriptionRunner
from headrace.sdk.scenario import KAFKA, NSQ, Options, scenario
from headrace.sdk.send_buffer import SendBuffer
from headrace.sdk.settings import Effective
from headrace.sdk.system import BOTH_WIRES, MEMORY, System, Unsuited, client_of
from headrace.sdk.transaction_buffer import TransactionBuffer, check, current_buffer
from headrace.sdk.transport import ConsumerConfig
from headrace.sdk.values import Duration, Headers, Key, SendOptions, bytes_of, seconds_of

if TYPE_CHECKING:
    from headrace.sdk.blocking import Blocking

log = structlog.get_logger("headrace.sdk")

Function = TypeVar("Function", bound=Callable[..., Any])
GRACE_SECONDS = 30.0
THREADS_MAX = 64


class App:
    def __init__(
        self,
        name: str,
        url: str = "headrace://127.0.0.1",
        *,
        owner: str = "",
        description: str = "",
        contacts: Sequence[str] = (),
        grace: Duration = GRACE_SECONDS,
        register: bool = True,
        audit: bool = False,
        log_level: str = "info",
        log_sample: float = 0.01,
        metrics: str = "",
        traces: float = 1.0,
    ) -> None:
        """At its start it registers its owner, description and contacts in the broker (docs/live.md), and follows live
        settings from there, unless `register` is false. With `audit` it counts what it sends, for `headrace pipeline
        audit` (docs/jobs.md). The rest is for observing it (docs/observing.md): the level of its log, and the share of
        successes that is logged; HOST:PORT where it answers Prometheus; the share of messages sent outside of any trace
        that begin one."""
        if not name:
            raise ValueError("an application needs a name (got ''). Its groups are called after it")
        self.name = name
        self.owner = owner
        self.description = description
        self.contacts = tuple(contacts)
        self.subscriptions: list[Subscription] = []
        self.running: list[SubscriptionRunner] = []
        """The subscriptions at work, in the order in which they were declared."""
        self.logs = Logs(name, log_level, log_sample)
        """Its level and sample may be set at any time."""
        self.metrics = Metrics(self.running, self._waiting_to_be_sent)
        """A collector for a registry of prometheus-client."""
        self._seen = Observer(self.logs, self.metrics, traces)
        self._answering = metrics
        self._metrics_server: MetricsServer | None = None
        self._system = System(url, name)
        self._seen.connect(self._system.address)
        self._grace = seconds_of("grace", grace)
        self._register = register
        self._live: Live | None = None
        self._topics: dict[str, TopicPlan] = {}
        self._factories: dict[type, Callable[[], Any]] = {}
        self._given: dict[type, Any] = {}
        self._senders: dict[str, SendBuffer] = {}
        if audit and self._system.address.kind == NSQ:
            raise Unsuited(f"what is sent to {url} cannot be audited: NSQ keeps no log to compare with")
        self._audited = audit
        self._audit: Audit | None = None
        self._life: AsyncExitStack | None = None
        self._stopping: asyncio.Event | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The system that it runs on."""
        return self._system.url

    def connect(self, url: str) -> None:
        """Run on another system, from the next start on."""
        if self._life is not None:
            raise RuntimeError(f"the application {self.name!r} runs: stop it before it is connected to {url}")
        self._system = System(url, self.name)
        self._seen.connect(self._system.address)

    @property
    def metrics_address(self) -> str:
        """Where it answers Prometheus now; empty where it does not."""
        return self._metrics_server.address if self._metrics_server is not None else ""

    # --- declaring ----------------------------------------------------------------------------------------------------

    def topic(
        self,
        name: str,
        *,
        key: str = "",
        select: Select | None = None,
        owner: str = "",
        description: str = "",
        contacts: Sequence[str] = (),
        payload: Any = None,
    ) -> None:
        """Declare how messages of a topic are sent: which field of a payload is the key, or what selects the partition;
        and what is registered of it. The type of its payloads goes into the document of `asyncapi`."""
        self._topics[name] = TopicPlan(key, select, True, owner, description, tuple(contacts), payload)

    @property
    def topics(self) -> Mapping[str, TopicPlan]:
        """The topics that were declared, or that a subscription orders by a field."""
        return MappingProxyType(self._topics)

    def asyncapi(self, *, version: str = "") -> dict[str, Any]:
        """What it reads and sends, as an AsyncAPI 3 document (docs/asyncapi.md)."""
        from headrace.sdk.asyncapi import document

        return document(self, version)

    def provide(self, kind: type, factory: Callable[[], Any]) -> None:
        """Let handlers ask for a `kind`. The factory is called once, at the start; what it gives may be a value, an
        awaitable, or a context manager of either sort, which is left at the stop."""
        self._factories[kind] = factory

    @property
    def provided(self) -> list[type]:
        """What handlers may ask for."""
        return list(self._factories)

    def subscribe(
        self,
        topic: str,
        *,
        scenario: str = "task",
        group: str = "",
        ordered_by: str = "",
        description: str = "",
        **options: Unpack[Options],
    ) -> Callable[[Function], Function]:
        """Let a function handle the messages of a topic, for the group (the application's name, if it is not given)."""
        check_topic(topic)
        if self._life is not None:
            raise RuntimeError("subscribe before the application starts")
        tuning = make_tuning(scenario, options)
        if ordered_by:
            tuning = replace(tuning, ordered=True)
            plan = self._topics.get(topic, TopicPlan())
            self._topics[topic] = replace(plan, key=plan.key or ordered_by)

        def declare(function: Function) -> Function:
            declared = Subscription(topic, group or self.name, scenario, tuning, ordered_by, function, description)
            declared.check_beside(self.subscriptions)
            self.subscriptions.append(declared)
            return function

        return declare

    # --- sending ------------------------------------------------------------------------------------------------------

    async def publish(self, topic: str, payload: Any, **options: Unpack[SendOptions]) -> Receipt:
        """Send a message; returns when it is durable, with what is known of it. Raises PublishFailed."""
        return await (await self.send(topic, payload, **options))

    async def send(
        self,
        topic: str,
        payload: Any,
        *,
        key: Key | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        delay: Duration = 0.0,
    ) -> asyncio.Future[Receipt]:
        """Put a message in the send buffer; the future is done when it is durable. Waits where the buffer is full."""
        check_topic(topic)
        seconds = seconds_of("delay", delay) if delay else 0.0
        if partition is not None and type(partition) is not int:
            raise TypeError(f"partition must be an integer (got {partition!r})")
        plan = self._topics.get(topic, NO_PLAN)
        chosen = bytes_of("key", key) if key is not None else field_of(payload, plan.key) if plan.key else None
        named = headers_of(headers) if headers else {}
        message = Outgoing(topic, encode(payload), chosen, named, partition, seconds)
        sent = self._seen.publish(topic, chosen, named)
        try:
            done = await self._put(message, payload, plan)
        except Exception as error:
            self._seen.on_sent([message], 0.0, error)
            if sent is not None:
                sent(error)
            raise
        if sent is not None:
            done.add_done_callback(lambda done: sent(None if done.cancelled() else done.exception()))
        return done

    async def publish_batch(
        self,
        topic: str,
        payloads: Sequence[Any],
        *,
        keys: Sequence[Key | None] | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Send messages to one topic together, with a key for each, and with headers that are the same for all; returns
        when all are durable. Raises PublishFailed, and then some of them may be there."""
        check_topic(topic)
        if isinstance(keys, str | bytes):
            raise TypeError(f"keys must be a list, with one for each payload (got {keys!r})")
        if keys is not None and len(keys) != len(payloads):
            raise ValueError(f"{len(payloads)} payloads have {len(keys)} keys: give one for each, or none")
        plan = self._topics.get(topic, NO_PLAN)
        if plan.select is not None or self._audited or current_buffer() is not None:
            # Something is to be done for each of them.
            chosen = keys if keys is not None else [None] * len(payloads)
            each = zip(payloads, chosen, strict=True)
            waiting = [await self.send(topic, payload, key=key, headers=headers) for payload, key in each]
            for done in waiting:
                await done
            return
        named = headers_of(headers) if headers else {}
        messages = [
            Outgoing(topic, payload if type(payload) is bytes else encode(payload), key, named)
            for payload, key in zip(payloads, keys_of(plan, payloads, keys), strict=True)
        ]
        if self._live is not None:
            self._live.sends(topic)
        sender = await self._sender(self._wire_out(0.0))
        # One context for all of them.
        sent = self._seen.publish(topic, None, named)
        error: BaseException | None = None
        try:
            await sender.send_all(messages)
        except BaseException as failure:
            error = failure
            raise
        finally:
            if sent is not None:
                sent(error)

    async def cancel(self, receipt: Receipt) -> bool:
        """Cancel a delayed message, by what `publish` gave; false where it is not waiting any more. Raises Unsuited."""
        if not receipt.timer:
            raise ValueError(f"{receipt!r} has no timer: only a message with a delay, on Headrace, can be cancelled")
        transport = await self._system.transport(self._wire_out(1.0))
        return await transport.cancel(receipt.timer)

    async def _put(self, message: Outgoing, payload: Any, plan: TopicPlan) -> asyncio.Future[Receipt]:
        wire = self._wire_out(message.delay)
        if self._live is not None:
            self._live.sends(message.topic)
        if message.partition is None and plan.select is not None:
            count = await (await self._system.transport(wire)).partitions(message.topic)
            message = msgspec.structs.replace(message, partition=plan.select(payload, message.key, count))
        if message.delay or message.partition is not None:
            self._system.check(message)
        if (kept := current_buffer()) is not None and await self._keep(kept, message):
            done: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
            done.set_result(Receipt(message.topic))
            return done
        if self._audited:
            return await self._send_counted(wire, message)
        sender = self._senders.get(wire) or await self._sender(wire)
        return await sender.send(message)

    async def _send_counted(self, wire: str, message: Outgoing) -> asyncio.Future[Receipt]:
        audit = self._audit
        if audit is None:
            audit = self._audit = Audit(self.name, self._report)
        message = audit.stamp(message)
        done = await (await self._sender(wire)).send(message)
        audit.watch(message, done)
        return done

    async def _report(self, report: Outgoing) -> None:
        await (await (await self._sender(self._wire_out(0.0))).send(report))

    async def _end_audit(self) -> None:
        audit, self._audit = self._audit, None
        if audit is not None:
            await audit.stop()

    async def _keep(self, kept: TransactionBuffer, message: Outgoing) -> bool:
        """Let it go out when the message that is being handled is done; false where that has happened meanwhile."""
        transport = await self._system.transport(KAFKA)
        # A topic is made now, because it cannot be inside of a transaction.
        check(message, await transport.partitions(message.topic))
        await transport.check(message)
        if not kept.ended:
            kept.append(message)
        return not kept.ended

    async def flush(self) -> None:
        """Wait until all that was sent is out, one way or the other."""
        flushed: set[str] = set()
        # Handlers that run meanwhile may send by another wire for the first time.
        while left := self._senders.keys() - flushed:
            for wire in left:
                await self._senders[wire].flush()
            flushed |= left

    def _waiting_to_be_sent(self) -> dict[str, int]:
        return {wire: sender.waiting for wire, sender in list(self._senders.items())}

    def _wire_out(self, delay: float) -> str:
        kind = self._system.address.kind
        if kind in BOTH_WIRES:
            # Any topic takes a delay by NSQ's wire; everything else goes in larger batches by Kafka's.
            return NSQ if delay else KAFKA
        return kind

    async def _sender(self, wire: str) -> SendBuffer:
        if wire not in self._senders:
            transport = await self._system.transport(wire)
            # Another call may have come first.
            if wire not in self._senders:
                self._senders[wire] = SendBuffer(transport.publish, self._seen.on_sent)
        return self._senders[wire]

    # --- living -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make what handlers are given, and begin to receive. Raises Unsuited before anything is touched."""
        if self._life is not None:
            raise RuntimeError(f"the application {self.name!r} runs already")
        plans = [(each, self._system.wire_for(scenario(each.scenario), each.tuning)) for each in self.subscriptions]
        handlers = [Handler(each.function, list(self._factories)) for each in self.subscriptions]
        async with AsyncExitStack() as life:
            life.callback(self._clear)
            life.push_async_callback(self._system.close)
            life.push_async_callback(self._end_audit)
            life.push_async_callback(self.flush)
            self._seen.connect(self._system.address)
            self._answer(life)
            for kind, factory in self._factories.items():
                self._given[kind] = await enter_value(life, factory())
            threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix=self.name)
            life.callback(threads.shutdown, wait=False)
            live = await self._go_live(life, plans, handlers)
            for (declared, wire), handler in zip(plans, handlers, strict=True):
                seen = Watch(self._seen, declared.topic, declared.group, handler.name)
                now = Effective(declared.tuning) if live is None else live.effective(declared.name, declared.tuning)
                in_lots = handler.batches and wire == KAFKA and in_lots_by(now.tuning)
                kind = BatchRunner if in_lots else SubscriptionRunner
                running = kind(declared.name, handler, now.tuning, declared.ordered_by, self._given, threads, seen)
                running.paused = now.paused
                transport = await self._system.transport(wire)
                credit = 0 if now.paused else now.tuning.credit
                config = ConsumerConfig(declared.topic, declared.group, now.tuning, credit)
                if in_lots:
                    config = replace(config, batch=now.tuning.batch)
                running.begin(await transport.subscribe(config, running.deliver))
                self.running.append(running)
                life.push_async_callback(running.stop, self._grace)
            if live is not None:
                live.begin([(each, sub.tuning) for each, sub in zip(self.running, self.subscriptions, strict=True)])
            self._life = life.pop_all()
        log.info("started", app=self.name, url=self._system.url, subscriptions=len(self.running))

    async def _go_live(
        self, life: AsyncExitStack, plans: Sequence[tuple[Subscription, str]], handlers: Sequence[Handler]
    ) -> Live | None:
        """Register, and read the live settings, where the system can store them."""
        address = self._system.address
        if self._register and address.kind == NSQ:
            log.info("a plain NSQ keeps no registry: nothing is registered, and settings stay", app=self.name)
        if not self._register or not address.kafka:
            return None
        topics = {name: plan for name, plan in self._topics.items() if plan.declared}
        client = client_of(address, self.name)
        registration = make_registration(
            self, topics, [(*plan, each) for plan, each in zip(plans, handlers, strict=True)]
        )
        self._live = live = Live(registration, client, self.logs)
        life.push_async_callback(live.close)
        await live.open()
        return live

    def _answer(self, life: AsyncExitStack) -> None:
        """Prometheus, where that is wanted."""
        # What runs in memory is a test, which opens no ports.
        if self._answering and self._system.address.kind != MEMORY:
            self._metrics_server = MetricsServer([self.metrics], self._answering)
            life.callback(self._metrics_server.close)

    async def stop(self) -> None:
        """Take nothing more, let handlers finish, send what is buffered, and close. A handler that calls it does not
        wait for it, because it waits for the handler."""
        if self._stopping is not None:
            self._stopping.set()
        if any(each.is_at_work_in(asyncio.current_task()) for each in self.running):
            if self._stopping is None and self._ending is None:
                self._ending = asyncio.get_running_loop().create_task(self._end())
        elif self._ending is not None:
            await asyncio.shield(self._ending)
        else:
            await self._end()

    async def _end(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            if self._live is not None:
                await self._live.stop()
            # All at once, so that the one that is waited for last has had the whole time to finish.
            for each in self.running:
                await each.drain()
            await life.aclose()
            log.info("stopped", app=self.name)

    def _clear(self) -> None:
        """Nothing is left of what was started: it may be started again."""
        self._ending = None
        self.running.clear()
        self._senders.clear()
        self._given.clear()
        self._live = None
        self._metrics_server = None

    async def __aenter__(self) -> App:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def serve(self) -> None:
        """Run until `stop`, SIGINT or SIGTERM."""
        self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._stopping.set)
        try:
            async with self:
                await self._stopping.wait()
        finally:
            self._stopping = None
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(each)

    def run(self) -> None:
        """The same, for a script."""
        asyncio.run(self.serve())

    def blocking(self) -> Blocking:
        """The application for code that is not async."""
        from headrace.sdk.blocking import Blocking

        return Blocking(self, self.name)
