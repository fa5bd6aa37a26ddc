"""A broker with the RocketMQ door, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from tests.doors.rocketmq.client import Raw

import headrace

# Messages that are sent back come at once, but for those of the highest level.
DELAY_LEVELS = "0s 0s 0s 0s 0s 1h"


@pytest.fixture(scope="module")
def broker() -> Iterator[headrace.Broker]:
    any_port = "127.0.0.1:0"
    settings = {"rocketmq": any_port, "rocketmq_namesrv": any_port, "rocketmq_delay_levels": DELAY_LEVELS}
    settings |= {"group_initial_rebalance_delay_ms": 0}
    with headrace.Broker(durability="async", **settings) as broker:
        yield broker


@pytest.fixture
def raw(broker: headrace.Broker) -> Iterator[Raw]:
    with Raw(broker.rocketmq) as raw:
        yield raw


@pytest.fixture
def namesrv(broker: headrace.Broker) -> Iterator[Raw]:
    with Raw(broker.rocketmq_namesrv) as raw:
        yield raw


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    return f"g-{uuid4().hex[:12]}"
