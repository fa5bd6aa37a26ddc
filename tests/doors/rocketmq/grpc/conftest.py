"""A broker that answers gRPC clients, and clients of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType
from uuid import uuid4

import pytest
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.grpc.client import RawGrpc

import headrace


@pytest.fixture(scope="module")
def broker() -> Iterator[headrace.Broker]:
    any_port = "127.0.0.1:0"
    settings = {"rocketmq": any_port, "rocketmq_grpc": any_port, "half_timeout_ms": 300, "half_check_interval_ms": 300}
    with headrace.Broker(durability="async", **settings) as broker:
        yield broker


@pytest.fixture
def grpc_client(broker: headrace.Broker) -> Iterator[RawGrpc]:
    with RawGrpc(broker.rocketmq_grpc) as client:
        yield client


@pytest.fixture
def raw(broker: headrace.Broker) -> Iterator[Raw]:
    with Raw(broker.rocketmq) as raw:
        yield raw


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    return f"g-{uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """RocketMQ's Python client. It makes a folder for its logs in the user's home when it is imported."""
    home = os.environ.get("HOME", "")
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    try:
        import rocketmq
    finally:
        os.environ["HOME"] = home
    return rocketmq
