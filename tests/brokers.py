"""A broker without doors, on a real disk or on a device that a test controls, for the tests of what stands on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.device import Device

from headrace.broker.broker import Broker
from headrace.broker.membership import Membership
from headrace.config import Config
from headrace.log.native import NativeLog
from headrace.runtime.real import real_runtime


@asynccontextmanager
async def running(data: Path | Device, membership: Membership | None = None, **settings: Any) -> AsyncIterator[Broker]:
    """A broker on `data`, stopped cleanly at the end."""
    config = Config(data=str(data), **settings)
    runtime = data.runtime() if isinstance(data, Device) else real_runtime(config.data)
    log = NativeLog(runtime, config)
    await log.start()
    broker = Broker(runtime, log, config, membership)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
        await log.stop()
        runtime.offload.close()
