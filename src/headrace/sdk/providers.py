"""What an application provides to its handlers: made by factories at the start, left at the stop."""

from __future__ import annotations

import inspect
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any


async def enter_value(life: AsyncExitStack, made: Any) -> Any:
    """What a factory gave, with its end noted down."""
    if hasattr(made, "__aenter__"):
        return await life.enter_async_context(made)
    if hasattr(made, "__enter__"):
        return life.enter_context(made)
    if inspect.isasyncgen(made):
        return await life.enter_async_context(asynccontextmanager(lambda: made)())
    if inspect.isgenerator(made):
        return life.enter_context(contextmanager(lambda: made)())
    return await made if inspect.isawaitable(made) else made
