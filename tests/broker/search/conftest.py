"""A broker whose search indexes are small and grow at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests import brokers

from headrace.broker.broker import Broker

EAGER = {
    "durability": "async",
    "checkpoint_ms": 20,
    "search_index_check_ms": 20,
    "search_index_block_bytes": 20_000,
    "search_ms": 60_000,
}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with brokers.running(tmp_path, **EAGER) as broker:
        yield broker
