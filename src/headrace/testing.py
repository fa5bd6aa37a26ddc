"""A pytest plugin, installed with the package: a real broker for users' tests, without containers.

    def test_orders(headrace_broker):
        producer = confluent_kafka.Producer({"bootstrap.servers": headrace_broker.kafka})
        writer = nsq.Writer([headrace_broker.nsq])
        app = App("shop", headrace_broker.url)

`headrace_broker` is a new broker for each test, `headrace_session_broker` one for the whole run. Both are empty, on
free ports of the loopback interface, with `durability="async"`: a test does not survive a power cut anyway. For tests
of applications that need no broker at all there is `headrace.sdk.testing`; docs/testing.md describes both. Override
the fixture `headrace_settings` (or `headrace_session_settings`) to give settings of `docs/configuration.md`, or mark a
test:

    @pytest.mark.headrace(num_partitions=3, auto_create_topics=False)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.embedded import Broker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "headrace(**settings): settings of this test's headrace_broker")


@pytest.fixture
def headrace_settings() -> dict[str, Any]:
    """Settings of `headrace_broker`; override it in a module or conftest."""
    return {}


@pytest.fixture(scope="session")
def headrace_session_settings() -> dict[str, Any]:
    """Settings of `headrace_session_broker`; override it in a conftest."""
    return {}


@pytest.fixture
def headrace_broker(request: pytest.FixtureRequest, headrace_settings: dict[str, Any]) -> Iterator[Broker]:
    """A broker of this test's own."""
    marked: dict[str, Any] = {}
    for marker in request.node.iter_markers("headrace"):
        # The nearest marker comes first, and wins.
        marked = {**marker.kwargs, **marked}
    yield from _run_broker({**headrace_settings, **marked})


@pytest.fixture(scope="session")
def headrace_session_broker(headrace_session_settings: dict[str, Any]) -> Iterator[Broker]:
    """A broker that all tests of the run share: name topics and groups apart."""
    yield from _run_broker(headrace_session_settings)


def _run_broker(settings: dict[str, Any]) -> Iterator[Broker]:
    # Imported here: the plugin is loaded in every run of pytest where the package is installed.
    from headrace.embedded import Broker

    with Broker(**{"durability": "async", **settings}) as broker:
        yield broker
