"""Telemetry, Heartbeat and NotifyClientTermination: a client and the broker tell each other what they are.

A client sends its settings over the stream and waits for the broker's: how to send again, how many messages to receive
at once, how long to wait for them. The broker's questions about prepared messages go the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog

from headrace.broker.groups.rocketmq_group import RocketMqSubscription
from headrace.doors.rocketmq.group_queues import GroupQueues
from headrace.doors.rocketmq.grpc.access import Access
from headrace.doors.rocketmq.grpc.clients import Clients, Stream
from headrace.doors.rocketmq.grpc.methods import Caller, find_caller, parse
from headrace.doors.rocketmq.grpc.proto_messages import set_ms
from headrace.doors.rocketmq.grpc.protocol import Code, Proto, definition, service
from headrace.doors.rocketmq.grpc.resources import group_of, read_filter, topic_of
from headrace.doors.rocketmq.grpc.rights import settings_rights
from headrace.doors.rocketmq.grpc.status import ResponseError, make_status, status_of
from headrace.doors.rocketmq.grpc.transactions import TransactionHandlers
from headrace.doors.rocketmq.names import log_name
from headrace.doors.rocketmq.settings import RocketMqSettings, parse_levels
from headrace.errors import HeadraceError

log = structlog.get_logger("headrace.rocketmq")

_d: Any = definition
_s: Any = service
CONSUMERS = (_d.PUSH_CONSUMER, _d.SIMPLE_CONSUMER)
SUBSCRIPTIONS_MAX = 10_000
# What RocketMQ's proxy gives to every client.
SEND_ATTEMPTS = 3
BACKOFF_MS = 10
BACKOFF_MAX_SECONDS = 1
BACKOFF_MULTIPLIER = 2
RECEIVE_BATCH = 32
POLL_SECONDS = 20


class TelemetryHandlers:
    """Knows the clients, and is known by them."""

    def __init__(
        self,
        settings: RocketMqSettings,
        clients: Clients,
        transactions: TransactionHandlers,
        queues: GroupQueues,
        access: Access,
    ) -> None:
        self._access = access
        self._settings = settings
        self._clients = clients
        self._transactions = transactions
        self._queues = queues
        self._backoff_ms = parse_levels(settings.rocketmq_delay_levels)

    # --- the stream ---------------------------------------------------------------------------------------------------

    async def telemetry(self, commands: AsyncIterator[bytes], context: Any) -> None:
        """Telemetry."""
        try:
            caller = find_caller(context)
            await self._access.identify(caller.session, context)
        except ResponseError as error:
            await context.write(_s.TelemetryCommand(status=status_of(error)))
            return
        stream = self._clients.open_stream()
        # What the stream was opened for is not the client's any more; it opens another one.
        caller.session.on_ended = lambda _: stream.close()
        reading = asyncio.get_running_loop().create_task(self._read(caller, commands, stream))
        reading.add_done_callback(lambda _: stream.close())
        try:
            while (command := await stream.next()) is not None:
                await context.write(command)
            failure = reading.exception() if reading.done() else None
            if failure is not None:
                if not isinstance(failure, HeadraceError):
                    log.error("a telemetry stream failed", client=caller.client_id, exc_info=failure)
                text = f"process client telemetryCommand failed. {failure}"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        finally:
            self._clients.close_stream(stream)
            reading.cancel()
            self._access.forget(caller.session)

    async def _read(self, caller: Caller, commands: AsyncIterator[bytes], stream: Stream) -> None:
        async for raw in commands:
            command = parse(_s.TelemetryCommand, raw)
            kind = command.WhichOneof("command")
            if kind == "settings":
                settings = await self._update(caller, command.settings, stream)
                stream.send(_s.TelemetryCommand(status=make_status(), settings=settings))
            # What answers a command of the broker's is not waited for: nothing else has been asked.

    async def _update(self, caller: Caller, settings: Proto, stream: Stream) -> Proto:
        """Note a client's settings; the settings that it is to have. Raises a HeadraceError."""
        kind = settings.WhichOneof("pub_sub")
        for right in settings_rights(settings):
            self._access.security.check(caller.session, *right)
        if kind is None:
            raise ResponseError(Code.BAD_REQUEST, "there is no publishing or subscription data in settings")
        if kind == "publishing":
            topics = [topic_of(each) for each in settings.publishing.topics]
            client = self._clients.update(caller, settings, stream)
            client.publish(topics, self._transactions.ask)
        else:
            group_of(settings.subscription.group)
            read_subscriptions(settings.subscription)
            await self._queues.load()
            self._clients.update(caller, settings, stream)
        self._settle(settings)
        return settings

    def _settle(self, settings: Proto) -> None:
        """Put in what the broker decides."""
        policy = settings.backoff_policy
        policy.Clear()
        settings.metric.on = False
        if settings.WhichOneof("pub_sub") == "publishing":
            settings.publishing.max_body_size = self._settings.rocketmq_max_message_size
            settings.publishing.validate_message_type = True
            policy.max_attempts = SEND_ATTEMPTS
            set_ms(policy.exponential_backoff.initial, BACKOFF_MS)
            policy.exponential_backoff.max.seconds = BACKOFF_MAX_SECONDS
            policy.exponential_backoff.multiplier = BACKOFF_MULTIPLIER
        else:
            subscription = settings.subscription
            group = group_of(subscription.group)
            subscription.fifo = self._queues.is_orderly(group)
            subscription.receive_batch_size = RECEIVE_BATCH
            subscription.long_polling_timeout.seconds = POLL_SECONDS
            policy.max_attempts = self._queues.attempts_max(group)
            for milliseconds in self._backoff_ms:
                set_ms(policy.customized_backoff.next.add(), milliseconds)

    # --- signs of life ------------------------------------------------------------------------------------------------

    async def heartbeat(self, caller: Caller, request: Proto) -> Proto:
        """Heartbeat."""
        client = self._clients.get(caller)
        if client.settings.client_type in CONSUMERS:
            for right in settings_rights(client.settings):
                self._access.security.check(caller.session, *right)
            await client.join(group_of(request.group), read_subscriptions(client.settings.subscription))
        return _s.HeartbeatResponse(status=make_status())

    async def notify_termination(self, caller: Caller, request: Proto) -> Proto:
        """NotifyClientTermination."""
        self._clients.get(caller)
        self._clients.forget(caller.client_id)
        return _s.NotifyClientTerminationResponse(status=make_status())


def read_subscriptions(subscription: Proto) -> dict[str, RocketMqSubscription]:
    """What a consumer reads, by the log's names of topics. Raises a HeadraceError."""
    entries = subscription.subscriptions
    if len(entries) > SUBSCRIPTIONS_MAX:
        raise ResponseError(Code.BAD_REQUEST, f"a consumer has {len(entries)} topics, and may have {SUBSCRIPTIONS_MAX}")
    return {log_name(topic_of(each.topic)): read_filter(each.expression) for each in entries}
