"""Users and their API tokens over HTTP. A password is only ever in a body, and a token's text only in the answer to its
creation."""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.security import Operation as Right
from headrace.broker.security.accounts import KEEP_OLD_MAX_MS
from headrace.broker.security.rights import Inside
from headrace.broker.security.tokens import NOTE_CHARACTERS_MAX, SCOPE_RULES_MAX, Token, scope_text
from headrace.broker.security.users import User
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.operations import Operation, after_query, limit_query, text_query
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.rights import on_cluster
from headrace.doors.http.api.schemas import Named, array, flag, integer, nullable, object_of, text
from headrace.doors.http.server.messages import Request
from headrace.errors import InvalidCredentials, InvalidRule, TooManyIdentities, UnknownToken, UnknownUser, UserExists

CREDENTIAL = object_of(
    {
        "mechanism": text(choices=("SCRAM-SHA-256", "SCRAM-SHA-512")),
        "iterations": integer(),
        "expires_ms": nullable(integer("When it ends, because the password was changed.")),
    }
)
USER = Named(
    "User",
    object_of(
        {
            "name": text(),
            "credentials": array(CREDENTIAL, "What verifies its password; nothing that is secret."),
            "tokens": integer("How many API tokens it has."),
        }
    ),
)
TOKEN_FIELDS = {
    "id": text(),
    "user": text(),
    "created_ms": integer(),
    "expires_ms": nullable(integer()),
    "scope": array(text(), "What it may be used for at most; none: all that its user may do."),
    "note": text(),
    "signing": flag("It signs requests: RocketMQ's access key is its id."),
}
TOKEN = Named("Token", object_of(TOKEN_FIELDS))


@Operation(
    "GET",
    "/v1/users",
    "Lists users.",
    rights=on_cluster(Right.DESCRIBE),
    query=(limit_query(), after_query()),
    answer=object_of({"users": array(USER), "next": nullable(text("Where to go on."))}),
    command="user list",
)
async def list_users(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    limit, after = fields.number("limit", 100, 1, 1_000), fields.text("after")
    fields.end()
    found = [user for user in broker.security.accounts.users(request.session) if user.name > after]
    counts: dict[str, int] = {}
    for token in broker.security.users.tokens.values():
        counts[token.user] = counts.get(token.user, 0) + 1
    return {
        "users": [_describe_user(broker, user, counts.get(user.name, 0)) for user in found[:limit]],
        "next": found[limit - 1].name if len(found) > limit else None,
    }


def _describe_user(broker: Broker, user: User, tokens: int) -> dict[str, Any]:
    now = broker.runtime.clock.now_ms()
    return {
        "name": user.name,
        "credentials": [
            {"mechanism": each.mechanism.value, "iterations": each.iterations, "expires_ms": each.expires_ms or None}
            for each in user.credentials
            if each.is_valid(now)
        ],
        "tokens": tokens,
    }


@Operation(
    "POST",
    "/v1/users",
    "Creates a user.",
    rights=on_cluster(Right.ALTER),
    body=object_of({"name": text()}, {"password": nullable(text("Without one it has API tokens alone."))}),
    answer=object_of({"name": text()}),
    errors=(UserExists, InvalidCredentials, TooManyIdentities),
    command="user create NAME",
)
async def create_user(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    name, password = fields.text("name"), fields.take("password")
    fields.end()
    if password is not None and not isinstance(password, str):
        raise bad_request("password must be a text")
    await broker.security.accounts.create_user(request.session, name, password)
    return {"name": name}


@Operation(
    "PUT",
    "/v1/users/{user}/password",
    "Changes a user's password.",
    rights=on_cluster(Right.ALTER),
    body=object_of(
        {"password": text()},
        {"keep_old_ms": integer("How long the old one stays valid, too.", 0, KEEP_OLD_MAX_MS, 0)},
    ),
    answer=object_of({"name": text()}),
    errors=(UnknownUser, InvalidCredentials),
    command="user set-password NAME",
)
async def set_password(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    password, keep = fields.text("password"), fields.number("keep_old_ms", 0, 0, KEEP_OLD_MAX_MS)
    fields.end()
    await broker.security.accounts.set_password(request.session, names["user"], password, keep)
    return {"name": names["user"]}


@Operation(
    "DELETE",
    "/v1/users/{user}",
    "Deletes a user with its tokens and roles, and ends its sessions. Rules that name it stay.",
    rights=on_cluster(Right.ALTER),
    answer=object_of({"name": text(), "deleted": flag()}),
    errors=(UnknownUser,),
    command="user delete NAME",
)
async def delete_user(broker: Broker, request: Request, names: Names) -> Answer:
    await broker.security.accounts.delete_user(request.session, names["user"])
    return {"name": names["user"], "deleted": True}


@Operation(
    "GET",
    "/v1/tokens",
    "Lists API tokens, without their texts.",
    rights=Inside("DESCRIBE cluster, or DESCRIBE_TOKENS user USER"),
    query=(text_query("user", "Only those of this user."), limit_query(), after_query()),
    answer=object_of({"tokens": array(TOKEN), "next": nullable(text("Where to go on."))}),
    command="token list [USER]",
)
async def list_tokens(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    user, limit, after = fields.text("user"), fields.number("limit", 100, 1, 1_000), fields.text("after")
    fields.end()
    tokens = broker.security.accounts.tokens(request.session, user or None)
    found = [token for token in sorted(tokens, key=lambda token: token.id) if token.id > after]
    return {
        "tokens": [_describe_token(token) for token in found[:limit]],
        "next": found[limit - 1].id if len(found) > limit else None,
    }


def _describe_token(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "user": token.user,
        "created_ms": token.created_at,
        "expires_ms": token.expires_at or None,
        "scope": [] if token.scope is None else [scope_text(each) for each in token.scope.rules],
        "note": token.note,
        "signing": token.signs,
    }


@Operation(
    "POST",
    "/v1/tokens",
    "Creates an API token of a user. Its text is in this answer and never again.",
    rights=Inside("ALTER cluster, or CREATE_TOKENS user USER"),
    body=object_of(
        {"user": text()},
        {
            "expires_ms": nullable(integer("When it ends, in milliseconds since 1970.")),
            "scope": array(text("As in `write:topic:orders*`."), most=SCOPE_RULES_MAX),
            "note": text(maxLength=NOTE_CHARACTERS_MAX),
            "signing": flag("It can sign requests, as RocketMQ's clients do; the broker then keeps its text."),
        },
    ),
    answer=object_of({**TOKEN_FIELDS, "token": text("What its owner shows. Keep it secret.")}),
    errors=(UnknownUser, InvalidCredentials, InvalidRule, TooManyIdentities),
    command="token create USER",
)
async def create_token(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    user, expires, note = fields.text("user"), fields.number("expires_ms", 0), fields.text("note")
    scope, signing = fields.take("scope", []), fields.flag("signing")
    fields.end()
    if not isinstance(scope, list) or not all(isinstance(each, str) for each in scope):
        raise bad_request("scope must be a list of texts")
    token, shown = await broker.security.accounts.create_token(
        request.session, user, expires_at=expires, scope=scope, note=note, signing=signing
    )
    return {**_describe_token(token), "token": shown}


@Operation(
    "DELETE",
    "/v1/tokens/{id}",
    "Revokes an API token, and ends the sessions that it began.",
    rights=Inside("ALTER cluster, or CREATE_TOKENS user USER, of the token's user"),
    answer=object_of({"id": text(), "revoked": flag()}),
    errors=(UnknownToken,),
    command="token revoke ID",
)
async def revoke_token(broker: Broker, request: Request, names: Names) -> Answer:
    await broker.security.accounts.revoke_token(request.session, names["id"])
    return {"id": names["id"], "revoked": True}
