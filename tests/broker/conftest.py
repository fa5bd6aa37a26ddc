"""A broker on the native log in a temporary folder, without doors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests import brokers

from headrace.broker.broker import Broker

Starting = Callable[..., Any]


@pytest.fixture
async def start_broker(tmp_path: Path) -> AsyncIterator[Starting]:
    """Start a broker with these settings; every call is a new start on the same data, after the last one's stop."""
    async with AsyncExitStack() as life:

        async def start(**settings: Any) -> Broker:
            await life.aclose()
            return await life.enter_async_context(brokers.running(tmp_path, **{"durability": "async", **settings}))

        yield start


@pytest.fixture
async def broker(start_broker: Starting) -> Broker:
    """A broker with the default settings."""
    started: Broker = await start_broker()
    return started
