"""A subscription at work: what has come waits for workers, which run the handler and settle.

With order by key, messages of a key that is being handled wait behind it. Where the transport itself holds a key back
until it is settled (Headrace's queues), that line is empty; where it does not (Kafka's groups), a message that fails is
tried again in its place, so that nothing overtakes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from itertools import compress
from typing import Any, cast

import structlog

from headrace.sdk.handler import Handler
from headrace.sdk.leases import Leases
from headrace.sdk.message import Message, Outgoing, handling
from headrace.sdk.observer import Watch, Work, clock
from headrace.sdk.outcome import Ack, Outcome, Reject, Retry
from headrace.sdk.payload import BadPayload, field_of
from headrace.sdk.scenario import Tuning
from headrace.sdk.transaction_buffer import buffer_sends
from headrace.sdk.transport import Delivery, Receiver, UnsupportedPublish

log = structlog.get_logger("headrace.sdk")

# A worker runs so long before it yields to the loop.
TURN_SECONDS = 0.01


class SubscriptionRunner:
    def __init__(
        self,
        name: str,
        handler: Handler,
        tuning: Tuning,
        ordered_by: str,
        given: Mapping[type, Any],
        threads: Executor,
        seen: Watch,
    ) -> None:
        self.name = name
        self.tuning = tuning
        self.paused = False
        """Nothing is taken, and no handler is called; what was fetched before waits."""
        self.handled = 0
        """Messages that handlers have finished, whatever the outcome."""
        self._seen = seen
        self._handler = handler
        self._ordered_by = ordered_by
        self._given = given
        self._threads = threads
        self._receiver: Receiver | None = None
        # Deliveries; in a batch runner, batches of them.
        self._ready: deque[Any] = deque()
        # Key -> what waits behind the message of it that is being handled.
        self._lines: dict[bytes, deque[Delivery]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._busy = 0
        # Set when nothing waits any more.
        self._through = asyncio.Event()
        self._next = 0.0
        # Messages that workers have.
        self._leases = Leases(name)
        # Set, and another one put in its place, when there are other values.
        self._changed = asyncio.Event()
        self._draining = False
        self._retries = (tuning.attempts, tuning.ladder)
        self._keeping: asyncio.Task[None] | None = None
        self._log = log.bind(subscription=name)

    def begin(self, receiver: Receiver) -> None:
        """Set the workers to work on what the receiver delivers."""
        self._receiver = receiver
        # Another consumer has begun with it: what waits here would be done twice, and after what followed it.
        receiver.on_revoked = self._keep
        receiver.backlog = lambda: self.ahead
        receiver.on_late = self._seen.on_late
        if self.tuning.timeout:
            self._keeping = asyncio.get_running_loop().create_task(self._keep_all())
        self._start_workers()

    def change(self, tuning: Tuning, *, paused: bool = False) -> None:
        """Other values from now on; what is being handled is not disturbed. `match_retries` does the rest."""
        resumed = self.paused and not paused
        self.tuning, self.paused = tuning, paused
        if self._receiver is not None and not self._draining:
            self._receiver.limit(0 if paused else tuning.credit)
        # Workers that wait for the rate wait for the old one.
        self._next = 0.0
        self._look_again()
        if resumed:
            self._keep()
        self._start_workers()

    async def match_retries(self) -> None:
        """Let the system know of other retries, where it is the one to keep to them. Raises Unsuited or OSError."""
        wanted = (self.tuning.attempts, self.tuning.ladder)
        if wanted != self._retries and self._receiver is not None:
            await self._receiver.set_retries(self.tuning)
            self._retries = wanted

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Messages have come."""
        for delivery in deliveries:
            if self.tuning.at_most_once:
                delivery.ack()
            elif self._leases.takes(delivery):
                continue
            key = self._key(delivery) if self.tuning.ordered else None
            if key is None:
                self._ready.append(delivery)
            elif key in self._lines:
                self._lines[key].append(delivery)
            else:
                self._lines[key] = deque()
                self._ready.append(delivery)
        self._seen.on_received(len(deliveries))
        if self.tuning.at_most_once:
            self._seen.on_settled(deliveries, Ack(), 0.0)
        self._wake(len(deliveries))

    @property
    def ahead(self) -> int:
        """Messages that a free worker could take."""
        return len(self._ready)

    @property
    def waiting(self) -> int:
        """Messages that were delivered and are not settled."""
        # A copy of the lines, because metrics are read in another thread.
        return len(self._ready) + sum(map(len, list(self._lines.values()))) + self._busy

    @property
    def workers(self) -> int:
        """Handlers that may run at a time."""
        return len(self._workers)

    @property
    def busy(self) -> int:
        """Messages that are being handled, or gathered for it."""
        return self._busy

    def is_at_work_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether that is where a handler runs."""
        return task in self._workers

    async def drain(self) -> None:
        """Take nothing more."""
        self._draining = True
        if self._receiver is not None:
            await self._receiver.drain()

    async def stop(self, grace: float) -> None:
        """Take nothing more, let the handlers finish what has come for so many seconds, and close."""
        receiver = self._receiver
        await self.drain()
        if self.paused:
            # It will not be handled here.
            self._ready.clear()
            self._lines.clear()
            self._look_again()
        if self.waiting:
            self._through.clear()
            try:
                await asyncio.wait_for(self._through.wait(), grace)
            except TimeoutError:
                pass
        if self.waiting:
            self._log.warning("stopped before everything was handled; others will get it", messages=self.waiting)
        tasks = [*self._workers, *([self._keeping] if self._keeping is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if receiver is not None:
            await receiver.close()

    # --- workers ---

    def _start_workers(self) -> None:
        """Start the workers that are missing. One too many ends when it has nothing to do."""
        while len(self._workers) < self.tuning.workers:
            worker = asyncio.get_running_loop().create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        self._wake(len(self._workers))

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def _work(self) -> None:
        rested = clock()
        while True:
            if len(self._workers) > self.tuning.workers:
                # Out of the count at once, or all that look now would take themselves for the one too many.
                self._workers.discard(cast("asyncio.Task[None]", asyncio.current_task()))
                return
            if self.paused or not self._ready:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
                continue
            began = clock()
            if began - rested > TURN_SECONDS:
                # Handlers that never wait would hold up everything else.
                await asyncio.sleep(0)
                rested = clock()
                continue
            taken = await self._take()
            if self.paused:
                self._put_back(taken)
                continue
            if not taken:
                continue
            self._seen.on_taken(taken, clock() - began)
            try:
                await self._handle(taken)
            except Exception as error:
                self._unhandled(taken, error)
            finally:
                self._busy -= len(taken)
                self._come_again(self._leases.end(taken))
                self._next_of(taken)
                if not self._ready and not self.waiting:
                    self._through.set()
            # Or a batch would stay in memory until there is another.
            del taken

    def _unhandled(self, taken: Sequence[Delivery], error: Exception) -> None:
        """Something failed that is not the handler: that must cost neither a worker nor a message."""
        self._log.error("messages could not be handled", messages=len(taken), exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        for delivery in self._leases.settle(taken):
            if self._in_place:
                delivery.reject(reason)
            else:
                delivery.retry(None, reason)

    async def _take(self) -> Sequence[Delivery]:
        """What one call of the handler is given, when the rate lets it through."""
        taken = await self._gather()
        if taken and self.tuning.rate > 0:
            await self._keep_rate(len(taken))
            taken = self._still_leased(taken)
        return taken

    def _still_leased(self, taken: Sequence[Delivery]) -> Sequence[Delivery]:
        """Without those that became another consumer's while they waited for the rate."""
        if not isinstance(taken, list):
            return taken
        lost = [each for each in taken if self._leases.is_lost(each) or not each.touch()]
        if not lost:
            return taken
        self._busy -= len(lost)
        self._leases.end(lost)
        self._next_of(lost)
        return [each for each in taken if each not in lost]

    async def _gather(self) -> Sequence[Delivery]:
        if not self._handler.batches:
            taken = self._pop(1)
            self._check_room()
            return taken
        wanted = self.tuning.batch
        taken = []
        loop = asyncio.get_running_loop()
        end = loop.time() + self.tuning.batch_wait
        while True:
            taken += self._pop(wanted - len(taken))
            self._check_room()
            if len(taken) == wanted or (taken and loop.time() >= end):
                return taken
            await self._more(end)

    def _pop(self, most: int) -> list[Delivery]:
        """The next messages, without those that a worker has already."""
        taken: list[Delivery] = []
        while self._ready and len(taken) < most:
            one = self._ready.popleft()
            if self.tuning.at_most_once or self._leases.take(one):
                taken.append(one)
        self._busy += len(taken)
        return taken

    async def _more(self, end: float) -> None:
        """Wait for more, or until then."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._idle.append(waiter)
        try:
            await asyncio.wait_for(waiter, max(end - loop.time(), 0.0))
        except TimeoutError:
            pass

    def _check_room(self) -> None:
        if self._receiver is not None:
            self._receiver.check_room()

    async def _keep_rate(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        while self.tuning.rate > 0 and not self.paused:
            now = loop.time()
            due = max(self._next, now)
            self._next = due + count / self.tuning.rate
            if due <= now:
                return
            try:
                async with asyncio.timeout_at(due):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _put_back(self, taken: Sequence[Delivery]) -> None:
        """There was a pause before the handler was called."""
        self._busy -= len(taken)
        self._come_again(self._leases.end(taken))
        if not self._draining:
            self._return(taken)
        elif not self.waiting:
            self._through.set()

    def _return(self, taken: Sequence[Delivery]) -> None:
        self._ready.extendleft(reversed(taken))

    def _look_again(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _may_go_on(self) -> bool:
        """Wait for the end of a pause; false where the application stops before that."""
        while self.paused and not self._draining:
            await self._changed.wait()
        return not self.paused

    async def _keep_all(self) -> None:
        """The visibility timeout is for a consumer that has gone, and neither for what waits here nor for handlers."""
        while True:
            await asyncio.sleep(self.tuning.timeout / 3)
            self._leases.keep()
            self._keep()

    def _keep(self) -> None:
        if self.tuning.at_most_once:
            return
        for key, line in self._lines.items():
            kept = [each for each in line if each.touch()]
            if len(kept) < len(line):
                self._lines[key] = deque(kept)
        while gone := [each for each in self._ready if not self._touch(each)]:
            # Another consumer has it, or it comes again.
            lost = set(map(id, gone))
            self._ready = deque(each for each in self._ready if id(each) not in lost)
            self._next_of(gone)

    def _touch(self, waiting: Any) -> bool:
        touched: bool = waiting.touch()
        return touched

    def _come_again(self, deliveries: Sequence[Delivery]) -> None:
        """Messages were delivered anew while a worker had them, which did not settle them."""
        for delivery in deliveries:
            key = self._key(delivery) if self.tuning.ordered else None
            if key is not None and key in self._lines:
                self._lines[key].appendleft(delivery)
            else:
                self._ready.append(delivery)
                self._wake(1)

    def _next_of(self, taken: Sequence[Delivery]) -> None:
        """The next message of each key has its turn."""
        if not self._lines:
            return
        for delivery in taken:
            key = self._key(delivery)
            line = self._lines.get(key) if key is not None else None
            if line:
                self._ready.append(line.popleft())
                self._wake(1)
            elif key is not None:
                self._lines.pop(key, None)

    def _key(self, delivery: Delivery) -> bytes | None:
        message = delivery.message
        if message.key is not None or not self._ordered_by:
            return message.key
        return field_of(message.value, self._ordered_by)

    # --- handling ---

    async def _handle(self, taken: Sequence[Delivery]) -> None:
        good: list[Delivery] = []
        payloads: list[Any] = []
        for delivery in taken:
            try:
                payloads.append(self._handler.decode(delivery.message))
                good.append(delivery)
            except BadPayload as error:
                self._seen.on_rejected(delivery.message, str(error))
                self._settle([delivery], Reject(str(error)))
        if not good:
            return
        outcome, sent = await self._try(good, payloads, 1)
        tried = 1
        while isinstance(outcome, Retry) and self._in_place:
            if self.tuning.attempts and tried >= self.tuning.attempts:
                outcome = Reject(f"tried {tried} times: {outcome}")
                break
            await asyncio.sleep(self._delay(tried, outcome))
            if not await self._may_go_on():
                return
            good, payloads = _still_here(good, payloads)
            if not good:
                return
            tried += 1
            outcome, sent = await self._try(good, payloads, tried)
        self._settle(good, outcome, sent)

    async def _try(self, good: list[Delivery], payloads: list[Any], tried: int) -> tuple[Outcome, Sequence[Outgoing]]:
        """The outcome of the handler, and what it sent if that goes with the outcome."""
        messages = [delivery.message for delivery in good]
        self._leases.begin(good, self.tuning.timeout_max)
        if not self.tuning.exactly_once:
            return await self._call(messages, payloads, tried), ()
        with buffer_sends() as sent:
            return await self._call(messages, payloads, tried), sent

    @property
    def _in_place(self) -> bool:
        """Whether a message that fails is tried again where it stands: others would overtake it, or take it."""
        kept = self.tuning.ordered or self.tuning.exactly_once or bool(self.tuning.partitions)
        return kept and self._receiver is not None and not self._receiver.orders

    async def _call(self, messages: Sequence[Message], payloads: list[Any], tried: int) -> Outcome:
        with Work(self._seen, messages, tried, self.tuning.attempts) as work:
            handling.set(self._leases)
            try:
                work.outcome = await self._handler.call(messages, payloads, self._given, self._threads)
            except UnsupportedPublish as error:
                # Neither will the next attempt be able to send it.
                work.outcome, work.error = Reject(f"{type(error).__name__}: {error}"), error
            except Exception as error:
                work.outcome, work.error = Retry(f"{type(error).__name__}: {error}"), error
        return work.outcome

    def _delay(self, attempt: int, outcome: Retry) -> float:
        if outcome.after is not None:
            return outcome.after
        return self.tuning.backoff(attempt)

    def _settle(self, deliveries: Sequence[Delivery], outcome: Outcome, sent: Sequence[Outgoing] = ()) -> None:
        self.handled += len(deliveries)
        if self.tuning.at_most_once:
            return
        began = clock()
        if not self.tuning.exactly_once:
            # A chunk that was given up is handled anew, because what was sent went with it.
            deliveries = self._leases.settle(deliveries)
        if sent and isinstance(outcome, Ack):
            self._seen.on_gathered(sent)
        if isinstance(outcome, Ack):
            deliveries[0].ack_with(deliveries, sent)
        for delivery in deliveries:
            if isinstance(outcome, Retry):
                delivery.retry(outcome.after, str(outcome))
            elif isinstance(outcome, Reject):
                delivery.reject(str(outcome))
        self._seen.on_settled(deliveries, outcome, clock() - began)


def _still_here(deliveries: list[Delivery], payloads: list[Any]) -> tuple[list[Delivery], list[Any]]:
    """Those that are not another consumer's by now."""
    held = [each.touch() for each in deliveries]
    return list(compress(deliveries, held)), list(compress(payloads, held))
