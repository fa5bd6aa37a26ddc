"""The topics that a consumer subscribes to.

A member's metadata is opaque to the group, except that consumers all write it in one format (the consumer protocol),
whose first field behind the version is the list of topics. Later versions only add fields behind it.
"""

from __future__ import annotations

from headrace.broker.fields import Reader, UnreadableRecord

CONSUMER = "consumer"
"""The protocol type of consumers; Connect workers and others have their own."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics named in a consumer's metadata, or None where it is not that format."""
    reader = Reader(metadata)
    try:
        if reader.int16() < 0:
            return None
        return frozenset(reader.string() for _ in range(reader.count()))
    except UnreadableRecord:
        return None


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]]:
    """The partitions in a consumer's assignment; none where it is not that format."""
    reader = Reader(assignment)
    found: list[tuple[str, int]] = []
    try:
        if reader.int16() >= 0:
            for _ in range(reader.count()):
                topic = reader.string()
                found += [(topic, reader.int32()) for _ in range(reader.count())]
    except UnreadableRecord:
        return []
    return found
