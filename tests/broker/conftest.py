"""A broker on the native log in a temporary folder, without doors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.config import Config
from headrace.ground.real import real_ground
from headrace.log.native import NativeLog

Starting = Callable[..., Any]


@pytest.fixture
async def start_broker(tmp_path: Path) -> AsyncIterator[Starting]:
    """Start a broker with these settings; every call is a new start on the same data, after the last one's stop."""
    stops: list[Callable[[], Any]] = []

    async def stop_last() -> None:
        if stops:
            await stops.pop()()

    async def start(**settings: Any) -> Broker:
        await stop_last()
        config = Config(data=str(tmp_path), **{"durability": "async", **settings})
        ground = real_ground(config.data)
        log = NativeLog(ground, config)
        await log.start()
        broker = Broker(ground, log, config)
        await broker.start()

        async def stop() -> None:
            await broker.stop()
            await log.stop()
            ground.offload.close()

        stops.append(stop)
        return broker

    yield start
    await stop_last()


@pytest.fixture
async def broker(start_broker: Starting) -> Broker:
    """A broker with the default settings."""
    started: Broker = await start_broker()
    return started
