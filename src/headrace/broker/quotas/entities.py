"""Whose a quota is: a user's, a client id's, of both together, or an address's; each by its name, or as the default of
all of its type."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from headrace.broker.quotas.kinds import EntityType
from headrace.errors import InvalidQuota

NAME_CHARACTERS_MAX = 255
DEFAULT = "<default>"
"""How commands and paths name the default."""

Entity = tuple[tuple[EntityType, str | None], ...]
"""Types with names, in the order of `EntityType`; no name: the default of the type."""
ORDER = tuple(EntityType)


def make_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """The entity of these parts. Raises InvalidQuota."""
    found: dict[EntityType, str | None] = {}
    for kind, name in parts:
        if kind not in EntityType._value2member_map_:
            raise InvalidQuota(f"{kind[:80]!r} cannot have a quota. Use one of {', '.join(EntityType)}.")
        if EntityType(kind) in found:
            raise InvalidQuota(f"the type {kind} occurs more than once in the entity")
        found[EntityType(kind)] = None if name is None else _clean(EntityType(kind), name)
    if not found:
        raise InvalidQuota(f"the entity is empty: name one of {', '.join(EntityType)}")
    if EntityType.IP in found and len(found) > 1:
        raise InvalidQuota("an address has quotas of its own: it cannot be combined with a user or a client id")
    return tuple((kind, found[kind]) for kind in ORDER if kind in found)


def _clean(kind: EntityType, name: str) -> str:
    if not name or len(name) > NAME_CHARACTERS_MAX:
        raise InvalidQuota(f"the name of a {kind} must have 1 to {NAME_CHARACTERS_MAX} characters (got {len(name)})")
    if kind is not EntityType.IP:
        return name
    try:
        return str(ip_address(name))
    except ValueError:
        raise InvalidQuota(f"{name[:80]!r} is not an IP address") from None


def address_name(host: str) -> str:
    """An address as an entity names it: that of a client of IPv4 is the same through a socket of IPv6."""
    return host.removeprefix("::ffff:") if "." in host else host.partition("%")[0]


def types_of(entity: Entity) -> frozenset[EntityType]:
    return frozenset(kind for kind, _ in entity)


def describe(entity: Entity) -> dict[str, str]:
    """The entity as JSON and commands show it."""
    return {kind.value: DEFAULT if name is None else name for kind, name in entity}


# --- how the store names them -----------------------------------------------------------------------------------------


def to_key(entity: Entity) -> tuple[str, ...]:
    """As the key of a record: a name is never empty, so the default is."""
    return tuple(part for kind, name in entity for part in (kind.value, name or ""))


def from_key(key: tuple[str, ...]) -> Entity:
    """The entity of such a key. Raises InvalidQuota."""
    return make_entity((kind, name or None) for kind, name in zip(key[::2], key[1::2], strict=True))
