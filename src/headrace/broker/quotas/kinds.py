"""What a quota can limit, by Kafka's names, and what Headrace adds to those."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headrace.errors import InvalidQuota


class EntityType(StrEnum):
    """What kind of thing has a quota, in Kafka's words."""

    USER = "user"
    CLIENT_ID = "client-id"
    IP = "ip"


class Kind(StrEnum):
    """What a quota limits."""

    PRODUCE = "producer_byte_rate"
    CONSUME = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATE = "controller_mutation_rate"
    CONNECT = "connection_creation_rate"
    CONNECTIONS = "connections_max"
    TOPICS = "topics_max"
    QUEUES = "queues_max"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value of a kind may be."""

    of: frozenset[EntityType]
    """The types that an entity with this quota is made of."""
    is_whole: bool
    least: float
    most: float
    help: str


_CLIENT = frozenset((EntityType.USER, EntityType.CLIENT_ID))
_USER = frozenset((EntityType.USER,))
_IP = frozenset((EntityType.IP,))
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1

RULES: Mapping[Kind, Rule] = {
    Kind.PRODUCE: Rule(_CLIENT, True, 1, INT64_MAX, "Bytes a second that it may produce."),
    Kind.CONSUME: Rule(_CLIENT, True, 1, INT64_MAX, "Bytes a second that it may be sent."),
    Kind.REQUEST: Rule(
        _CLIENT, False, 0.001, INT32_MAX, "Percent of the time of the broker's loop that its requests may take."
    ),
    Kind.MUTATE: Rule(_CLIENT, False, 0.001, INT32_MAX, "Partitions a second that it may have made, added or deleted."),
    Kind.CONNECT: Rule(_IP, True, 1, INT32_MAX, "Connections a second that may come from it."),
    Kind.CONNECTIONS: Rule(_USER | _IP, True, 0, INT32_MAX, "Connections that it may have at once."),
    Kind.TOPICS: Rule(_USER, True, 0, INT32_MAX, "Topics that there may be of its making."),
    Kind.QUEUES: Rule(_USER, True, 0, INT32_MAX, "Queues that there may be of its making."),
}


def kind_of(name: str, types: frozenset[EntityType]) -> Kind:
    """The kind of that name, for an entity of these types. Raises InvalidQuota."""
    fitting = [kind.value for kind, rule in RULES.items() if _fits(kind, rule, types)]
    if name not in fitting:
        what = " and ".join(sorted(types))
        raise InvalidQuota(f"{name[:80]!r} is not a quota of {what}. Use one of {', '.join(fitting)}.")
    return Kind(name)


def _fits(kind: Kind, rule: Rule, types: frozenset[EntityType]) -> bool:
    # A bound is a user's or an address's: of parts of a user nothing is counted.
    return types <= rule.of and (len(types) == 1 or kind is not Kind.CONNECTIONS)


def check_value(kind: Kind, value: float) -> float:
    """The value as it is kept. Raises InvalidQuota."""
    rule = RULES[kind]
    if not math.isfinite(value) or not rule.least <= value <= rule.most:
        raise InvalidQuota(f"{kind} must be a number from {rule.least:g} to {rule.most:g} (got {value:g})")
    if rule.is_whole and value != int(value):
        raise InvalidQuota(f"{kind} must be a whole number (got {value:g})")
    return value
