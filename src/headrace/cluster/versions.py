"""What nodes of different versions have in common, while a cluster is upgraded one node after the other.

Two peers speak the greatest version of the protocol that both know. What frames and records may have is the cluster's
feature level in etcd, which is raised by command once every node knows it, and never falls:

    level   peers   what came with it
    1       1
    2       2       `memory` topics reserve their offsets (`log/offset_blocks.py`); acknowledgements say what is applied

A frame carries the level that it was written under, and a node that does not know it refuses the frame.
"""

from __future__ import annotations

from dataclasses import dataclass

FEATURE_LEVEL = 2
"""The highest that this version knows."""
PEER_OLDEST, PEER_NEWEST = 1, 2
# The level from which on `memory` topics reserve their offsets, and the version of acknowledgements with two numbers.
OFFSET_BLOCKS = 2
APPLIED = 2


@dataclass(frozen=True, slots=True)
class Versions:
    """What a node knows."""

    oldest: int = PEER_OLDEST
    """Of the peer protocol."""
    newest: int = PEER_NEWEST
    level: int = FEATURE_LEVEL

    def common(self, oldest: int, newest: int) -> int | None:
        """The version of the protocol to speak with a peer that knows these; None without one."""
        chosen = min(self.newest, newest)
        return chosen if chosen >= max(self.oldest, oldest) else None


THIS_VERSION = Versions()


def pinned(level: int) -> Versions:
    """What the version knew that `level` came with; this one's if it is 0."""
    return Versions(PEER_OLDEST, min(PEER_NEWEST, level), min(FEATURE_LEVEL, level)) if level else THIS_VERSION
