"""A broker behind the handlers, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.doors.kafka.asking import Asking

from headrace.broker.broker import Broker
from headrace.config import Config
from headrace.ground.real import real_ground
from headrace.log.native import NativeLog


@pytest.fixture
def asking_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of the broker; give others by `@pytest.mark.parametrize("asking_settings", [...], indirect=True)`."""
    return getattr(request, "param", {})


@pytest.fixture
async def ask(tmp_path: Path, asking_settings: dict[str, Any]) -> AsyncIterator[Asking]:
    """Ask a handler: `await ask("metadata", 12, topics=None, ...)`."""
    config = Config(data=str(tmp_path), node_id=1, **{"durability": "async", **asking_settings})
    ground = real_ground(config.data)
    log = NativeLog(ground, config)
    await log.start()
    broker = Broker(ground, log, config)
    await broker.start()
    yield Asking(broker)
    await broker.stop()
    await log.stop()
    ground.offload.close()
