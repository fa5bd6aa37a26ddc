"""Trace context: to which chain of causes a message belongs, in W3C's headers `traceparent` and `tracestate`.

What a handler sends carries on the trace of the message that it handles, under a span id of its own; what is sent
outside of any begins one. So a chain can be followed through topics and services (`headrace trace`) even without
spans. Where the application has set up OpenTelemetry, spans.py does it in its place, and records spans.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.sdk.message import Message

if TYPE_CHECKING:
    from headrace.sdk.observer import Watch

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
# Version, trace id, span id, flags; a later version may say more behind them.
SHAPE = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
NO_TRACE, NO_SPAN = b"0" * 32, b"0" * 16
SAMPLED = b"01"

# An application may seed the common one, and would begin the same traces each time.
chance = random.Random()
# A forked process would go on with the same numbers.
os.register_at_fork(after_in_child=chance.seed)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where in a trace something happens."""

    trace_id: bytes
    """32 hexadecimal digits."""
    flags: bytes = SAMPLED
    state: bytes = b""

    def below(self) -> dict[str, bytes]:
        """The headers of a message that this is the cause of."""
        headers = {TRACEPARENT: b"00-%b-%b-%b" % (self.trace_id, chance.randbytes(8).hex().encode(), self.flags)}
        if self.state:
            headers[TRACESTATE] = self.state
        return headers


def context_of(headers: Mapping[str, bytes]) -> TraceContext | None:
    """The trace of a message; None where it has none, or one that cannot be read."""
    value = headers.get(TRACEPARENT)
    found = SHAPE.fullmatch(value) if value else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more) or trace == NO_TRACE or span == NO_SPAN:
        return None
    return TraceContext(trace, flags, headers.get(TRACESTATE, b""))


def trace_id_of(headers: Mapping[str, bytes]) -> str:
    """The same, for people to read; empty where there is none."""
    found = context_of(headers)
    return found.trace_id.decode() if found is not None else ""


# Called when a handler has ended, with the type of its error and the reason, both empty if it succeeded.
Ended = Callable[[str, str], None]
# Called when a message is out, with the error if it is not.
Sent = Callable[[BaseException | None], None]


class Tracing:
    """Follows each message through the application."""

    records = False
    """Whether `receive` and `settle` are to be called."""

    def publish(self, topic: str, key: bytes | None, headers: dict[str, bytes]) -> Sent | None:
        """A message is to be sent: its context goes into its headers."""
        raise NotImplementedError

    def receive(self, subject: Watch, messages: Sequence[Message], seconds: float) -> None:
        """A worker got messages, and waited so long for all of them."""

    def process(self, subject: Watch, messages: Sequence[Message]) -> Ended:
        """A handler begins; what it sends until `Ended` belongs to these messages."""
        raise NotImplementedError

    def settle(self, subject: Watch, messages: Sequence[Message], operation: str, seconds: float) -> None:
        """Messages were settled."""


class HandledTrace:
    """What is being handled, and the trace that what is sent meanwhile belongs to."""

    __slots__ = ("_context", "_known", "_messages")

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._known = False
        self._context: TraceContext | None = None

    def context(self, begin: Callable[[], TraceContext | None]) -> TraceContext | None:
        """Worked out when it is first asked for: most handlers send nothing."""
        if not self._known:
            self._known = True
            found = [context_of(each.headers) for each in self._messages]
            one = found[0]
            # Messages of several traces have no one trace to carry on.
            alike = one is not None and all(each is not None and each.trace_id == one.trace_id for each in found)
            self._context = one if alike else begin()
        return self._context


_handling: ContextVar[HandledTrace | None] = ContextVar("headrace_handling", default=None)


class TracePropagator(Tracing):
    """Trace context without spans."""

    def __init__(self, share: float) -> None:
        self._share = share
        """Of what is sent outside of any trace, so much begins one."""

    def publish(self, topic: str, key: bytes | None, headers: dict[str, bytes]) -> Sent | None:
        if TRACEPARENT not in headers:
            handling = _handling.get()
            if handling is not None:
                context = handling.context(self._begin)
                if context is not None:
                    headers.update(context.below())
            elif self._chosen():
                # As below a context that nothing else will know of: this is done for each message.
                drawn = chance.randbytes(24).hex()
                headers[TRACEPARENT] = f"00-{drawn[:32]}-{drawn[32:]}-01".encode()
        return None

    def process(self, subject: Watch, messages: Sequence[Message]) -> Ended:
        token: Token[HandledTrace | None] = _handling.set(HandledTrace(messages))

        def ended(error: str, reason: str) -> None:
            _handling.reset(token)

        return ended

    def _chosen(self) -> bool:
        return self._share >= 1 or chance.random() < self._share

    def _begin(self) -> TraceContext | None:
        return TraceContext(chance.randbytes(16).hex().encode()) if self._chosen() else None


class Untraced(TracePropagator):
    """Where messages have no headers."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def publish(self, topic: str, key: bytes | None, headers: dict[str, bytes]) -> Sent | None:
        return None


def tracing(share: float, attributes: Mapping[str, str | int]) -> Tracing:
    """OpenTelemetry's way where the application has set it up, and the plain one where it has not."""
    # An application that has set it up has imported it. Other packages share its namespace, so its first name alone
    # proves nothing.
    if "opentelemetry.trace" in sys.modules:
        from headrace.sdk.spans import Spans, recording

        if recording():
            return Spans(attributes)
    return TracePropagator(share)
