from __future__ import annotations

import asyncio

import pytest
from tests.waiting import SECONDS

from headrace.embedded import Broker
from headrace.sdk import App

pytest_plugins = ["pytester"]


def test_a_broker_of_the_tests_own(headrace_broker: Broker):
    assert headrace_broker.kafka.startswith("127.0.0.1:")


def test_a_broker_for_the_run(headrace_session_broker: Broker, headrace_broker: Broker):
    assert headrace_session_broker.kafka != headrace_broker.kafka


async def test_an_application_on_it(headrace_broker: Broker):
    app = App("shop", headrace_broker.url)
    came = asyncio.Event()

    @app.subscribe("orders")
    async def take(raw: bytes) -> None:
        came.set()

    async with asyncio.timeout(SECONDS), app:
        await app.publish("orders", b"x")
        await came.wait()


def test_settings_by_fixture_and_marker(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def headrace_settings():
            return {"num_partitions": 2, "node_id": 5}

        @pytest.mark.headrace(num_partitions=3)
        def test_marked(headrace_broker):
            assert headrace_broker.config.num_partitions == 3
            assert headrace_broker.config.node_id == 5
            assert headrace_broker.config.durability == "async"

        @pytest.mark.headrace(num_partitions=0)
        def test_wrong(headrace_broker):
            pass
        """
    )
    outcome = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"
    )
    outcome.assert_outcomes(passed=1, errors=1)
    outcome.stdout.fnmatch_lines(["*num_partitions: 0 is out of range*"])
