from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.peers import Missing
from bench.peers.etcd import EtcdPeers

Peers = Callable[..., EtcdPeers]


@pytest.fixture
def etcd_peers(tmp_path: Path) -> Iterator[Peers]:
    """Starts a real etcd of so many members."""
    started: list[EtcdPeers] = []

    def start(count: int = 1, **options: Any) -> EtcdPeers:
        try:
            peers = EtcdPeers(count, tmp_path / f"etcd{len(started)}", **options)
        except Missing as reason:
            pytest.skip(str(reason))
        started.append(peers)
        peers.start()
        return peers

    yield start
    for peers in started:
        peers.stop()
