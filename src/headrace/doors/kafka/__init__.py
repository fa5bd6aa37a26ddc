"""The Kafka door: Kafka's wire protocol, to the level of a Kafka 4 broker on one node."""

from __future__ import annotations

# Before the first import of kio, which it makes a light one.
import headrace.format.error_codes  # noqa: F401
