"""A real Apache Kafka for tests that carry the marker java; skipped, with the reason, where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from bench.peers import Missing, kafka


@contextmanager
def running(properties: str = "") -> Iterator[str]:
    """Its address. `properties` come behind those of the benchmarks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka, "PROPERTIES", kafka.PROPERTIES + properties)
        # It lives for a minute: the first compiler is enough, and starts faster.
        patch.setattr(kafka, "HEAP", ["-Xmx320m", "-XX:TieredStopAtLevel=1"])
        try:
            peer = kafka.Kafka()
        except Missing as reason:
            pytest.skip(str(reason))
        try:
            peer.start()
            yield f"127.0.0.1:{peer.port}"
        finally:
            peer.stop()
