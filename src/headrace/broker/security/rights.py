"""What can be asked for: an operation on a resource.

Both are Kafka's model, with its numbers, and a few resources more for what Kafka does not have. Those have numbers that
no Kafka client knows: they are never told to one.
"""

from __future__ import annotations

from enum import IntEnum


class Resource(IntEnum):
    """What a right is about. Its name is a topic's, a group's, and so on."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7
    QUEUE = 100
    """Named TOPIC/QUEUE."""
    TIMER = 101
    """Named as the topic that the timer appends to."""
    SCHEMA = 102
    APP = 103
    CONSOLE = 104
    """What the console keeps: alerts, registrations."""

    @property
    def is_kafkas(self) -> bool:
        """Whether Kafka clients know it."""
        return self < Resource.QUEUE


CLUSTER_NAME = "kafka-cluster"
"""The one resource of the kind CLUSTER."""


class Operation(IntEnum):
    """What is done to a resource."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Pattern(IntEnum):
    """How the name of a rule is compared with a resource's."""

    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """What a rule says. Deny beats allow."""

    DENY = 2
    ALLOW = 3


def queue_name(topic: str, queue: str) -> str:
    """The name of a queue as a resource."""
    return f"{topic}/{queue}"
