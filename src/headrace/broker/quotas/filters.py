"""Which quotas are asked for, by Kafka's filters: one match for each type; others may be there unless it is strict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from headrace.broker.quotas.entities import Entity
from headrace.broker.quotas.kinds import EntityType


class MatchType(IntEnum):
    """How a name is compared, by Kafka's numbers."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class Match(NamedTuple):
    """What an entity must have of a type."""

    kind: EntityType
    by: MatchType
    name: str | None = None

    def fits(self, name: str | None) -> bool:
        """Whether an entity with this name of the type does."""
        if self.by is MatchType.EXACT:
            return name is not None and name == self.name
        return self.by is MatchType.ANY or name is None


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """The entities that fit each of the matches."""

    matches: Sequence[Match] = ()
    is_strict: bool = False
    """Whether an entity may be of no other types."""

    def fits(self, entity: Entity) -> bool:
        names = dict(entity)
        if self.is_strict and len(names) != len(self.matches):
            return False
        return all(each.kind in names and each.fits(names[each.kind]) for each in self.matches)
