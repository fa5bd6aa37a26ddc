"""Quotas over HTTP: list, set and delete."""

from __future__ import annotations

import json
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.quotas.entities import DEFAULT, Entity, make_entity, to_key
from headrace.broker.quotas.filters import Match, MatchType, QuotaFilter
from headrace.broker.quotas.kinds import RULES, EntityType
from headrace.broker.quotas.table import Values
from headrace.broker.security import Operation as Right
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.operations import Operation, after_query, limit_query, text_query
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.rights import on_cluster
from headrace.doors.http.api.schemas import Named, Schema, array, decimal, flag, nullable, object_of, text
from headrace.doors.http.server.messages import Request
from headrace.errors import InvalidQuota

# The parts of an entity, as fields and parameters are called.
PARTS = {"user": EntityType.USER, "client_id": EntityType.CLIENT_ID, "ip": EntityType.IP}
NAMES = {kind: name for name, kind in PARTS.items()}
PART_DOCS = {
    "user": f"The name of a user, or `{DEFAULT}`.",
    "client_id": f"A client id, or `{DEFAULT}`.",
    "ip": f"An address, or `{DEFAULT}`.",
}
KINDS: dict[str, Schema] = {kind.value: nullable(decimal(rule.help)) for kind, rule in RULES.items()}

ENTITY = Named("QuotaEntity", object_of({}, {name: text(doc) for name, doc in PART_DOCS.items()}))
QUOTAS = Named("Quotas", object_of({}, {kind.value: decimal(rule.help) for kind, rule in RULES.items()}))
ENTRY = object_of({"entity": ENTITY, "quotas": QUOTAS})
PARAMETERS = tuple(text_query(name, doc) for name, doc in PART_DOCS.items())


@Operation(
    "GET",
    "/v1/quotas",
    "Lists the quotas that are set, of all users, client ids and addresses, or of those that are named.",
    rights=on_cluster(Right.DESCRIBE_CONFIGS),
    query=(*PARAMETERS, limit_query(), after_query()),
    answer=object_of({"quotas": array(ENTRY), "next": nullable(text("Where to go on."))}),
    errors=(InvalidQuota,),
    command="quota list",
)
async def list_quotas(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    wanted = _entity(fields)
    limit = fields.number("limit", 100, 1, 1_000)
    after = _key(fields.text("after"))
    fields.end()
    matches = [Match(kind, MatchType.DEFAULT if name is None else MatchType.EXACT, name) for kind, name in wanted]
    found = broker.quota_book.find(request.session, QuotaFilter(matches))
    rest = [(entity, values) for entity, values in found.items() if to_key(entity) > after]
    return {
        "quotas": [_describe(*each) for each in rest[:limit]],
        "next": json.dumps(to_key(rest[limit - 1][0])) if len(rest) > limit else None,
    }


@Operation(
    "PUT",
    "/v1/quotas",
    "Sets quotas of a user, a client id, both together, or an address. They take effect at once.",
    rights=on_cluster(Right.ALTER_CONFIGS),
    body=object_of({"entity": ENTITY, "quotas": object_of({}, KINDS, "Those that are given; null removes one.")}),
    answer=ENTRY,
    errors=(InvalidQuota,),
    command="quota set QUOTA=VALUE...",
)
async def set_quotas(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    parts = Fields(fields.object("entity"))
    given = fields.object("quotas")
    fields.end()
    named = _entity(parts)
    parts.end()
    entity = make_entity(named)
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise bad_request(f"{name} must be a number, or null (got {value!r})")
    put = {name: value for name, value in given.items() if value is not None}
    drop = [name for name, value in given.items() if value is None]
    return _describe(entity, await broker.quota_book.alter(request.session, entity, put, drop))


@Operation(
    "DELETE",
    "/v1/quotas",
    "Removes all quotas of a user, a client id, both together, or an address.",
    rights=on_cluster(Right.ALTER_CONFIGS),
    query=PARAMETERS,
    answer=object_of({"entity": ENTITY, "deleted": flag("Whether it had any.")}),
    errors=(InvalidQuota,),
    command="quota delete",
)
async def delete_quotas(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    entity = make_entity(_entity(fields))
    fields.end()
    deleted = await broker.quota_book.delete(request.session, entity)
    return {"entity": _describe(entity, {})["entity"], "deleted": deleted}


def _entity(fields: Fields) -> Entity:
    """The parts that are named; none may be."""
    given = ((kind, fields.text(name)) for name, kind in PARTS.items())
    return tuple((kind, None if name == DEFAULT else name) for kind, name in given if name)


def _key(after: str) -> tuple[str, ...]:
    """Where to go on. Raises HttpError."""
    try:
        key = json.loads(after) if after else []
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, list) or not all(isinstance(each, str) for each in key):
        raise bad_request(f"after must be an earlier answer's `next`, unchanged (got {after!r})")
    return tuple(key)


def _describe(entity: Entity, values: Values) -> dict[str, Any]:
    return {
        "entity": {NAMES[kind]: DEFAULT if name is None else name for kind, name in entity},
        "quotas": {kind.value: int(value) if value == int(value) else value for kind, value in values.items()},
    }
