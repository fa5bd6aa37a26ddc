"""What a handler sends, kept back until its message is done.

With exactly once a handler's messages and the end of the one that it handles are one act. So while it runs, what it
sends is gathered, in the context that its tasks and threads inherit, instead of going out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from headrace.sdk.message import Outgoing

_gathered: ContextVar[list[Outgoing] | None] = ContextVar("headrace_gathered", default=None)


def gathered() -> list[Outgoing] | None:
    """Where what is sent here is kept; None where it goes out at once."""
    return _gathered.get()


@contextmanager
def gathering() -> Iterator[list[Outgoing]]:
    """Keep what is sent inside."""
    sent: list[Outgoing] = []
    token = _gathered.set(sent)
    try:
        yield sent
    finally:
        _gathered.reset(token)
