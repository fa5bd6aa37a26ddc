"""Idempotent publish for every door: a message whose deduplication id was seen within the topic's window is not stored
again. See `docs/deduplication.md`."""

from headrace.broker.deduplication.deduplication import Deduplication, Stored

__all__ = ["Deduplication", "Stored"]
