"""What a handler sends, kept back until its message is done.

With exactly once a handler's messages and the end of the one that it handles are one act. So while it runs, what it
sends is gathered, in the context that its tasks and threads inherit, instead of going out. What they send when it has
ended is part of nothing, and goes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from headrace.sdk.message import Outgoing
from headrace.sdk.transport import PublishFailed

# What Kafka's own library takes, and what a record has besides; its brokers take a little more.
MESSAGE_BYTES_MAX = 1_000_000
OVERHEAD_BYTES = 64


class Gathered(list[Outgoing]):
    """What was sent so far."""

    ended = False
    """The handler has; nothing that is put here now would be seen."""


_gathered: ContextVar[Gathered | None] = ContextVar("headrace_gathered", default=None)


def check(message: Outgoing, partitions: int) -> None:
    """Raises PublishFailed for what a transaction cannot take. The handler has to hear of it now: later, all that is
    done together with it would fail, again and again."""
    topic, partition = message.topic, message.partition
    if message.delay:
        raise PublishFailed(f"{topic}: what is sent exactly once cannot be delayed: transactions have no delay")
    if partition is not None and not 0 <= partition < partitions:
        raise PublishFailed(f"{topic} has no partition {partition}: it has {partitions}")
    size = OVERHEAD_BYTES + len(message.value) + len(message.key or b"")
    size += sum(OVERHEAD_BYTES + len(name.encode()) + len(value) for name, value in message.headers.items())
    if size > MESSAGE_BYTES_MAX:
        raise PublishFailed(f"{topic}: a message of {size} bytes is too large for a transaction: {MESSAGE_BYTES_MAX}")


def gathered() -> Gathered | None:
    """Where what is sent here is kept; None where it goes out at once."""
    kept = _gathered.get()
    return None if kept is None or kept.ended else kept


@contextmanager
def gathering() -> Iterator[Gathered]:
    """Keep what is sent inside."""
    sent = Gathered()
    token = _gathered.set(sent)
    try:
        yield sent
    finally:
        sent.ended = True
        _gathered.reset(token)
