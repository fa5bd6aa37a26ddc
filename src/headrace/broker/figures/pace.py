"""How much is looked at between two turns of the loop."""

from __future__ import annotations

import asyncio

# In units of about a microsecond.
STEP_WORK = 512


class Pace:
    """Counts work, and says when others are to have a turn."""

    def __init__(self) -> None:
        self.done = 0

    def add(self, work: int) -> bool:
        """So much was done. True: `turn` is to be awaited before any more is."""
        self.done += work
        return self.done >= STEP_WORK

    async def turn(self) -> None:
        """Let others have a turn."""
        self.done = 0
        await asyncio.sleep(0)
