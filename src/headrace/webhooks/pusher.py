"""Pushing: an application of the framework whose handlers send messages to URLs.

Each URL is a subscription of its own, so retries, dead letters and redrive are those of its queue. What is added here
is a judgement on attempts. The queue counts deliveries, but a message is given up only for its own sake: while the
endpoint is out of reach, or fails for all messages, they wait (`breaker.py`), however many deliveries that costs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import structlog

from headrace.sdk import Ack, App, Message, Reject, Retry, Unsuited
from headrace.sdk.background import BackgroundTasks
from headrace.sdk.metrics import MetricsServer
from headrace.sdk.nsq import NsqTransport
from headrace.sdk.outcome import Outcome
from headrace.sdk.runner import SubscriptionRunner
from headrace.sdk.system import HEADRACE, System
from headrace.webhooks.breaker import Breaker, Entry, Failure
from headrace.webhooks.endpoint import Answer, Endpoint, Verdict
from headrace.webhooks.event import id_of, request_of
from headrace.webhooks.figures import Collector, Figures
from headrace.webhooks.hook import Hook
from headrace.webhooks.signature import sign_with_keys
from headrace.webhooks.targets import PublicResolver

log = structlog.get_logger("headrace.webhooks")

# A message waits in hand for so long before it goes back to its queue.
HOLD_SECONDS = 300.0
# Of a message that an endpoint which is gone for good was to get.
GONE_SECONDS = 60.0
# The visibility timeout of a message; it is extended while the message waits for its endpoint.
LEASE_SECONDS = 60.0
# Between the end of a message's patience here and the queue's.
SPARE_SECONDS = 60.0
GRACE_SECONDS = 30.0
# The client id by which queues are created.
PREPARING = "headrace-subscribe"


class Pusher:
    """Pushes to one URL."""

    def __init__(self, hook: Hook, *, in_place: bool, hold: float = HOLD_SECONDS) -> None:
        """`in_place`: the system does not count the attempts, because messages are tried again where they stand."""
        self.hook = hook
        self.breaker = Breaker()
        self.endpoint = Endpoint(
            hook.url, hook.timeout, hook.workers, hook.tls(), None if hook.allow_private else PublicResolver()
        )
        self.figures = Figures(hook.group, urlsplit(hook.url).hostname or "")
        self.gone = False
        self.stopped = False
        self.on_gone: Callable[[], None] = lambda: None
        self._in_place = in_place
        self._hold = hold
        self._tried: dict[str, int] = {}
        self._batches = Batches(hook.batch, hook.batch_wait, self._send) if hook.batch else None
        self._signs_badly = False
        self._log = log.bind(group=hook.group, url=self.endpoint.shown)

    async def push(self, message: Message) -> Outcome:
        """The handler."""
        if self._batches is not None:
            return await self._batches.outcome(message)
        [outcome] = await self._send([message])
        return outcome

    def stop(self) -> None:
        """Let no message wait here any more."""
        self.stopped = True
        self.breaker.stop()

    async def _send(self, messages: Sequence[Message]) -> list[Outcome]:
        """What becomes of each message of a request."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._hold
        while True:
            entry = await self.breaker.enter(max(end - loop.time(), 0.0))
            if entry is Entry.NO:
                after = 0.0 if self.stopped else max(self.breaker.remaining, 1.0)
                return [Retry("the endpoint takes nothing now", after=after) for _ in messages]
            try:
                answer = await self._post(messages)
            except BaseException:
                self.breaker.abandon(entry)
                raise
            self._learn(answer, messages, entry)
            if answer.verdict is not Verdict.DOWN or not self.breaker.open:
                break
        if answer.verdict is Verdict.REFUSED and len(messages) > 1:
            # One of them will do; the others must not die with it.
            middle = len(messages) // 2
            return await self._send(messages[:middle]) + await self._send(messages[middle:])
        return [self._outcome(answer, each) for each in messages]

    async def _post(self, messages: Sequence[Message]) -> Answer:
        request = request_of(messages, self.hook.form, bool(self.hook.batch))
        own = {name.lower() for name in self.hook.headers}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in own}
        headers |= {**self.hook.headers, "webhook-id": request.id}
        keys = self._keys()
        if keys:
            headers |= sign_with_keys(request.id, int(time.time()), request.body, keys)
        answer = await self.endpoint.post(headers, request.body)
        self.figures.count_answer(answer, len(messages))
        return answer

    def _keys(self) -> list[bytes]:
        secrets = self.hook.secrets
        if secrets is None:
            return []
        try:
            keys = secrets.keys()
        except (OSError, ValueError) as error:
            if not self._signs_badly:
                self._log.error("the secrets cannot be read again: the last ones sign on", error=str(error))
            self._signs_badly = True
            return secrets.last()
        self._signs_badly = False
        return keys

    def _learn(self, answer: Answer, messages: Sequence[Message], entry: Entry) -> None:
        """Update the breaker by an answer."""
        if answer.verdict in (Verdict.TAKEN, Verdict.REFUSED):
            since = self.breaker.open_since
            if self.breaker.record_success() and since is not None:
                seconds = round(asyncio.get_running_loop().time() - since, 1)
                self._log.info("the endpoint takes messages again", seconds=seconds)
        elif answer.verdict is Verdict.GONE:
            self.breaker.abandon(entry)
            if not self.gone:
                self.gone = True
                self._log.error("the endpoint is gone (410): nothing more is sent to it", reason=answer.reason)
                self.on_gone()
        else:
            failure = Failure(id_of(messages[0]), answer.verdict is Verdict.DOWN, answer.pause)
            if self.breaker.record_failure(failure, entry):
                self._log.warning("the endpoint takes nothing: messages wait", reason=answer.reason)
        self.figures.waits = self.breaker.open

    def _outcome(self, answer: Answer, message: Message) -> Outcome:
        if answer.verdict is Verdict.TAKEN:
            self._tried.pop(id_of(message), None)
            return Ack()
        if answer.verdict is Verdict.REFUSED:
            self._tried.pop(id_of(message), None)
            return Reject(answer.reason)
        if answer.verdict is Verdict.GONE:
            return Retry(answer.reason, after=GONE_SECONDS)
        attempt = self._attempt(message)
        spent = 0 < self.hook.attempts <= attempt
        # No message is given up because the endpoint is down.
        if answer.verdict is Verdict.FAILING and spent and not self.breaker.open:
            self._tried.pop(id_of(message), None)
            return Reject(f"tried {attempt} times: {answer.reason}")
        return Retry(answer.reason)

    def _attempt(self, message: Message) -> int:
        if not self._in_place:
            return message.attempt
        id = id_of(message)
        self._tried[id] = self._tried.get(id, 0) + 1
        return self._tried[id]


class Batches:
    """Gathers messages that come one by one into requests, and tells each what became of it."""

    def __init__(self, size: int, wait: float, send: Callable[[Sequence[Message]], Awaitable[list[Outcome]]]) -> None:
        self._size = size
        self._wait = wait
        self._send = send
        self._line: list[tuple[Message, asyncio.Future[Outcome]]] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._requests = BackgroundTasks()

    async def outcome(self, message: Message) -> Outcome:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome] = loop.create_future()
        self._line.append((message, done))
        if len(self._line) >= self._size:
            self._go()
        elif self._alarm is None:
            self._alarm = loop.call_later(self._wait, self._go)
        return await done

    def _go(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        # A message whose caller does not wait any more was taken back.
        batch = [each for each in self._line if not each[1].done()]
        self._line = []
        if batch:
            self._requests.start(self._run(batch))

    async def _run(self, batch: list[tuple[Message, asyncio.Future[Outcome]]]) -> None:
        try:
            outcomes = await self._send([message for message, _ in batch])
        except Exception as error:
            for _, done in batch:
                if not done.done():
                    done.set_exception(error)
            return
        for (_, done), outcome in zip(batch, outcomes, strict=True):
            if not done.done():
                done.set_result(outcome)


class Webhooks:
    """All URLs of a process."""

    def __init__(
        self,
        topic: str,
        hooks: Sequence[Hook],
        url: str,
        *,
        name: str = "",
        metrics: str = "",
        log_level: str = "info",
        grace: float = GRACE_SECONDS,
        hold: float = HOLD_SECONDS,
    ) -> None:
        """`name`: of the application; empty: after the topic and the first queue. Raises ValueError and ConfigError."""
        groups = [hook.group for hook in hooks]
        for group in groups:
            if groups.count(group) > 1:
                raise ValueError(f"two URLs have the queue {group!r}: each needs its own")
        self.topic = topic
        self.app = App(
            name or f"webhooks.{topic}.{groups[0]}",
            url,
            description=f"pushes {topic}",
            grace=grace,
            log_level=log_level,
        )
        kafka = urlsplit(url).scheme == "kafka"
        self.pushers = [Pusher(hook, in_place=kafka and hook.ordered, hold=hold) for hook in hooks]
        self.metrics_address = ""
        """Where Prometheus is answered; empty where it is not."""
        self._metrics = metrics
        self._stop = asyncio.Event()
        for pusher in self.pushers:
            self._declare(pusher, hold)

    def _declare(self, pusher: Pusher, hold: float) -> None:
        hook = pusher.hook
        self.app.subscribe(
            self.topic,
            scenario="ordered" if hook.ordered else "task",
            group=hook.group,
            description=f"POST {pusher.endpoint.shown}",
            workers=hook.messages,
            credit=2 * hook.messages,
            rate=hook.rate,
            timeout=LEASE_SECONDS,
            # A message that waits in hand, or is being sent, must not be redelivered meanwhile.
            timeout_max=hold + 2 * hook.timeout + SPARE_SECONDS,
            # Given up here, and not by the queue, which cannot know why a delivery failed.
            attempts=0,
            ladder=hook.ladder,
            replay=not hook.from_now,
        )(pusher.push)

    @property
    def gone(self) -> bool:
        """Every endpoint has answered 410 Gone."""
        return all(pusher.gone for pusher in self.pushers)

    def stop(self) -> None:
        """Take nothing more, and end."""
        self._stop.set()

    async def run(self, started: Callable[[], None] = lambda: None) -> None:
        """Push until `stop`, or until no endpoint is left. Raises what App.start does."""
        for pusher in self.pushers:
            if pusher.hook.filter is not None:
                await prepare(self.app.url, self.topic, pusher.hook)
        async with AsyncExitStack() as life:
            for pusher in self.pushers:
                await life.enter_async_context(pusher.endpoint)
            if self._metrics:
                collector = Collector([pusher.figures for pusher in self.pushers])
                server = MetricsServer([self.app.metrics, collector], self._metrics)
                self.metrics_address = server.address
                life.callback(server.close)
            await life.enter_async_context(self.app)
            for pusher, running in zip(self.pushers, self.app.running, strict=True):
                pusher.on_gone = lambda running=running: self._leave(running)  # type: ignore[misc]
                if pusher.gone:
                    self._leave(running)
            started()
            await self._stop.wait()
            # Those that wait for an endpoint give their messages back, so that others can have them.
            for pusher in self.pushers:
                pusher.stop()

    def _leave(self, running: SubscriptionRunner) -> None:
        running.change(running.tuning, paused=True)
        if self.gone:
            self.stop()


async def prepare(url: str, topic: str, hook: Hook) -> None:
    """Create the queue of a hook with its filter before its consumer comes, or set the filter of the queue that exists.
    Raises Unsuited and PublishFailed."""
    system = System(url, PREPARING)
    if system.address.kind != HEADRACE:
        raise Unsuited(f"{url} has no queues that filter: leave the filter out, or use a headrace:// broker")
    if missing := system.nsq_missing():
        raise Unsuited(f"a queue needs the NSQ door: {missing}")
    transport = NsqTransport(system.address, PREPARING)
    await transport.open()
    try:
        await transport.make_queue(topic, hook.group, {"filter": hook.filter}, replay=not hook.from_now)
    finally:
        await transport.close()
