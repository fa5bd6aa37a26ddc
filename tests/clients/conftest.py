"""What tests with real clients share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from tests.clients.members import Member


@pytest.fixture
def members() -> Iterator[list[Member]]:
    made: list[Member] = []
    yield made
    for member in made:
        with contextlib.suppress(RuntimeError):
            member.consumer.close()
