"""Spans by OpenTelemetry's conventions for messaging, for an application that has set OpenTelemetry up.

Publish is a producer's span whose context travels in the message; process is a consumer's whose parent is that
context; receive and settle are a client's. Over a batch there is one span, with a link to each of its messages.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from headrace.sdk.message import Message
from headrace.sdk.tracing import TRACEPARENT, Ended, Sent, Tracing
from headrace.version import VERSION

if TYPE_CHECKING:
    from headrace.sdk.observer import Watch

Attributes = Mapping[str, str | int]


def recording() -> bool:
    """Whether spans go anywhere."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


class _Headers(Getter[Mapping[str, bytes]], Setter[dict[str, bytes]]):
    """Contexts out of headers, and into them."""

    def get(self, carrier: Mapping[str, bytes], key: str) -> list[str] | None:
        value = carrier.get(key)
        return None if value is None else [value.decode("latin-1")]

    def keys(self, carrier: Mapping[str, bytes]) -> list[str]:
        return list(carrier)

    def set(self, carrier: dict[str, bytes], key: str, value: str) -> None:
        carrier[key] = value.encode("latin-1", "replace")


HEADERS = _Headers()


class Spans(Tracing):
    """Trace context with spans."""

    records = True

    def __init__(self, attributes: Attributes) -> None:
        self._tracer = trace.get_tracer("headrace.sdk", VERSION)
        self._attributes = attributes

    def publish(self, topic: str, key: bytes | None, headers: dict[str, bytes]) -> Sent | None:
        if TRACEPARENT in headers:
            # The caller's own context stays.
            return None
        attributes = {**self._attributes, **_operation("publish", "send", topic), **_key(key)}
        span = self._tracer.start_span(f"publish {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        propagate.inject(headers, trace.set_span_in_context(span), HEADERS)
        if not span.is_recording():
            return None

        def sent(error: BaseException | None) -> None:
            if error is not None:
                _failed(span, type(error).__name__, str(error))
            span.end()

        return sent

    def receive(self, subject: Watch, messages: Sequence[Message], seconds: float) -> None:
        self._after("receive", "receive", subject, messages, seconds)

    def process(self, subject: Watch, messages: Sequence[Message]) -> Ended:
        span, parent = self._start("process", "process", SpanKind.CONSUMER, subject, messages)
        token = contexts.attach(trace.set_span_in_context(span, parent))

        def ended(error: str, reason: str) -> None:
            contexts.detach(token)
            if error:
                _failed(span, error, reason)
            span.end()

        return ended

    def settle(self, subject: Watch, messages: Sequence[Message], operation: str, seconds: float) -> None:
        self._after(operation, "settle", subject, messages, seconds)

    def _after(self, operation: str, kind: str, subject: Watch, messages: Sequence[Message], seconds: float) -> None:
        """A span of what is over."""
        end = time.time_ns()
        span, _ = self._start(operation, kind, SpanKind.CLIENT, subject, messages, end - round(seconds * 1e9))
        span.end(end)

    def _start(
        self,
        operation: str,
        kind: str,
        span_kind: SpanKind,
        subject: Watch,
        messages: Sequence[Message],
        start_ns: int | None = None,
    ) -> tuple[Span, Context | None]:
        attributes = {
            **self._attributes,
            **_operation(operation, kind, subject.topic),
            "messaging.consumer.group.name": subject.group,
        }
        found = [propagate.extract(each.headers, Context(), HEADERS) for each in messages]
        links = [
            Link(created, _of_message(message))
            for message, context in zip(messages, found, strict=True)
            if (created := trace.get_current_span(context).get_span_context()).is_valid
        ]
        parent: Context | None = None
        if len(messages) == 1:
            attributes |= _of_message(messages[0])
            # With its baggage. A batch has several such contexts, and so no parent.
            parent = found[0]
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        span = self._tracer.start_span(
            f"{operation} {subject.topic}",
            parent,
            kind=span_kind,
            attributes=attributes,
            links=links,
            start_time=start_ns,
        )
        return span, parent


def _operation(name: str, kind: str, topic: str) -> dict[str, str | int]:
    return {
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }


def _of_message(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"messaging.headrace.message.attempt": message.attempt, **_key(message.key)}
    if message.offset >= 0:
        found["messaging.message.id"] = message.id
        found["messaging.destination.partition.id"] = str(message.partition)
    return found


def _key(key: bytes | None) -> dict[str, str]:
    return {} if key is None else {"messaging.headrace.message.key": key.decode(errors="backslashreplace")}


def _failed(span: Span, error: str, reason: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR, reason))
