"""ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

A group's messages of a topic are those of a queue (`group_queues.py`), and what a consumer receives is leased
(`leases.py`): a receipt handle is the handle of a lease, and is taken from any connection. The leases of a push
consumer are renewed while it lives (`renewals.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from headrace.broker.queues.queue import Queue
from headrace.doors.rocketmq.grpc.clients import Clients
from headrace.doors.rocketmq.grpc.group_queues import GroupQueues
from headrace.doors.rocketmq.grpc.leases import Handle, Lease, Leases
from headrace.doors.rocketmq.grpc.methods import Caller
from headrace.doors.rocketmq.grpc.proto_messages import set_ms, to_ms, write_message
from headrace.doors.rocketmq.grpc.protocol import Code, Proto, definition, service
from headrace.doors.rocketmq.grpc.renewals import RENEWED_MS, Renewals
from headrace.doors.rocketmq.grpc.resources import group_of, read_filter, topic_of
from headrace.doors.rocketmq.grpc.status import ResponseError, make_status, status_of
from headrace.doors.rocketmq.messages import Host
from headrace.doors.rocketmq.records import message_of, tag_of
from headrace.doors.rocketmq.subscriptions import ALL
from headrace.errors import HeadraceError
from headrace.format.records import Record
from headrace.runtime import Clock

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
        clock: Clock,
        clients: Clients,
        queues: GroupQueues,
        leases: Leases,
        renewals: Renewals,
        store_host: Callable[[], Host],
    ) -> None:
        self._clock = clock
        self._clients = clients
        self._queues = queues
        self._leases = leases
        self._renewals = renewals
        self._store_host = store_host

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def receive(self, caller: Caller, request: Proto) -> AsyncIterator[Proto]:
        """ReceiveMessage: a status, the messages, and when they left."""
        try:
            leases = await self._receive(caller, request)
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
        accepts = _filter(request.filter_expression)
        invisible_ms = RENEWED_MS if request.auto_renew else _invisible_ms(request.invisible_duration, INVISIBLE_MIN_MS)
        wait_ms = POLL_MAX_MS
        if request.HasField("long_polling_timeout"):
            wait_ms = min(max(to_ms(request.long_polling_timeout), 0), POLL_MAX_MS)
        wait_ms = min(wait_ms, caller.wait_max_ms)
        queue = await self._queues.open(name, group, wait_ms)
        if queue is None:
            return []
        leases = await self._leases.receive(queue, request.batch_size, invisible_ms, wait_ms, accepts=accepts)
        if request.auto_renew:
            self._renewals.add(caller.client_id, [lease.handle for lease in leases])
        return leases

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
        queue = self._queue(request)
        if not 0 < len(request.entries) <= ACKS_MAX:
            raise ResponseError(
                Code.BAD_REQUEST, f"a request has 1 to {ACKS_MAX} entries (this one has {len(request.entries)})"
            )
        statuses = [make_status()] * len(request.entries)
        handles, places = [], []
        for place, entry in enumerate(request.entries):
            try:
                handles.append(self._handle(queue, entry.receipt_handle))
                places.append(place)
            except HeadraceError as error:
                statuses[place] = status_of(error)
        for stale in self._leases.acknowledge_many(handles):
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
        handle = self._handle(self._queue(request), request.receipt_handle)
        changed = self._leases.change_visibility(handle, _invisible_ms(request.invisible_duration, 0))
        self._renewals.forget(handle)
        if changed is None:
            return _s.ChangeInvisibleDurationResponse(status=_STALE)
        return _s.ChangeInvisibleDurationResponse(status=make_status(), receipt_handle=changed.encode())

    async def forward(self, caller: Caller, request: Proto) -> Proto:
        """ForwardMessageToDeadLetterQueue."""
        handle = self._handle(self._queue(request), request.receipt_handle)
        is_taken = self._leases.reject(handle, f"forwarded by its consumer after {request.delivery_attempt} tries")
        self._renewals.forget(handle)
        return _s.ForwardMessageToDeadLetterQueueResponse(status=make_status() if is_taken else _STALE)

    def _queue(self, request: Proto) -> Queue:
        """The queue of a group. Raises ResponseError where it has received nothing yet."""
        name, group = topic_of(request.topic), group_of(request.group)
        queue = self._queues.find(name, group)
        if queue is None:
            raise ResponseError(
                Code.INVALID_RECEIPT_HANDLE,
                f"the group {group} has received nothing of the topic {name}",
            )
        return queue

    def _handle(self, queue: Queue, text: str) -> Handle:
        """A handle of a queue, as it stands after its last renewal. Raises InvalidHandle or ResponseError."""
        handle = Handle.decode(text)
        if handle.queue != queue.id:
            raise ResponseError(Code.INVALID_RECEIPT_HANDLE, "the receipt handle is that of another group or topic")
        return self._renewals.current(handle)


_STALE = make_status(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired: the message is settled, or another's now")


def _invisible_ms(duration: Proto, least: int) -> int:
    milliseconds = to_ms(duration)
    if milliseconds < least:
        raise ResponseError(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {least}")
    if milliseconds > INVISIBLE_MAX_MS:
        raise ResponseError(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {INVISIBLE_MAX_MS}")
    return milliseconds


def _filter(expression: Proto) -> Callable[[Record], bool] | None:
    """Which messages a consumer wants; None: all. Clients do not look again, so the text of tags is compared."""
    if read_filter(expression).expression == ALL:
        return None
    tags = frozenset(tag.strip() for tag in expression.expression.split("||"))
    return lambda record: tag_of(record[4]) in tags
