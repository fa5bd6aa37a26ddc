"""A broker behind the handlers, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests import brokers
from tests.doors.kafka.local_client import LocalClient


@pytest.fixture
def asking_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of the broker; give others by `@pytest.mark.parametrize("asking_settings", [...], indirect=True)`."""
    return getattr(request, "param", {})


@pytest.fixture
async def ask(tmp_path: Path, asking_settings: dict[str, Any]) -> AsyncIterator[LocalClient]:
    """Ask a handler: `await ask("metadata", 12, topics=None, ...)`."""
    async with brokers.running(tmp_path, node_id=1, **{"durability": "async", **asking_settings}) as broker:
        yield LocalClient(broker)
