"""The quotas that are set: listed, changed, and kept with users and rules in the broker's own topic.

Each call asks whether the session may, so that no door has to. A change is durable and in force when it returns. As
that topic is, quotas are there again after a start, at the next leader, and on each node that follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from headrace.broker.quota_settings import QuotaSettings
from headrace.broker.quotas.entities import Entity, from_key, to_key, types_of
from headrace.broker.quotas.filters import QuotaFilter
from headrace.broker.quotas.kinds import check_value, kind_of
from headrace.broker.quotas.quotas import Quotas
from headrace.broker.quotas.table import Values
from headrace.broker.security import Operation, Resource, Security, Session
from headrace.broker.security.rights import CLUSTER_NAME
from headrace.broker.security.store import Json, Key, RecordKind
from headrace.errors import InvalidQuota


class QuotaBook:
    """All quotas that are set."""

    def __init__(self, security: Security, quotas: Quotas, config: QuotaSettings) -> None:
        self._security = security
        self._quotas = quotas
        self._entities_max = config.quota_entities_max
        self._table = security.store.table(QUOTA, self._on_change)
        security.on_login.append(self._on_login)

    def _on_change(self, key: Key, before: Values | None, now: Values | None) -> None:
        self._quotas.apply(from_key(key), now or {})

    def _on_login(self, session: Session) -> None:
        if not self._quotas.connections.admit_user(session):
            # Once the door has done what it does with a new identity.
            reason = "the user has as many connections as it may have (connections_max)"
            asyncio.get_running_loop().call_soon(self._security.end, session, reason)

    def find(self, session: Session, wanted: QuotaFilter) -> dict[Entity, Values]:
        """The quotas of the entities that fit, in order. Raises NotAuthorized."""
        self._security.check(session, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER_NAME)
        found = ((from_key(key), self._table.values[key]) for key in sorted(self._table.values))
        return {entity: values for entity, values in found if wanted.fits(entity)}

    async def alter(
        self,
        session: Session,
        entity: Entity,
        put: Mapping[str, float],
        drop: Collection[str] = (),
        *,
        validate_only: bool = False,
    ) -> Values:
        """Change quotas of an entity, by their names; all that it then has. Raises NotAuthorized or InvalidQuota, and
        what the log raises."""
        self._security.check(session, Operation.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER_NAME)
        types = types_of(entity)
        gone = {kind_of(name, types) for name in drop}
        given = {kind: check_value(kind, value) for kind, value in ((kind_of(each, types), put[each]) for each in put)}
        key = to_key(entity)
        store = self._security.store
        async with store.changing():
            before = self._table.values.get(key, {})
            after = {kind: value for kind, value in before.items() if kind not in gone} | given
            if after and not before and len(self._table.values) >= self._entities_max:
                raise InvalidQuota(
                    f"{self._entities_max} users, client ids and addresses have quotas already (quota_entities_max). "
                    "Delete some, or use defaults."
                )
            if after != before and not validate_only:
                await store.write([self._table.put(key, after) if after else self._table.drop(key)])
        return after

    async def delete(self, session: Session, entity: Entity) -> bool:
        """Remove all quotas of an entity; whether it had any. Raises NotAuthorized, and what the log raises."""
        self._security.check(session, Operation.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER_NAME)
        key = to_key(entity)
        store = self._security.store
        async with store.changing():
            is_there = key in self._table.values
            if is_there:
                await store.write([self._table.drop(key)])
        return is_there


def _write(values: Values) -> Json:
    return {kind.value: value for kind, value in values.items()}


def _read(key: Key, stored: Json) -> Values:
    types = types_of(from_key(key))
    return {kind_of(name, types): float(value) for name, value in stored.items()}


QUOTA: RecordKind[Values] = RecordKind("quota", _write, _read)
