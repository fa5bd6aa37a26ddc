"""What a node counts, for its metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Figures:
    """Since the start of the process."""

    elections: int = 0
    """That this node has won."""
    unclean_elections: int = 0
    leaderships: int = 0
    """Also those that were handed over to it."""
    truncations: int = 0
    """Times that it cut off what a leader did not have."""
    truncated_frames: int = 0
    refused: int = 0
    """Appends that were refused for too few replicas in sync."""
