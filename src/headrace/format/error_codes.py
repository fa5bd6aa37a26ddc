"""Kafka's error codes, and which of them are retriable: kio's, for the Kafka door and for clients.

kio imports hypothesis wherever it is installed, only to register strategies for its types: a third of a second and
15 MB that every process in a developer's environment would pay. It is hidden for that one import.
"""

from __future__ import annotations

import sys

if "hypothesis" not in sys.modules and "kio.static._phantom" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]

from kio.schema.errors import ErrorCode as ErrorCode
