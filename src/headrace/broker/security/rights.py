"""What can be asked for: an operation on a resource; and how a door declares what each of its requests asks for.

Operations and resources are Kafka's model, with its numbers, and a few resources more for what Kafka does not have.
Those have numbers that no Kafka client knows, and are never sent to one.

Every door has a table from each of its requests to a `Declaration`, and a test that fails for a request without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


IMPLIED: Mapping[Operation, frozenset[Operation]] = {
    Operation.ALL: frozenset(Operation),
    **{
        operation: frozenset((operation, Operation.DESCRIBE))
        for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
    },
    Operation.ALTER_CONFIGS: frozenset((Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)),
}
"""What a rule that allows an operation allows with it; another one allows itself alone. A rule that denies an operation
denies that alone, or with `ALL` each of them."""


_CHANGE = (Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE)
_CONFIGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
OPERATIONS: Mapping[Resource, frozenset[Operation]] = {
    Resource.TOPIC: frozenset((Operation.READ, Operation.WRITE, *_CHANGE, *_CONFIGS)),
    Resource.GROUP: frozenset((Operation.READ, Operation.DESCRIBE, Operation.DELETE, *_CONFIGS)),
    Resource.CLUSTER: frozenset(
        (
            *(Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION),
            *(Operation.IDEMPOTENT_WRITE, *_CONFIGS),
        )
    ),
    Resource.TRANSACTIONAL_ID: frozenset((Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT)),
    Resource.DELEGATION_TOKEN: frozenset((Operation.DESCRIBE,)),
    Resource.USER: frozenset((Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS)),
    Resource.QUEUE: frozenset((Operation.READ, *_CHANGE)),
    Resource.TIMER: frozenset((Operation.DESCRIBE, Operation.DELETE)),
    Resource.SCHEMA: frozenset((Operation.READ, Operation.WRITE, *_CHANGE)),
    Resource.APP: frozenset((Operation.READ, Operation.WRITE, *_CHANGE)),
    Resource.CONSOLE: frozenset((Operation.READ, Operation.WRITE, *_CHANGE)),
}
"""The operations that there are on each kind of resource, beside `ALL`."""


# --- declarations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Requires:
    """A right that a request asks for."""

    operation: Operation
    resource: Resource
    by: str
    """Where the name of the resource comes from: `each topic of the request`, `the group id`."""


@dataclass(frozen=True, slots=True)
class Open:
    """A request that asks for no right, for a reason."""

    why: str


@dataclass(frozen=True, slots=True)
class Inside:
    """A request whose rights depend on what is in it; they are asked for in one place."""

    where: str


Declaration = tuple[Requires, ...] | Open | Inside
"""What a request asks for. With several `Requires`, each of them."""
