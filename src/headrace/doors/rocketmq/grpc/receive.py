"""ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

A group's messages of a topic are those of a queue (`group_queues.py`), and what a consumer receives is leased: a
receipt handle is the handle of a lease, and is taken from any connection. The leases of a push consumer are renewed
while it lives (`renewals.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.queues import Handle, Lease, Queue, Wanted
from headrace.broker.security import Session
from headrace.doors.rocketmq.group_queues import GroupQueues
from headrace.doors.rocketmq.grpc.clients import Clients
from headrace.doors.rocketmq.grpc.methods import Caller
from headrace.doors.rocketmq.grpc.proto_messages import set_ms, to_ms, write_message
from headrace.doors.rocketmq.grpc.protocol import Code, Proto, definition, service
from headrace.doors.rocketmq.grpc.renewals import RENEWED_MS, Renewals
from headrace.doors.rocketmq.grpc.resources import group_of, read_filter, topic_of
from headrace.doors.rocketmq.grpc.status import ResponseError, make_status, status_of
from headrace.doors.rocketmq.messages import Host
from headrace.doors.rocketmq.records import message_of
from headrace.doors.rocketmq.subscriptions import exact_filter_of
from headrace.doors.rocketmq.topics import RocketMqTopics
from headrace.errors import HeadraceError, InvalidHandle, UnknownTopic

_d: Any = definition
_s: Any = service
# As RocketMQ's proxy has them.
INVISIBLE_MIN_MS = 10_000
INVISIBLE_MAX_MS = 43_200_000
POLL_MAX_MS = 20_000
ACKS_MAX = 10_000


class ReceiveHandlers:
    """Hands out messages, and settles them."""

    def __init__(
        self,
        broker: Broker,
        topics: RocketMqTopics,
        clients: Clients,
        queues: GroupQueues,
        renewals: Renewals,
        store_host: Callable[[], Host],
    ) -> None:
        self._broker = broker
        self._clock = broker.runtime.clock
        self._topics = topics
        self._clients = clients
        self._queues = queues
        self._renewals = renewals
        self._store_host = store_host
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let those return that wait."""
        self._stopping.set()
        for queue in self._broker.queues.all():
            queue.leases.end_receives()

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def receive(self, caller: Caller, request: Proto) -> AsyncIterator[Proto]:
        """ReceiveMessage: a status, the messages, and when they left."""
        try:
            self._broker.quotas.take_consume(caller.session)
            leases = await self._receive(caller, request)
            self._broker.quotas.consumed(caller.session, sum(len(each.record[3] or b"") for each in leases))
            if leases:
                yield _s.ReceiveMessageResponse(status=make_status())
            else:
                yield _s.ReceiveMessageResponse(status=make_status(Code.MESSAGE_NOT_FOUND, "no new message"))
        except HeadraceError as error:
            leases = []
            yield _s.ReceiveMessageResponse(status=status_of(error))
        for lease in leases:
            yield _s.ReceiveMessageResponse(message=self._write(lease, request))
        delivered = _s.ReceiveMessageResponse()
        set_ms(delivered.delivery_timestamp, self._clock.now_ms())
        yield delivered

    async def _receive(self, caller: Caller, request: Proto) -> list[Lease]:
        self._clients.get(caller)
        name, group = topic_of(request.message_queue.topic), group_of(request.group)
        accepts = exact_filter_of(read_filter(request.filter_expression))
        invisible_ms = RENEWED_MS if request.auto_renew else _invisible_ms(request.invisible_duration, INVISIBLE_MIN_MS)
        wait_ms = POLL_MAX_MS
        if request.HasField("long_polling_timeout"):
            wait_ms = min(max(to_ms(request.long_polling_timeout), 0), POLL_MAX_MS)
        wait_ms = min(wait_ms, caller.wait_max_ms)
        queue = await self._open(caller.session, name, group, wait_ms)
        if queue is None or self._stopping.is_set():
            return []
        wanted = Wanted(
            max(1, request.batch_size),
            invisible_ms,
            accepts,
            is_renewed=request.auto_renew,
            highest_first=not queue.settings.order_by_key and self._queues.goes_by_priority(queue.topic, group),
        )
        leases = await queue.leases.receive(wanted, wait_ms)
        if request.auto_renew:
            self._renewals.add(caller.client_id, queue, [lease.handle for lease in leases])
        return leases

    async def _open(self, session: Session, name: str, group: str, wait_ms: int) -> Queue | None:
        """The queue of a group; None where the topic did not come within `wait_ms` to be. Raises a HeadraceError."""
        found = self._topics.find(name)
        if found is None and self._broker.config.auto_create_topics:
            try:
                await asyncio.wait_for(self._stopping.wait(), wait_ms / 1_000)
            except TimeoutError:
                return None
        if found is None:
            raise UnknownTopic(f"the topic {name} does not exist. Create it first.")
        return await self._queues.open(found, group, session)

    def _write(self, lease: Lease, request: Proto) -> Proto:
        handle = lease.handle
        stored = message_of(lease.record, "", handle.lane, 0, self._store_host())
        message = write_message(stored, request.message_queue.topic)
        system = message.system_properties
        system.receipt_handle = handle.encode()
        system.delivery_attempt = handle.attempt
        set_ms(system.invisible_duration, handle.until_ms - self._clock.now_ms())
        return message

    # --- settling -----------------------------------------------------------------------------------------------------

    async def acknowledge(self, caller: Caller, request: Proto) -> Proto:
        """AckMessage: each entry has a status of its own."""
        queue = await self._queue(request)
        if not 0 < len(request.entries) <= ACKS_MAX:
            raise ResponseError(
                Code.BAD_REQUEST, f"a request has 1 to {ACKS_MAX} entries (this one has {len(request.entries)})"
            )
        statuses = [make_status()] * len(request.entries)
        handles, places = [], []
        for place, entry in enumerate(request.entries):
            try:
                handles.append(_handle(queue, entry.receipt_handle))
                places.append(place)
            except HeadraceError as error:
                statuses[place] = status_of(error)
        for stale in queue.leases.finish_many(handles):
            statuses[places[stale]] = _STALE
        for handle in handles:
            self._renewals.forget(handle)
        entries = [
            _s.AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
            for entry, status in zip(request.entries, statuses, strict=True)
        ]
        codes = {status.code for status in statuses}
        overall = statuses[0] if len(codes) == 1 else make_status(Code.MULTIPLE_RESULTS, "MULTIPLE_RESULTS")
        return _s.AckMessageResponse(status=overall, entries=entries)

    async def change_invisible(self, caller: Caller, request: Proto) -> Proto:
        """ChangeInvisibleDuration: the handle of the answer takes the place of the one that came."""
        queue = await self._queue(request)
        handle = _handle(queue, request.receipt_handle)
        invisible_ms = _invisible_ms(request.invisible_duration, 0)
        if invisible_ms:
            changed = queue.leases.extend(handle, invisible_ms)
        else:
            changed = handle if queue.leases.give_back(handle) else None
        self._renewals.forget(handle)
        if changed is None:
            return _s.ChangeInvisibleDurationResponse(status=_STALE)
        return _s.ChangeInvisibleDurationResponse(status=make_status(), receipt_handle=changed.encode())

    async def forward(self, caller: Caller, request: Proto) -> Proto:
        """ForwardMessageToDeadLetterQueue."""
        queue = await self._queue(request)
        handle = _handle(queue, request.receipt_handle)
        is_taken = queue.leases.reject(handle, f"forwarded by its consumer after {request.delivery_attempt} tries")
        self._renewals.forget(handle)
        return _s.ForwardMessageToDeadLetterQueueResponse(status=make_status() if is_taken else _STALE)

    async def _queue(self, request: Proto) -> Queue:
        """The queue of a group. Raises ResponseError where it has received nothing yet."""
        name, group = topic_of(request.topic), group_of(request.group)
        queue = await self._queues.find(name, group)
        if queue is None:
            raise InvalidHandle(f"the group {group} has received nothing of the topic {name}")
        return queue


def _handle(queue: Queue, text: str) -> Handle:
    """A handle of a queue. Raises InvalidHandle."""
    handle = Handle.decode(text)
    if handle.queue != queue.id:
        raise InvalidHandle("the receipt handle is that of another group or topic")
    return handle


_STALE = make_status(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired: the message is settled, or another's now")


def _invisible_ms(duration: Proto, least: int) -> int:
    milliseconds = to_ms(duration)
    if milliseconds < least:
        raise ResponseError(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {least}")
    if milliseconds > INVISIBLE_MAX_MS:
        raise ResponseError(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {INVISIBLE_MAX_MS}")
    return milliseconds
