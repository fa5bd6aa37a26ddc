"""What happened in a run, as one hash and the last lines of text.

Two runs of one seed must give the same hash: that is what "replays exactly" means, and what the tests compare. The
lines are for the person who reads a failure.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b


class Trace:
    """A running hash of every event, and the newest of the events."""

    def __init__(self, keep: int = 200) -> None:
        self._hash = blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=keep)
        self.count = 0

    def add(self, time: float, event: str) -> None:
        line = f"{time:.6f} {event}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.lines.append(line)
        self.count += 1

    def digest(self) -> str:
        return self._hash.hexdigest()
