"""A broker without doors, on a real disk, for the tests of what stands on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.broker.broker import Broker
from headrace.config import Config
from headrace.log.native import NativeLog
from headrace.runtime.real import real_runtime


@asynccontextmanager
async def running(data: Path, **settings: Any) -> AsyncIterator[Broker]:
    """A broker on `data`, stopped cleanly at the end."""
    config = Config(data=str(data), **settings)
    runtime = real_runtime(config.data)
    log = NativeLog(runtime, config)
    await log.start()
    broker = Broker(runtime, log, config)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
        await log.stop()
        runtime.offload.close()
