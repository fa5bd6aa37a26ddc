"""The Kafka door: Kafka's wire protocol, to the level of a Kafka 4 broker on one node."""

from __future__ import annotations

import sys

# kio imports hypothesis wherever it is installed, only to register strategies for its types: a third of a second and
# 15 MB that a broker in a developer's environment would pay with its first request. Hide it for that one import.
if "hypothesis" not in sys.modules and "kio.static._phantom" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]
