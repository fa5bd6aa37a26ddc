"""Rules and roles over HTTP: list, grant, revoke, and why something is allowed or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.security.filters import PatternFilter, RuleFilter
from headrace.broker.security.rights import Permission
from headrace.broker.security.roles import ROLES, Grant
from headrace.broker.security.rules import ANY, Rule
from headrace.broker.security.words import (
    parse_operation,
    parse_resource,
    parse_word,
    pattern_of,
    word,
    written_name,
)
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.operations import Operation, Query, after_query, limit_query, text_query
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.rights import on_cluster
from headrace.doors.http.api.schemas import Named, array, flag, integer, nullable, object_of, text
from headrace.doors.http.server.messages import Request
from headrace.errors import InvalidRule, TooManyIdentities

RULES_MAX = 1_000
RESOURCES, OPERATIONS, PERMISSIONS = (tuple(map(word, kind)) for kind in (Resource, Right, Permission))
NAME_DOC = "With `*` at its end, all names that begin so; `*` alone, every name."

RULE = Named(
    "Rule",
    object_of(
        {
            "user": text("`*`: each; `ANONYMOUS`: clients that are not authenticated."),
            "operation": text(choices=OPERATIONS),
            "resource": text(choices=RESOURCES),
            "name": text(NAME_DOC),
        },
        {"permission": text(choices=PERMISSIONS), "host": text("An address, or `*`.")},
    ),
)
GRANT = Named(
    "Grant",
    object_of(
        {"user": text(), "role": text(choices=tuple(ROLES))},
        {"name": text(f"The topics of a producer or consumer. {NAME_DOC}"), "group": text("The groups of a consumer.")},
    ),
)
FILTER: tuple[Query, ...] = (
    text_query("user", "Only those of this user, as rules have it."),
    Query("resource", text("Only those on this kind of resource.", RESOURCES)),
    text_query("name", "Only those of this name, as rules have it."),
    Query("operation", text("Only those for this operation, as rules have it.", OPERATIONS)),
    text_query("host", "Only those for this address, as rules have it."),
    Query("permission", text("Only those that allow, or that deny.", PERMISSIONS)),
)


def _rule(given: Mapping[str, Any]) -> Rule:
    fields = Fields(given)
    permission = parse_word(Permission, fields.text("permission", "allow"), "permission")
    operation, resource = parse_operation(fields.text("operation")), parse_resource(fields.text("resource"))
    user, host, name = fields.text("user"), fields.text("host", ANY), fields.text("name")
    fields.end()
    return Rule(permission, user, host, operation, resource, *pattern_of(name))


def _describe(rule: Rule) -> dict[str, Any]:
    return {
        "permission": word(rule.permission),
        "user": rule.user,
        "host": rule.host,
        "operation": word(rule.operation),
        "resource": word(rule.resource),
        "name": written_name(rule),
    }


def _filter(fields: Fields) -> RuleFilter:
    resource, operation, permission = (fields.text(each) for each in ("resource", "operation", "permission"))
    name = fields.text("name")
    pattern, bare = pattern_of(name)
    return RuleFilter(
        resource=parse_resource(resource) if resource else None,
        name=bare if name else None,
        pattern=PatternFilter(pattern) if name else PatternFilter.ANY,
        user=fields.text("user") or None,
        host=fields.text("host") or None,
        operation=parse_operation(operation) if operation else None,
        permission=parse_word(Permission, permission, "permission") if permission else None,
    )


@Operation(
    "GET",
    "/v1/acls",
    "Lists rules, without those of roles.",
    rights=on_cluster(Right.DESCRIBE),
    query=(*FILTER, limit_query(), after_query()),
    answer=object_of({"rules": array(RULE), "next": nullable(text("Where to go on."))}),
    errors=(InvalidRule,),
    command="acl list",
)
async def list_rules(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    wanted = _filter(fields)
    limit, after = fields.number("limit", 100, 1, 1_000), fields.text("after")
    fields.end()
    rules = {str(rule): rule for rule in broker.security.grants.find_rules(request.session, wanted)}
    found = sorted(key for key in rules if key > after)
    return {
        "rules": [_describe(rules[key]) for key in found[:limit]],
        "next": found[limit - 1] if len(found) > limit else None,
    }


@Operation(
    "POST",
    "/v1/acls",
    "Adds rules. They are in force at once.",
    rights=on_cluster(Right.ALTER),
    body=object_of({"rules": array(RULE, most=RULES_MAX)}),
    answer=object_of({"added": integer("Those that were there before are not counted.")}),
    errors=(InvalidRule, TooManyIdentities),
    command="acl grant USER OPERATION RESOURCE NAME",
)
async def add_rules(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    given = fields.take("rules", [])
    fields.end()
    if not isinstance(given, list) or len(given) > RULES_MAX or not all(isinstance(each, dict) for each in given):
        raise bad_request(f"rules must be a list of at most {RULES_MAX} objects")
    return {"added": await broker.security.grants.add_rules(request.session, [_rule(each) for each in given])}


@Operation(
    "DELETE",
    "/v1/acls",
    "Removes the rules that a filter means. What loses its right ends at once.",
    rights=on_cluster(Right.ALTER),
    query=FILTER,
    answer=object_of({"rules": array(RULE, "Those that were removed.")}),
    errors=(InvalidRule,),
    command="acl revoke",
    doc="One part of the filter must be given: without any it would mean all rules.",
)
async def remove_rules(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    wanted = _filter(fields)
    fields.end()
    if wanted == RuleFilter():
        raise bad_request("a filter without any part means all rules. Say which: by user, resource, name, ...")
    (found,) = await broker.security.grants.remove_rules(request.session, [wanted])
    return {"rules": [_describe(rule) for rule in found]}


@Operation(
    "GET",
    "/v1/acls/check",
    "Shows whether a user may do something, and which rule decides.",
    rights=on_cluster(Right.DESCRIBE),
    query=(
        text_query("user", "`ANONYMOUS`: a client that is not authenticated.", True),
        Query("operation", text(choices=OPERATIONS), True),
        Query("resource", text(choices=RESOURCES), True),
        text_query("name", "", True),
        text_query("host", "The address from which it comes."),
    ),
    answer=object_of(
        {
            "allowed": flag("As `authorization=on` decides."),
            "why": text(),
            "rule": nullable(RULE),
            "authorization": text("The setting: off and log-only refuse nothing.", ("off", "log-only", "on")),
        }
    ),
    errors=(InvalidRule,),
    command="acl check USER OPERATION RESOURCE NAME",
)
async def check(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    user, host, name = fields.text("user"), fields.text("host"), fields.text("name")
    operation, resource = parse_operation(fields.text("operation")), parse_resource(fields.text("resource"))
    fields.end()
    found = broker.security.grants.explain(request.session, user, host, operation, resource, name)
    return {
        "allowed": found.is_allowed,
        "why": found.why,
        "rule": None if found.rule is None else _describe(found.rule),
        "authorization": broker.config.authorization,
    }


# --- roles ------------------------------------------------------------------------------------------------------------


def _grant(fields: Fields) -> Grant:
    grant = Grant(fields.text("user"), fields.text("role"), fields.text("name", ANY), fields.text("group", ANY))
    fields.end()
    return grant


def _describe_grant(grant: Grant) -> dict[str, Any]:
    return {"user": grant.user, "role": grant.role, "name": grant.name, "group": grant.group}


@Operation(
    "GET",
    "/v1/roles",
    "Lists the roles of users.",
    rights=on_cluster(Right.DESCRIBE),
    query=(text_query("user", "Only those of this user."), limit_query(), after_query()),
    answer=object_of({"roles": array(GRANT), "next": nullable(text("Where to go on."))}),
    command="role list [USER]",
)
async def list_roles(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    user, limit, after = fields.text("user"), fields.number("limit", 100, 1, 1_000), fields.text("after")
    fields.end()
    grants = {f"{each.user} {each}": each for each in broker.security.grants.roles(request.session, user or None)}
    found = sorted(key for key in grants if key > after)
    return {
        "roles": [_describe_grant(grants[key]) for key in found[:limit]],
        "next": found[limit - 1] if len(found) > limit else None,
    }


@Operation(
    "POST",
    "/v1/roles",
    "Gives a user a role.",
    rights=on_cluster(Right.ALTER),
    body=GRANT,
    answer=GRANT,
    errors=(InvalidRule, TooManyIdentities),
    command="role grant USER ROLE",
)
async def grant_role(broker: Broker, request: Request, names: Names) -> Answer:
    grant = _grant(Fields.of_body(request.body))
    await broker.security.grants.grant_role(request.session, grant)
    return _describe_grant(grant)


@Operation(
    "DELETE",
    "/v1/roles",
    "Takes a role from a user.",
    rights=on_cluster(Right.ALTER),
    query=(
        text_query("user", "", True),
        Query("role", text(choices=tuple(ROLES)), True),
        text_query("name", "As it was granted."),
        text_query("group", "As it was granted."),
    ),
    answer=GRANT,
    errors=(InvalidRule,),
    command="role revoke USER ROLE",
)
async def revoke_role(broker: Broker, request: Request, names: Names) -> Answer:
    grant = _grant(Fields.of_query(request))
    await broker.security.grants.revoke_role(request.session, grant)
    return _describe_grant(grant)
