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
    peers_refused: int = 0
    """Connections with other nodes that TLS or a certificate refused, on either side."""
