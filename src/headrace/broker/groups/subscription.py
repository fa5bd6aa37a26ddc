"""The topics that a consumer subscribes to.

A member's metadata is opaque to the group, except that consumers all write it in one format (the consumer protocol),
whose first field behind the version is the list of topics. Later versions only add fields behind it.
"""

from __future__ import annotations

import struct
from struct import Struct

CONSUMER = "consumer"
"""The protocol type of consumers; Connect workers and others have their own."""

_VERSION_AND_COUNT = Struct(">hi")
_LENGTH = Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics named in a consumer's metadata, or None where it is not that format."""
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(metadata, 0)
        position = _VERSION_AND_COUNT.size
        # Every name takes at least its length: a larger count is not a list.
        if version < 0 or not 0 <= count <= len(metadata) // _LENGTH.size:
            return None
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if length < 0 or position + length > len(metadata):
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
        return frozenset(topics)
    except (struct.error, UnicodeDecodeError):
        return None
