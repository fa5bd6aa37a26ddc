"""Keys go where Kafka's own clients send them."""

from __future__ import annotations

from types import ModuleType

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted

from headrace.format import partitioning

SOURCE = interpreted("format.partitioning")


@given(st.binary(max_size=100), st.integers(1, 1000))
def test_as_other_clients(key: bytes, partitions: int) -> None:
    expected = aiokafka_murmur2(key) & 0xFFFFFFFF
    assert partitioning.murmur2(key) == expected
    assert SOURCE.murmur2(key) == expected
    assert partitioning.partition_of(key, partitions) == (expected & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize("build", [partitioning, SOURCE])
def test_known_values(build: ModuleType) -> None:
    # From the tests of Kafka's own Utils.murmur2.
    for key, expected in ((b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)):
        assert build.murmur2(key) == expected & 0xFFFFFFFF
