"""Which of several consoles notifies: one holds the lease and renews it, the others wait until it has ended.

It is in memory alone. A broker that starts grants it anew; two consoles hold it together for no longer than one of them
believes an older grant.
"""

from __future__ import annotations

import asyncio


class Lease:
    """One lease."""

    def __init__(self) -> None:
        self.holder = ""
        self._until = 0.0

    def left_ms(self) -> int:
        """For how long it is held still."""
        return max(round((self._until - asyncio.get_running_loop().time()) * 1000), 0)

    def take(self, holder: str, ttl_ms: int) -> bool:
        """Take it, or renew it, for so long; 0: give it up. Whether the holder has it."""
        if self.left_ms() and self.holder != holder:
            return False
        self.holder = holder if ttl_ms else ""
        self._until = asyncio.get_running_loop().time() + ttl_ms / 1000
        return bool(ttl_ms)
