"""What the tests of the framework run on besides a Headrace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.peers import Missing, kafka


@pytest.fixture(scope="session")
def apache() -> Iterator[str]:
    """The address of a real Apache Kafka; whoever asks for it carries the marker java."""
    with pytest.MonkeyPatch.context() as patch:
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
