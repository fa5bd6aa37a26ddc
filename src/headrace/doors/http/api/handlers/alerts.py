"""Alerts over HTTP: rules, silences, channels, and the lease of the console that notifies.

The broker keeps and judges them; the console's process looks at the figures, and notifies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from headrace.broker.broker import Broker
from headrace.broker.console import DEFAULT_RULES, FIGURES, Document
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.security.rights import Open, Requires
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.operations import Operation, Refusal
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.schemas import (
    Named,
    Shape,
    array,
    decimal,
    flag,
    integer,
    mapping,
    nullable,
    object_of,
    text,
)
from headrace.doors.http.server.messages import HttpError, Request
from headrace.errors import DocumentsFull, StorageFailed, VersionConflict

RULE, SILENCE, CHANNEL = "rule", "silence", "channel"
SEVERITIES = ("info", "warning", "critical")
COMPARES = (">", ">=", "<", "<=")
KINDS = ("webhook", "slack", "email")
SCOPES = ("topic", "group", "queue", "owner")
MATCHERS = ("rule", *SCOPES)
ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,79}\Z")
TEXT_MAX = 1_000
WORDS_MAX = 50
FOR_MAX_MS = 7 * 86_400_000
SILENCE_MAX_MS = 366 * 86_400_000
LEASE_MAX_MS = 600_000
FIGURE_NAMES = tuple(each.name for each in FIGURES)
UNKNOWN = Refusal(404, "UnknownDocument")
CHANGES = (VersionConflict, DocumentsFull, StorageFailed)


def on_alerts(*operations: Right) -> tuple[Requires, ...]:
    """Rights on alerts."""
    return tuple(Requires(each, Resource.CONSOLE, "alerts") for each in operations)


RULE_FIELDS: Mapping[str, Shape] = {
    "name": text("What people read."),
    "figure": text("What is compared.", FIGURE_NAMES),
    "threshold": decimal(),
}
RULE_MORE: Mapping[str, Shape] = {
    "scope": mapping(text(), f"Patterns with `*` and `?`, by {', '.join(SCOPES)}; everything without."),
    "compare": text("`>` if none is given.", COMPARES),
    "for_ms": integer("How long it must be so.", 0, FOR_MAX_MS),
    "severity": text("`warning` if none is given.", SEVERITIES),
    "channels": array(text(), "Whom to notify; none: all that there are."),
    "enabled": flag("true if it is not given."),
    "labels": mapping(text()),
    "runbook": text("Where it stands what to do: an http or https address."),
}
KEPT: Mapping[str, Shape] = {
    "id": text(),
    "version": integer("0: the built-in one."),
    "updated_ms": nullable(integer()),
    "updated_by": text(),
}
ANY_VERSION = integer(
    "That of the one that is replaced (0: there is none); it is refused if that was changed since.", 0
)
RULE_SHAPE = Named(
    "AlertRule",
    object_of({**KEPT, **RULE_FIELDS, **RULE_MORE, "built_in": flag("It came with the broker.")}),
)
SILENCE_SHAPE = Named(
    "Silence",
    object_of(
        {
            **KEPT,
            "matchers": mapping(text(), f"Patterns with `*` and `?`, by {', '.join(MATCHERS)}: all must fit."),
            "starts_ms": integer(),
            "ends_ms": integer(),
            "comment": text(),
            "created_by": text(),
            "created_ms": integer(),
        }
    ),
)
CHANNEL_SHAPE = Named(
    "AlertChannel",
    object_of(
        {
            **KEPT,
            "kind": text(choices=KINDS),
            "url": text("Of a webhook; what is behind its host is never shown."),
            "to": array(text(), "Addresses of e-mail."),
            "secret_set": flag(),
            "enabled": flag(),
        }
    ),
)
DELETED = object_of({"id": text(), "deleted": flag()})


@Operation(
    "GET",
    "/v1/alerts/figures",
    "Lists what rules of alerts can be about.",
    rights=Open("tells what there is to set, and nothing that is kept"),
    answer=object_of(
        {
            "figures": array(
                object_of({"name": text(), "unit": text(), "doc": text(), "scopes": array(text(), "To narrow it by.")})
            )
        }
    ),
)
async def list_alert_figures(broker: Broker, request: Request, names: Names) -> Answer:
    return {"figures": [{**each._asdict(), "scopes": list(each.scopes)} for each in FIGURES]}


# --- rules ------------------------------------------------------------------------------------------------------------


@Operation(
    "GET",
    "/v1/alerts/rules",
    "Lists the rules of alerts, built-in ones included.",
    rights=on_alerts(Right.DESCRIBE),
    answer=object_of({"rules": array(RULE_SHAPE)}),
    errors=(StorageFailed,),
    command="alert list",
)
async def list_alert_rules(broker: Broker, request: Request, names: Names) -> Answer:
    kept = {each.id: each for each in await broker.documents.all(RULE)}
    return {"rules": [_rule(id, kept.get(id)) for id in sorted({*kept, *DEFAULT_RULES})]}


@Operation(
    "GET",
    "/v1/alerts/rules/{id}",
    "Shows a rule.",
    rights=on_alerts(Right.DESCRIBE),
    answer=RULE_SHAPE,
    errors=(UNKNOWN, StorageFailed),
    command="alert list",
)
async def show_alert_rule(broker: Broker, request: Request, names: Names) -> Answer:
    id = names["id"]
    kept = await broker.documents.get(RULE, id)
    if kept is None and id not in DEFAULT_RULES:
        raise _unknown(RULE, id)
    return _rule(id, kept)


@Operation(
    "PUT",
    "/v1/alerts/rules/{id}",
    "Creates a rule, or replaces it.",
    rights=on_alerts(Right.WRITE),
    body=object_of(RULE_FIELDS, {**RULE_MORE, "version": ANY_VERSION}),
    answer=RULE_SHAPE,
    errors=CHANGES,
    command="alert set ID",
)
async def put_alert_rule(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    figure, threshold = fields.text("figure"), fields.take("threshold")
    body = {
        "name": _text(fields, "name"),
        "figure": figure,
        "scope": _texts(fields, "scope", SCOPES),
        "compare": _choice(fields, "compare", COMPARES, ">"),
        "threshold": threshold,
        "for_ms": fields.number("for_ms", 0, 0, FOR_MAX_MS),
        "severity": _choice(fields, "severity", SEVERITIES, "warning"),
        "channels": _list(fields, "channels"),
        "enabled": fields.take("enabled", True),
        "labels": _texts(fields, "labels"),
        "runbook": _text(fields, "runbook"),
    }
    expected = _expected(fields)
    fields.end()
    _check_given("name", body["name"])
    if figure not in FIGURE_NAMES:
        raise bad_request(f"figure must be one of {', '.join(FIGURE_NAMES)} (got {figure!r})")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not math.isfinite(threshold):
        raise bad_request(f"threshold must be a number (got {threshold!r})")
    if not isinstance(body["enabled"], bool):
        raise bad_request(f"enabled must be true or false (got {body['enabled']!r})")
    if body["runbook"]:
        _check_url("runbook", str(body["runbook"]))
    return _rule(names["id"], await _put(broker, request, RULE, names["id"], body, expected))


@Operation(
    "DELETE",
    "/v1/alerts/rules/{id}",
    "Deletes a rule. A built-in rule returns to its original form.",
    rights=on_alerts(Right.WRITE),
    answer=DELETED,
    errors=(UNKNOWN, StorageFailed),
    command="alert delete ID",
)
async def delete_alert_rule(broker: Broker, request: Request, names: Names) -> Answer:
    return await _delete(broker, request, RULE, names["id"], may_miss=names["id"] in DEFAULT_RULES)


def _rule(id: str, kept: Document | None) -> dict[str, Any]:
    default = DEFAULT_RULES.get(id)
    body = kept.body if kept is not None else default
    assert body is not None
    return {**_head(id, kept), **body, "built_in": default is not None}


# --- silences ---------------------------------------------------------------------------------------------------------


@Operation(
    "GET",
    "/v1/alerts/silences",
    "Lists the silences, those that have ended, too.",
    rights=on_alerts(Right.DESCRIBE),
    answer=object_of({"silences": array(SILENCE_SHAPE)}),
    errors=(StorageFailed,),
    command="alert silences",
)
async def list_silences(broker: Broker, request: Request, names: Names) -> Answer:
    return {"silences": [{**_head(each.id, each), **each.body} for each in await broker.documents.all(SILENCE)]}


@Operation(
    "PUT",
    "/v1/alerts/silences/{id}",
    "Creates a silence, or replaces it: while it lasts, alerts that match send no notices.",
    rights=on_alerts(Right.WRITE),
    body=object_of(
        {"matchers": mapping(text()), "ends_ms": integer()},
        {"starts_ms": integer("Now if it is not given."), "comment": text(), "version": ANY_VERSION},
    ),
    answer=SILENCE_SHAPE,
    errors=CHANGES,
    command="alert silence ID",
)
async def put_silence(broker: Broker, request: Request, names: Names) -> Answer:
    now = broker.runtime.clock.now_ms()
    fields = Fields.of_body(request.body)
    matchers = _texts(fields, "matchers", MATCHERS)
    starts, ends = fields.number("starts_ms", now), fields.number("ends_ms", 0)
    comment, expected = _text(fields, "comment"), _expected(fields)
    fields.end()
    if not matchers:
        raise bad_request('matchers is empty: specify what is silenced, as in {"topic": "orders*"}; {"rule": "*"}: all')
    if not starts < ends <= starts + SILENCE_MAX_MS:
        raise bad_request(f"ends_ms is {ends}: it must lie behind starts_ms ({starts}), and within a year of it")
    before = await broker.documents.get(SILENCE, names["id"])
    body = {
        "matchers": matchers,
        "starts_ms": starts,
        "ends_ms": ends,
        "comment": comment,
        "created_by": request.session.user if before is None else before.body["created_by"],
        "created_ms": now if before is None else before.body["created_ms"],
    }
    kept = await _put(broker, request, SILENCE, names["id"], body, expected)
    return {**_head(kept.id, kept), **kept.body}


@Operation(
    "DELETE",
    "/v1/alerts/silences/{id}",
    "Deletes a silence.",
    rights=on_alerts(Right.WRITE),
    answer=DELETED,
    errors=(UNKNOWN, StorageFailed),
    command="alert unsilence ID",
)
async def delete_silence(broker: Broker, request: Request, names: Names) -> Answer:
    return await _delete(broker, request, SILENCE, names["id"])


# --- channels ---------------------------------------------------------------------------------------------------------


@Operation(
    "GET",
    "/v1/alerts/channels",
    "Lists the channels over which people are notified, without their secrets.",
    rights=on_alerts(Right.DESCRIBE),
    answer=object_of({"channels": array(CHANNEL_SHAPE)}),
    errors=(StorageFailed,),
    command="alert channels",
)
async def list_channels(broker: Broker, request: Request, names: Names) -> Answer:
    return {"channels": [_channel(each) for each in await broker.documents.all(CHANNEL)]}


@Operation(
    "PUT",
    "/v1/alerts/channels/{id}",
    "Creates a channel, or replaces it. What is left out of its address and secret stays.",
    rights=on_alerts(Right.WRITE),
    body=object_of(
        {"kind": text(choices=KINDS)},
        {
            "url": text("Of a webhook, or of Slack or what takes the same."),
            "to": array(text(), "Addresses of e-mail.", WORDS_MAX),
            "secret": text(
                "Signs what a webhook gets, or is the password of the mail server. It is never shown again."
            ),
            "enabled": flag(),
            "version": ANY_VERSION,
        },
    ),
    answer=CHANNEL_SHAPE,
    errors=CHANGES,
)
async def put_channel(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    kind, to = _text(fields, "kind"), _list(fields, "to")
    url, secret = _text(fields, "url"), _text(fields, "secret")
    enabled, expected = fields.take("enabled", True), _expected(fields)
    fields.end()
    if kind not in KINDS:
        raise bad_request(f"kind must be one of {', '.join(KINDS)} (got {kind!r})")
    before = await broker.documents.get(CHANNEL, names["id"])
    if before is not None and before.body["kind"] == kind:
        url, secret = url or before.body["url"], secret or before.body["secret"]
        to = to or before.body["to"]
    if kind == "email":
        if not to or not all("@" in each for each in to):
            raise bad_request(f"to must be a list of e-mail addresses (got {to!r})")
    else:
        _check_url("url", url)
    if not isinstance(enabled, bool):
        raise bad_request(f"enabled must be true or false (got {enabled!r})")
    body = {"kind": kind, "url": url, "to": to, "secret": secret, "enabled": enabled}
    return _channel(await _put(broker, request, CHANNEL, names["id"], body, expected))


@Operation(
    "DELETE",
    "/v1/alerts/channels/{id}",
    "Deletes a channel.",
    rights=on_alerts(Right.WRITE),
    answer=DELETED,
    errors=(UNKNOWN, StorageFailed),
)
async def delete_channel(broker: Broker, request: Request, names: Names) -> Answer:
    return await _delete(broker, request, CHANNEL, names["id"])


@Operation(
    "GET",
    "/v1/alerts/channels/{id}/secret",
    "Gives the address and the secret of a channel: for the process that notifies.",
    rights=on_alerts(Right.READ),
    answer=object_of({"id": text(), "url": text(), "secret": text()}),
    errors=(UNKNOWN, StorageFailed),
)
async def show_channel_secret(broker: Broker, request: Request, names: Names) -> Answer:
    kept = await broker.documents.get(CHANNEL, names["id"])
    if kept is None:
        raise _unknown(CHANNEL, names["id"])
    return {"id": kept.id, "url": kept.body["url"], "secret": kept.body["secret"]}


def _channel(kept: Document) -> dict[str, Any]:
    body = dict(kept.body)
    secret, url = body.pop("secret"), urlsplit(body["url"])
    # Slack's addresses are secrets themselves.
    body["url"] = f"{url.scheme}://{url.hostname}/..." if body["url"] else ""
    return {**_head(kept.id, kept), **body, "secret_set": bool(secret)}


# --- the lease --------------------------------------------------------------------------------------------------------


@Operation(
    "POST",
    "/v1/alerts/lease",
    "Takes the lease of the console that notifies, renews it, or gives it up: one of several holds it.",
    rights=on_alerts(Right.WRITE),
    body=object_of({"holder": text(), "ttl_ms": integer("For how long; 0: give it up.", 0, LEASE_MAX_MS)}),
    answer=object_of({"held": flag("By the one that asks."), "holder": text(), "left_ms": integer()}),
)
async def take_alert_lease(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    holder = _text(fields, "holder")
    ttl_ms = fields.number("ttl_ms", 0, 0, LEASE_MAX_MS)
    fields.end()
    _check_given("holder", holder)
    lease = broker.alert_lease
    held = lease.take(holder, ttl_ms)
    return {"held": held, "holder": lease.holder, "left_ms": lease.left_ms()}


# --- what several have ------------------------------------------------------------------------------------------------


def _head(id: str, kept: Document | None) -> dict[str, Any]:
    if kept is None:
        return {"id": id, "version": 0, "updated_ms": None, "updated_by": ""}
    return {"id": id, "version": kept.version, "updated_ms": kept.updated_ms, "updated_by": kept.updated_by}


async def _put(
    broker: Broker, request: Request, kind: str, id: str, body: Mapping[str, Any], expected: int | None
) -> Document:
    if not ID.match(id):
        raise bad_request(f"{id[:80]!r} is not an id: 1 to 80 of a-z A-Z 0-9 . _ -, the first a letter or digit")
    kept = await broker.documents.put(kind, id, body, request.session.user, expected)
    broker.audit.record(request.session, f"{kind}.set", Resource.CONSOLE, id)
    return kept


async def _delete(broker: Broker, request: Request, kind: str, id: str, may_miss: bool = False) -> Answer:
    if not await broker.documents.delete(kind, id) and not may_miss:
        raise _unknown(kind, id)
    broker.audit.record(request.session, f"{kind}.delete", Resource.CONSOLE, id)
    return {"id": id, "deleted": True}


def _unknown(kind: str, id: str) -> HttpError:
    return HttpError(404, "UnknownDocument", f"there is no {kind} {id!r}")


def _expected(fields: Fields) -> int | None:
    return None if fields.take("version") is None else fields.number("version", 0)


def _text(fields: Fields, name: str) -> str:
    value = fields.text(name)
    if len(value) > TEXT_MAX:
        raise bad_request(f"{name} must have at most {TEXT_MAX} characters (got {len(value)})")
    return value


def _check_given(name: str, value: object) -> None:
    if not str(value).strip():
        raise bad_request(f"{name} is missing")


def _choice(fields: Fields, name: str, choices: tuple[str, ...], default: str) -> str:
    value = fields.text(name, default)
    if value not in choices:
        raise bad_request(f"{name} must be one of {', '.join(choices)} (got {value!r})")
    return value


def _list(fields: Fields, name: str) -> list[str]:
    given = fields.take(name, [])
    if not isinstance(given, list) or len(given) > WORDS_MAX or not all(_is_word(each) for each in given):
        raise bad_request(f"{name} must be a list of at most {WORDS_MAX} texts")
    return given


def _texts(fields: Fields, name: str, known: tuple[str, ...] = ()) -> dict[str, str]:
    given = fields.object(name)
    if len(given) > WORDS_MAX or not all(_is_word(each) for each in (*given, *given.values())):
        raise bad_request(f"{name} must be an object of at most {WORDS_MAX} texts")
    if unknown := [each for each in given if known and each not in known]:
        raise bad_request(f"{name} has {unknown[0]!r}. Use {', '.join(known)}.")
    return dict(given)


def _is_word(given: object) -> bool:
    return isinstance(given, str) and len(given) <= TEXT_MAX


def _check_url(name: str, given: str) -> None:
    try:
        url = urlsplit(given)
        is_address = url.scheme in ("http", "https") and bool(url.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        raise bad_request(f"{name} must be a URL that begins with http:// or https:// (got {given[:200]!r})")
