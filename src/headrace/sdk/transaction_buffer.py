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
from headrace.sdk.transport import PublishFailed, UnsupportedPublish


class TransactionBuffer(list[Outgoing]):
    """What was sent so far."""

    ended = False
    """The handler has; nothing that is put here now would be seen."""


_gathered: ContextVar[TransactionBuffer | None] = ContextVar("headrace_gathered", default=None)


def check(message: Outgoing, partitions: int) -> None:
    """Raises PublishFailed for what a transaction cannot take. The handler must get the error now: later, everything in
    the same transaction would fail, again and again."""
    topic, partition = message.topic, message.partition
    if message.delay:
        raise UnsupportedPublish(f"{topic}: what is sent exactly once cannot be delayed: transactions have no delay")
    if partition is not None and not 0 <= partition < partitions:
        raise PublishFailed(f"{topic} has no partition {partition}: it has {partitions}")


def current_buffer() -> TransactionBuffer | None:
    """Where what is sent here is kept; None where it goes out at once."""
    kept = _gathered.get()
    return None if kept is None or kept.ended else kept


@contextmanager
def buffer_sends() -> Iterator[TransactionBuffer]:
    """Keep what is sent inside."""
    sent = TransactionBuffer()
    token = _gathered.set(sent)
    try:
        yield sent
    finally:
        sent.ended = True
        _gathered.reset(token)
