"""Long lists that others may not have to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")

STEP_ITEMS = 128


async def in_steps(items: Sequence[T]) -> AsyncIterator[T]:
    """Items with turns of the loop between: what is done with each must take a microsecond or two."""
    for at, item in enumerate(items):
        yield item
        if at % STEP_ITEMS == STEP_ITEMS - 1:
            await asyncio.sleep(0)
