"""A client of RocketMQ's gRPC protocol that sends what it is given, and no more."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import grpc

from headrace.doors.rocketmq.grpc.protocol import definition, service

SERVICE = "/apache.rocketmq.v2.MessagingService/"
SECONDS = 30

Resource = definition.Resource


class RawGrpc:
    """One client, on a channel of its own."""

    def __init__(self, address: str, client_id: str = "", credentials: grpc.ChannelCredentials | None = None) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)
        self.metadata = (("x-mq-client-id", client_id or f"client-{uuid4().hex[:8]}"),)
        host, _, port = address.rpartition(":")
        self.endpoints = definition.Endpoints(
            scheme=definition.IPv4, addresses=[definition.Address(host=host, port=int(port))]
        )

    def __enter__(self) -> RawGrpc:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def ask(self, method: str, metadata: Any = None, **fields: Any) -> Any:
        """The answer to one request."""
        request = getattr(service, f"{method}Request")(**fields)
        call = self._channel.unary_unary(
            SERVICE + method, type(request).SerializeToString, getattr(service, f"{method}Response").FromString
        )
        return call(request, metadata=self.metadata if metadata is None else metadata, timeout=SECONDS)

    def stream(self, method: str, **fields: Any) -> list[Any]:
        """All answers to one request."""
        return list(self.begin(method, **fields))

    def begin(self, method: str, **fields: Any) -> Any:
        """Ask for a stream of answers."""
        request = getattr(service, f"{method}Request")(**fields)
        call = self._channel.unary_stream(
            SERVICE + method, type(request).SerializeToString, getattr(service, f"{method}Response").FromString
        )
        return call(request, metadata=self.metadata, timeout=SECONDS)

    def raw(self, method: str, body: bytes) -> Any:
        """The answer to whatever bytes."""
        call = self._channel.unary_unary(SERVICE + method)
        return call(body, metadata=self.metadata, timeout=SECONDS)

    def raw_stream(self, method: str, body: bytes) -> Any:
        """The answers to a stream of whatever bytes."""
        return self._channel.stream_stream(SERVICE + method)(iter([body]), metadata=self.metadata, timeout=SECONDS)

    def send(self, topic: str, *messages: Any) -> Any:
        """SendMessage."""
        given = [each if not isinstance(each, bytes) else message(topic, each) for each in messages]
        return self.ask("SendMessage", messages=given)

    def telemetry(self, *commands: Any) -> Telemetry:
        """Open a stream."""
        return Telemetry(self._channel, self.metadata, commands)

    def be_producer(self, *topics: str) -> Telemetry:
        """Tell settings of a producer, and wait for the broker's."""
        publishing = definition.Publishing(topics=[Resource(name=each) for each in topics])
        return self._introduce(definition.Settings(client_type=definition.PRODUCER, publishing=publishing))

    def be_consumer(self, group: str, *topics: str, expression: str = "*") -> Telemetry:
        """Tell settings of a consumer, wait for the broker's, and send a heartbeat."""
        entries = [
            definition.SubscriptionEntry(
                topic=Resource(name=each),
                expression=definition.FilterExpression(type=definition.TAG, expression=expression),
            )
            for each in topics
        ]
        subscription = definition.Subscription(group=Resource(name=group), subscriptions=entries)
        settings = definition.Settings(client_type=definition.SIMPLE_CONSUMER, subscription=subscription)
        stream = self._introduce(settings)
        self.ask("Heartbeat", client_type=definition.SIMPLE_CONSUMER, group=Resource(name=group))
        return stream

    def _introduce(self, settings: Any) -> Telemetry:
        stream = self.telemetry(service.TelemetryCommand(settings=settings))
        assert stream.next().WhichOneof("command") == "settings"
        return stream


class Telemetry:
    """A stream of commands each way."""

    def __init__(self, channel: grpc.Channel, metadata: Any, commands: tuple[Any, ...]) -> None:
        self._commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for each in commands:
            self._commands.put(each)
        command = service.TelemetryCommand
        call = channel.stream_stream(SERVICE + "Telemetry", command.SerializeToString, command.FromString)
        self.call = call(self._sent(), metadata=metadata, timeout=SECONDS)

    def _sent(self) -> Iterator[Any]:
        while (command := self._commands.get()) is not None:
            yield command

    def next(self) -> Any:
        """The next command of the broker's."""
        return next(self.call)

    def close(self) -> None:
        """Send no more, and read to the end."""
        self._commands.put(None)
        list(self.call)


def message(topic: str, body: bytes = b"x", kind: int = definition.NORMAL, **fields: Any) -> Any:
    """A message; what is no field of the system's properties is one of the user's."""
    user = fields.pop("user", {})
    system = definition.SystemProperties(message_id=uuid4().hex.upper(), message_type=kind, **fields)
    system.body_encoding = fields.get("body_encoding", definition.IDENTITY)
    system.born_timestamp.seconds = int(time.time())
    return definition.Message(topic=Resource(name=topic), user_properties=user, system_properties=system, body=body)
