"""DescribeClientQuotas (48), versions 0 to 1: the quotas that are set, by Kafka's filters.

What Headrace adds to Kafka's quotas (`connections_max` and the like) is among them.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.quotas.filters import Match, MatchType, QuotaFilter
from headrace.broker.quotas.kinds import EntityType
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import KafkaError, error_code
from headrace.errors import HeadraceError


async def handle(call: Call, request: Any) -> dict[str, Any]:
    try:
        wanted = _filter(request)
        found = call.broker.quota_book.find(call.connection.session, wanted)
    except HeadraceError as error:
        return {"error_code": error_code(error), "error_message": str(error), "entries": None}
    entries = [
        {
            "entity": [{"entity_type": kind.value, "entity_name": name} for kind, name in entity],
            "values": [{"key": kind.value, "value": float(value)} for kind, value in values.items()],
        }
        for entity, values in found.items()
    ]
    return {"error_code": ErrorCode.none, "error_message": None, "entries": entries}


def _filter(request: Any) -> QuotaFilter:
    """Raises KafkaError."""
    matches: dict[str, Match] = {}
    for each in request.components:
        kind = each.entity_type
        if kind in matches:
            raise _invalid(f"the type {kind} occurs more than once in the filter")
        if not kind:
            raise _invalid("a component of the filter has no type")
        if kind not in EntityType._value2member_map_:
            raise KafkaError(
                ErrorCode.unsupported_version, f"{kind[:80]!r} cannot have quotas. Use one of {', '.join(EntityType)}."
            )
        if each.match_type not in MatchType._value2member_map_:
            raise _invalid(f"{each.match_type} is not a match type. Use 0 (exact), 1 (default) or 2 (any).")
        by = MatchType(each.match_type)
        if (each.match is not None) != (by is MatchType.EXACT):
            wanted = "needs a name" if by is MatchType.EXACT else "takes no name"
            raise _invalid(f"a match of type {by.value} {wanted}")
        matches[kind] = Match(EntityType(kind), by, each.match)
    if EntityType.IP in matches and len(matches) > 1:
        raise _invalid("an address has quotas of its own: its filter cannot be combined with a user or a client id")
    return QuotaFilter(tuple(matches.values()), request.strict)


def _invalid(sentence: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, sentence)
