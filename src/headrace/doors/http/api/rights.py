"""The rights that routes ask for, as their operations declare them.

The name of the resource is a text with names in braces, of the path or of the query, as in `{topic}/{queue}`. A route
that learns only from its body, or from what it finds, for whom it works declares `Inside`, and its handler asks.
Whether a name exists is told only to those who may know it: rights are asked for by name first.
"""

from __future__ import annotations

from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import CLUSTER_NAME, Open, Requires

LISTED = Open("shows what the client may describe, and leaves out the rest")


def on_topic(*operations: Operation, by: str = "{topic}") -> tuple[Requires, ...]:
    """Rights on a topic."""
    return tuple(Requires(each, Resource.TOPIC, by) for each in operations)


def on_queue(*operations: Operation, by: str = "{topic}/{queue}") -> tuple[Requires, ...]:
    """Rights on a queue."""
    return tuple(Requires(each, Resource.QUEUE, by) for each in operations)


def on_group(*operations: Operation, by: str = "{group}") -> tuple[Requires, ...]:
    """Rights on a group."""
    return tuple(Requires(each, Resource.GROUP, by) for each in operations)


def on_cluster(*operations: Operation) -> tuple[Requires, ...]:
    """Rights on the cluster."""
    return tuple(Requires(each, Resource.CLUSTER, CLUSTER_NAME) for each in operations)
