"""The end of tasks that try again for ever: whoever stops an application does not wait as long as that."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

# What is being put aside when an application stops has so long to get there. What does not is others' to handle.
PUT_ASIDE_SECONDS = 10.0


async def ended(tasks: Collection[asyncio.Task[None]], seconds: float = PUT_ASIDE_SECONDS) -> None:
    """Let them finish for so many seconds, and cancel those that do not."""
    if not tasks:
        return
    _, left = await asyncio.wait(list(tasks), timeout=seconds)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
