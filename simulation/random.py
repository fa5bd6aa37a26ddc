"""Random numbers of a run: one independent stream for each purpose, all of them from the run's seed.

Streams are apart so that one more draw in one place (a network delay, say) does not change what happens in another.
"""

from __future__ import annotations

import random


def stream(seed: int, purpose: str) -> random.Random:
    """The stream of numbers for one purpose. The same pair gives the same numbers on every machine."""
    return random.Random(f"headrace/{seed}/{purpose}")


class SeededRandom:
    """The `Random` of a simulated runtime."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)
