"""What the tests of the framework run on besides a Headrace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests import apache as real
from tests.sdk.places import Place

import headrace


@pytest.fixture(scope="session")
def apache() -> Iterator[str]:
    """The address of a real Apache Kafka; whoever asks for it carries the marker java."""
    with real.running() as address:
        yield address


@pytest.fixture(scope="module", params=["headrace", pytest.param("apache", marks=pytest.mark.java)])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A system with Kafka's wire and nothing else."""
    if request.param == "apache":
        kafka = request.getfixturevalue("apache")
        yield Place(f"kafka://{kafka}", kafka)
        return
    with headrace.Broker(tmp_path_factory.mktemp("data")) as running:
        yield Place(f"kafka://{running.kafka}", running.kafka)
