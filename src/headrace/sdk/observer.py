"""What is seen of an application from outside: logs, metrics and traces.

The rest of the framework reports four events, each in one call: a message is published, messages were received, a
handler works on them, they were settled.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from headrace.sdk.logs import Logs
from headrace.sdk.message import Message, Outgoing
from headrace.sdk.metrics import Metrics
from headrace.sdk.outcome import ACK, REJECT, Ack, Outcome
from headrace.sdk.scenario import NSQ
from headrace.sdk.system import Address
from headrace.sdk.tracing import Ended, Sent, Tracing, Untraced, tracing
from headrace.sdk.transport import Delivery

clock = time.perf_counter


class Observer:
    def __init__(self, logs: Logs, metrics: Metrics, traces: float) -> None:
        """`traces`: of what is sent outside of any trace, so much begins one."""
        if not 0 <= traces <= 1:
            raise ValueError(f"traces must be a share from 0 to 1 (got {traces})")
        self.logs = logs
        self.metrics = metrics
        self._traces = traces
        self._headers = True
        self._tracing: Tracing | None = None

    def connect(self, address: Address) -> None:
        """The application runs on this system from now on."""
        self._headers = address.kind != NSQ or address.envelope
        self.metrics.attributes = attributes_of(address)
        self._tracing = None

    @property
    def tracing(self) -> Tracing:
        """Chosen when it is first needed: an application sets up OpenTelemetry when it begins to run."""
        if self._tracing is None:
            self._tracing = tracing(self._traces, self.metrics.attributes) if self._headers else Untraced()
        return self._tracing

    def publish(self, topic: str, key: bytes | None, headers: dict[str, bytes]) -> Sent | None:
        """A message is to be sent; its trace is put into its headers. What is given is to be called when it is out."""
        return self.tracing.publish(topic, key, headers)

    def on_sent(self, messages: Sequence[Outgoing], seconds: float, error: Exception | None) -> None:
        """Messages were sent together, or failed."""
        self.metrics.count_sent(messages, seconds, type(error).__name__ if error is not None else "")
        if error is not None:
            self.logs.unsent(messages, error, seconds)


class Watch:
    """What is seen of a subscription."""

    def __init__(self, observer: Observer, topic: str, group: str, handler: str) -> None:
        self.topic = topic
        self.group = group
        self.handler = handler
        self.logs = observer.logs
        self.tracing = observer.tracing
        self._metrics = observer.metrics
        self._consumed = self._metrics.consumed.of("receive", topic, group)
        self._taken = self._metrics.operated.of("receive", topic, group, "", "receive")
        self._late = self._metrics.late.of(topic, group)

    def on_received(self, count: int) -> None:
        """Messages have come."""
        self._consumed.value += count

    def on_taken(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """A worker has what it is to handle, and took so long to get it together."""
        self._taken.add(seconds)
        if self.tracing.records:
            self.tracing.receive(self, [each.message for each in deliveries], seconds)

    def on_processed(self, error: str, seconds: float) -> None:
        """A handler has ended."""
        self._metrics.processed.of("process", self.topic, self.group, error).add(seconds)

    def on_rejected(self, message: Message, reason: str) -> None:
        """A message is rejected without a handler."""
        self.logs.handled(self, [message], REJECT, reason, 0.0)

    def on_late(self, message: str, operation: str) -> None:
        """A settlement came too late: the message was another consumer's by then, or dead."""
        self._late.value += 1
        self.logs.late(self, message, operation)

    def on_gathered(self, messages: Sequence[Outgoing]) -> None:
        """Messages go out with the transaction of what they are the effect of."""
        self._metrics.count_sent(messages, None, "")

    def on_settled(self, deliveries: Sequence[Delivery], outcome: Outcome, seconds: float) -> None:
        """Messages were settled."""
        operation = outcome.operation
        self._metrics.settled.of(self.topic, self.group, operation).value += len(deliveries)
        self._metrics.operated.of(operation, self.topic, self.group, "", "settle").add(seconds)
        if self.tracing.records:
            self.tracing.settle(self, [each.message for each in deliveries], operation, seconds)


class Work:
    """A handler at work: its outcome, and its error if there was one, are set before the block ends."""

    __slots__ = ("_attempts", "_began", "_ended", "_messages", "_tried", "_watch", "error", "outcome")

    def __init__(self, watch: Watch, messages: Sequence[Message], tried: int, attempts: int) -> None:
        """`tried`: how often it was called for this delivery; `attempts`: those that a message has, 0: no limit."""
        self.outcome: Outcome
        self.error: Exception | None = None
        self._watch = watch
        self._messages = messages
        self._tried = tried
        self._attempts = attempts

    def __enter__(self) -> Work:
        self._ended: Ended = self._watch.tracing.process(self._watch, self._messages)
        self._began = clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        seconds = clock() - self._began
        watch, messages = self._watch, self._messages
        if kind is not None:
            # Cancelled: the application stops, and another consumer will get the messages.
            self._ended(kind.__name__, str(error))
            return
        outcome = self.outcome
        if isinstance(outcome, Ack):
            self._ended("", "")
            watch.on_processed("", seconds)
            watch.logs.handled(watch, messages, ACK, "", seconds, tried=self._tried)
            return
        failure = type(self.error or outcome).__name__
        reason = str(outcome)
        self._ended(failure, reason)
        watch.on_processed(failure, seconds)
        # The whole story once, and not for each message of a batch.
        story = self.error
        for each in messages:
            result = REJECT if self._is_last(each) else outcome.operation
            watch.logs.handled(watch, [each], result, reason, seconds, tried=self._tried, error=story)
            story = None

    def _is_last(self, message: Message) -> bool:
        """One that has had its attempts is not retried, whatever its outcome."""
        return 0 < self._attempts < message.attempt + self._tried


def attributes_of(address: Address) -> dict[str, str | int]:
    """What is known of a system, by OpenTelemetry's names."""
    found: dict[str, str | int] = {"messaging.system": address.kind}
    server = address.kafka or address.nsq
    # Of several it is not known which one will be used.
    if server and "," not in server:
        host, _, port = server.rpartition(":")
        found |= {"server.address": host, "server.port": int(port)}
    return found
