"""What the tests of the framework run on besides a Headrace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.apache import running


@pytest.fixture(scope="session")
def apache() -> Iterator[str]:
    """The address of a real Apache Kafka; whoever asks for it carries the marker java."""
    with running() as address:
        yield address
