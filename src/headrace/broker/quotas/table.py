"""Which quota is a client's: Kafka's order of precedence.

For each kind the most particular entity counts that has it: a user with a client id before a user, both before the
defaults, and a named user before a client id whatever its own quota says. Whatever the entity names is shared: a quota
of a user is one for all of its connections together, the default of users one for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.broker.quota_settings import QuotaSettings
from headrace.broker.quotas.entities import Entity
from headrace.broker.quotas.kinds import EntityType, Kind

Values = Mapping[Kind, float]
USER, CLIENT_ID = EntityType.USER, EntityType.CLIENT_ID
RATES = frozenset((Kind.PRODUCE, Kind.CONSUME, Kind.REQUEST, Kind.MUTATE))
"""Those of which each client has a bucket."""


class Limit(NamedTuple):
    """A quota that holds for a client."""

    value: float
    entity: Entity
    """Whose it is; empty: it is a setting of the broker."""
    sharers: tuple[str | None, str | None]
    """Who draws on it together: the user, and the client id, where the entity tells them apart."""


def client_entities(user: str, client_id: str) -> list[tuple[Entity, tuple[str | None, str | None]]]:
    """The entities that a client falls under, with who shares a quota of each, in the order in which they count."""
    found: list[tuple[Entity, tuple[str | None, str | None]]] = []
    for of_user in (((USER, user),), ((USER, None),), ()):
        for of_client in (((CLIENT_ID, client_id),), ((CLIENT_ID, None),), ()):
            entity: Entity = (*of_user, *of_client)
            if entity:
                found.append((entity, (user if of_user else None, client_id if of_client else None)))
    return found


class QuotaTable:
    """All quotas that are set, over those that the broker's settings give."""

    def __init__(self, config: QuotaSettings) -> None:
        self._of_clients = _given({Kind.PRODUCE: config.quota_produce_bytes, Kind.CONSUME: config.quota_fetch_bytes})
        self._of_users = _given(
            {
                Kind.CONNECTIONS: config.quota_user_connections,
                Kind.TOPICS: config.quota_user_topics,
                Kind.QUEUES: config.quota_user_queues,
            }
        )
        self._of_addresses = _given({Kind.CONNECTIONS: config.quota_address_connections})
        self.entities: dict[Entity, Values] = {}
        # Entities with a rate.
        self._rated = 0

    @property
    def limits_clients(self) -> bool:
        """Whether there is any rate that a client may have to keep to."""
        return bool(self._of_clients) or self._rated > 0

    def put(self, entity: Entity, values: Values) -> None:
        """Set all quotas of an entity; none: it has no more."""
        before = self.entities.pop(entity, {})
        self._rated += (not RATES.isdisjoint(values)) - (not RATES.isdisjoint(before))
        if values:
            self.entities[entity] = dict(values)

    def rates(self, user: str, client_id: str) -> dict[Kind, Limit]:
        """What a client must keep to. The broker's own settings are for each client id, as Kafka's were."""
        found: dict[Kind, Limit] = {}
        for entity, sharers in client_entities(user, client_id):
            for kind, value in self.entities.get(entity, {}).items():
                if kind in RATES:
                    found.setdefault(kind, Limit(value, entity, sharers))
        for kind, value in self._of_clients.items():
            found.setdefault(kind, Limit(value, (), (None, client_id)))
        return found

    def of_user(self, kind: Kind, user: str) -> float | None:
        """A bound of a user; None: there is none."""
        return self._of(kind, EntityType.USER, user, self._of_users)

    def of_address(self, kind: Kind, host: str) -> float | None:
        """A quota of an address; None: there is none."""
        return self._of(kind, EntityType.IP, host, self._of_addresses)

    def _of(self, kind: Kind, of: EntityType, name: str, given: Values) -> float | None:
        for entity in (((of, name),), ((of, None),)):
            value = self.entities.get(entity, {}).get(kind)
            if value is not None:
                return value
        return given.get(kind)


def _given(values: Values) -> Values:
    """The settings that are on."""
    return {kind: value for kind, value in values.items() if value}
