"""Transactions that took too long and cannot be ended: tried again and again, and said now and then."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.captured_logs import capture_logs

from headrace.broker.broker import Broker
from headrace.broker.transactions import Status
from headrace.config import Config
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.world import Ending, World


def test_a_partition_that_is_offline_for_long_is_not_said_every_second() -> None:
    async def live(runtime: Runtime) -> None:
        config = Config(data="simulated", transactions_partitions=1)
        log = NativeLog(runtime, config)
        await log.start()
        broker = Broker(runtime, log, config)
        await broker.start()
        topic = await broker.topics.create("rain", 2)
        transactions = broker.transactions
        for name in ("payments", "orders"):
            granted = await transactions.init(name, 1_000)
            await transactions.add(name, *granted, [("rain", 0), ("rain", 1)])
        broken: Any = topic.partitions[1]
        assert broken.loaded
        broken.offline = "the disk does not answer"
        with capture_logs() as lines:
            await asyncio.sleep(150)
        said = [each for each in lines if "could not abort" in each["event"]]
        assert len(said) == 3
        assert said[0]["error"] == "the disk does not answer"
        assert 115 < said[1]["times"] < 125
        broken.offline = None
        await asyncio.sleep(2)
        assert {state.status for _, state in await transactions.list()} == {Status.COMPLETE_ABORT}
        await broker.stop()
        await log.stop()

    assert World(0).run(live) is Ending.DONE
