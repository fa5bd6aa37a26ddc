"""Registrations over HTTP: a team asks for a topic or a consumer, an operator decides, and what is used without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.console.documents import Document
from headrace.broker.console.registrations import (
    APPROVED,
    CONSUMER,
    KIND,
    KINDS,
    MODES,
    REJECTED,
    REQUESTED,
    STATES,
    TOPIC,
)
from headrace.broker.quotas.entities import make_entity
from headrace.broker.quotas.kinds import EntityType
from headrace.broker.quotas.kinds import Kind as QuotaKind
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource, Session
from headrace.broker.security.rights import CLUSTER_NAME, Requires
from headrace.broker.topics import check_name
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.handlers.alerts import RULE
from headrace.doors.http.api.listing import listing_answer, listing_of, listing_query, page_of
from headrace.doors.http.api.operations import Operation, Refusal, text_query
from headrace.doors.http.api.responses import Answer, Names, Page, json_response
from headrace.doors.http.api.schemas import Named, Shape, array, flag, integer, nullable, object_of, text
from headrace.doors.http.server.messages import HttpError, Request
from headrace.errors import (
    DocumentsFull,
    InvalidQuota,
    InvalidTopic,
    InvalidTopicConfig,
    StorageFailed,
    TopicExists,
    VersionConflict,
)

PATH = "/v1/registrations/{id}"
SORTS = ("topic", "owner", "kind", "state", "requested_ms")
TEXT_MAX = 2_000
CONTACTS_MAX = 20
# A consumer that was approved is watched: how long its oldest message may wait.
BEHIND_SECONDS = 300
FOR_MS = 300_000
# A quota is so many times what is expected.
HEADROOM = 2
UNKNOWN = Refusal(404, "UnknownRegistration")
EXISTS = Refusal(409, "RegistrationExists")
CHANGES = (VersionConflict, DocumentsFull, StorageFailed)


def on_registrations(*operations: Right) -> tuple[Requires, ...]:
    """Rights on registrations."""
    return tuple(Requires(each, Resource.CONSOLE, "registrations") for each in operations)


ASKED: Mapping[str, Shape] = {
    "kind": text("What is asked for.", KINDS),
    "topic": text(),
    "owner": text("The team."),
}
MORE: Mapping[str, Shape] = {
    "group": text("Of a consumer: its group, or its queue."),
    "contacts": array(text(), "", CONTACTS_MAX),
    "description": text(),
    "scenario": text("What it is for."),
    "rate": integer("Messages a second that are expected.", 0),
    "message_bytes": integer("How large a message is, about.", 0),
    "user": text("As whom its programs come: whose quota follows from it."),
    "retention_ms": integer("Of a topic: how long messages are to be kept; -1: for ever, 0: as the broker says.", -1),
    "partitions": integer("Of a topic; 0: as the broker says.", 0),
}
REGISTRATION = Named(
    "Registration",
    object_of(
        {
            "id": text(),
            **ASKED,
            **MORE,
            "state": text(choices=STATES),
            "requested_by": text(),
            "requested_ms": integer(),
            "decided_by": text(),
            "decided_ms": nullable(integer()),
            "reason": text("Of the decision."),
            "limits": flag("The topic's retention and the user's quota follow from it."),
            "version": integer(),
        }
    ),
)


@Operation(
    "GET",
    "/v1/registrations",
    "Lists registrations: searched by topic, group and owner, sorted, and in pages.",
    rights=on_registrations(Right.DESCRIBE),
    query=(*listing_query(SORTS), text_query("state", f"Only those that are {', '.join(STATES)}.")),
    answer=listing_answer(
        "registrations", REGISTRATION, mode=text("What happens to use without one (`registration`).", MODES)
    ),
    errors=(StorageFailed,),
    command="register list",
)
async def list_registrations(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    listing = listing_of(fields, SORTS)
    state = fields.text("state")
    fields.end()
    kept = await broker.documents.all(KIND)
    found = await page_of(
        kept,
        listing,
        lambda each: " ".join((each.body["topic"], each.body["group"], each.body["owner"])),
        lambda each: each.body[listing.sort],
        is_wanted=lambda each: state in ("", each.body["state"]),
    )
    page = await Page().fill(_describe(each) for each in found.items)
    rest = {"total": found.total, "offset": listing.offset, "mode": broker.registrations.mode}
    return page.response("registrations", rest)


@Operation(
    "GET",
    "/v1/registrations/unregistered",
    "Lists what was used without a registration since the start of the broker, where that is warned of or refused.",
    rights=on_registrations(Right.DESCRIBE),
    answer=object_of(
        {
            "mode": text(choices=MODES),
            "uses": array(
                object_of(
                    {
                        "kind": text(choices=KINDS),
                        "topic": text("Empty for a group: it may read several."),
                        "group": text(),
                        "first_ms": integer(),
                        "last_ms": integer(),
                        "count": integer("Times that it was asked for, not messages."),
                        "users": array(text()),
                    }
                )
            ),
        }
    ),
    command="register unregistered",
)
async def list_unregistered(broker: Broker, request: Request, names: Names) -> Answer:
    return {
        "mode": broker.registrations.mode,
        "uses": [
            {
                "kind": each.kind,
                "topic": each.topic,
                "group": each.group,
                "first_ms": each.first_ms,
                "last_ms": each.last_ms,
                "count": each.count,
                "users": list(each.users),
            }
            for each in broker.registrations.uses.values()
        ],
    }


@Operation(
    "POST",
    "/v1/registrations",
    "Registers a topic or a consumer. An operator approves it.",
    rights=on_registrations(Right.CREATE),
    body=object_of(ASKED, MORE),
    answer=REGISTRATION,
    status=201,
    errors=(EXISTS, InvalidTopic, *CHANGES),
    command="register topic TOPIC",
)
async def request_registration(broker: Broker, request: Request, names: Names) -> Answer:
    body = _body(Fields.of_body(request.body))
    for each in await broker.documents.all(KIND):
        if all(each.body[name] == body[name] for name in ("kind", "topic", "group")) and each.body["state"] != REJECTED:
            raise HttpError(409, "RegistrationExists", f"that is {each.body['state']} already, as {each.id}")
    id = broker.runtime.random.bytes(8).hex()
    asked = {
        **body,
        "state": REQUESTED,
        "requested_by": request.session.user,
        "requested_ms": broker.runtime.clock.now_ms(),
        "decided_by": "",
        "decided_ms": None,
        "reason": "",
        "limits": False,
    }
    kept = await broker.documents.put(KIND, id, asked, request.session.user, 0)
    broker.audit.record(request.session, "registration.request", Resource.CONSOLE, id, detail=body["topic"])
    return json_response(_describe(kept), 201)


@Operation(
    "GET",
    PATH,
    "Shows a registration.",
    rights=on_registrations(Right.DESCRIBE),
    answer=REGISTRATION,
    errors=(UNKNOWN, StorageFailed),
    command="register list",
)
async def show_registration(broker: Broker, request: Request, names: Names) -> Answer:
    return _describe(await _find(broker, names["id"]))


@Operation(
    "DELETE",
    PATH,
    "Deletes a registration, and the alert that came with it. The topic stays.",
    rights=on_registrations(Right.ALTER),
    answer=object_of({"id": text(), "deleted": flag()}),
    errors=(UNKNOWN, StorageFailed),
    command="register delete ID",
)
async def delete_registration(broker: Broker, request: Request, names: Names) -> Answer:
    kept = await _find(broker, names["id"])
    _check_quota(broker, request.session, kept.body)
    await broker.documents.delete(KIND, kept.id)
    await broker.documents.delete(RULE, _rule_id(kept.id))
    await _renew_quota(broker, request.session, kept)
    broker.audit.record(request.session, "registration.delete", Resource.CONSOLE, kept.id, detail=kept.body["topic"])
    return {"id": kept.id, "deleted": True}


@Operation(
    "POST",
    PATH + "/approve",
    "Approves a registration. A topic can be created with it, and a consumer is watched by an alert from then on.",
    rights=on_registrations(Right.ALTER),
    body=object_of(
        {},
        {
            "reason": text(),
            "create": flag("Create the topic, if it is missing; takes CREATE."),
            "limits": flag(
                "Set the topic's retention (takes ALTER_CONFIGS on it) and the quota of the user (on the cluster): "
                f"{HEADROOM} times the rate and size that its approved registrations with limits expect together."
            ),
        },
    ),
    answer=REGISTRATION,
    errors=(UNKNOWN, TopicExists, InvalidTopic, InvalidTopicConfig, InvalidQuota, *CHANGES),
    command="register approve ID",
)
async def approve_registration(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    reason, create, limits = fields.text("reason"), fields.flag("create"), fields.flag("limits")
    fields.end()
    kept = await _find(broker, names["id"])
    body, session = kept.body, request.session
    if limits:
        _check_limits(broker, session, body)
    if create and body["kind"] == TOPIC and broker.topics.get(body["topic"]) is None:
        broker.security.check_create(session, body["topic"])
        settings = {"retention.ms": str(body["retention_ms"])} if body["retention_ms"] else {}
        await broker.topics.create(body["topic"], body["partitions"] or -1, settings, session=session)
    decided = await _decide(broker, request, kept, APPROVED, reason, limits)
    if limits:
        await _set_retention(broker, session, body)
    await _renew_quota(broker, session, kept)
    if body["kind"] == CONSUMER:
        await broker.documents.put(RULE, _rule_id(kept.id), _rule(body), session.user)
    return _describe(decided)


@Operation(
    "POST",
    PATH + "/reject",
    "Rejects a registration, also one that was approved.",
    rights=on_registrations(Right.ALTER),
    body=object_of({}, {"reason": text()}),
    answer=REGISTRATION,
    errors=(UNKNOWN, *CHANGES),
    command="register reject ID",
)
async def reject_registration(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    reason = fields.text("reason")
    fields.end()
    kept = await _find(broker, names["id"])
    _check_quota(broker, request.session, kept.body)
    await broker.documents.delete(RULE, _rule_id(kept.id))
    decided = await _decide(broker, request, kept, REJECTED, reason)
    await _renew_quota(broker, request.session, kept)
    return _describe(decided)


async def _decide(
    broker: Broker, request: Request, kept: Document, state: str, reason: str, limits: bool = False
) -> Document:
    session = request.session
    now = broker.runtime.clock.now_ms()
    body = {**kept.body, "state": state, "decided_by": session.user, "decided_ms": now, "reason": reason[:TEXT_MAX]}
    body["limits"] = limits
    decided = await broker.documents.put(KIND, kept.id, body, session.user, kept.version)
    broker.audit.record(session, f"registration.{state}", Resource.CONSOLE, kept.id, detail=body["topic"])
    return decided


# --- limits -----------------------------------------------------------------------------------------------------------


def _check_limits(broker: Broker, session: Session, body: Mapping[str, Any]) -> None:
    """Before anything is done: whether there is something to limit, and whether the client may."""
    if _has_quota(body):
        broker.security.check(session, Right.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER_NAME)
    if _has_retention(body):
        broker.security.check(session, Right.ALTER_CONFIGS, Resource.TOPIC, body["topic"])
    if not _has_quota(body) and not _has_retention(body):
        raise bad_request(
            "no limit follows from the registration: it needs retention_ms (of a topic), or user, rate, message_bytes"
        )


def _check_quota(broker: Broker, session: Session, body: Mapping[str, Any]) -> None:
    """Before a registration with limits ends, and the user's quota changes with that."""
    if body.get("limits") and _has_quota(body):
        broker.security.check(session, Right.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER_NAME)


def _has_retention(body: Mapping[str, Any]) -> bool:
    return bool(body["kind"] == TOPIC and body["retention_ms"])


def _has_quota(body: Mapping[str, Any]) -> bool:
    return bool(body.get("user") and body["rate"] and body.get("message_bytes"))


async def _set_retention(broker: Broker, session: Session, body: Mapping[str, Any]) -> None:
    if _has_retention(body) and broker.topics.get(body["topic"]) is not None:
        retention = {"retention.ms": str(body["retention_ms"])}
        await broker.topics.alter_config(body["topic"], lambda old: {**old, **retention}, session)


async def _renew_quota(broker: Broker, session: Session, kept: Document) -> None:
    """Set the user's quota anew by all that is approved for it, if this registration has to do with it."""
    decided = await broker.documents.get(KIND, kept.id)
    now_limited = decided is not None and decided.body.get("limits")
    if not _has_quota(kept.body) or not (now_limited or kept.body.get("limits")):
        return
    user, kind = kept.body["user"], kept.body["kind"]
    together = sum(
        each.body["rate"] * each.body["message_bytes"]
        for each in await broker.documents.all(KIND)
        if each.body.get("limits")
        and each.body["state"] == APPROVED
        and each.body["kind"] == kind
        and each.body["user"] == user
        and _has_quota(each.body)
    )
    name = (QuotaKind.PRODUCE if kind == TOPIC else QuotaKind.CONSUME).value
    entity = make_entity(((EntityType.USER, user),))
    if together:
        await broker.quota_book.alter(session, entity, {name: together * HEADROOM})
    else:
        await broker.quota_book.alter(session, entity, {}, [name])


def _rule_id(id: str) -> str:
    return f"registration-{id}"


def _rule(body: Mapping[str, Any]) -> dict[str, Any]:
    """The alert that comes with a consumer."""
    return {
        "name": f"{body['group']} is behind on {body['topic']}",
        "figure": "group_lag_seconds",
        "scope": {"group": body["group"], "topic": body["topic"]},
        "compare": ">",
        "threshold": BEHIND_SECONDS,
        "for_ms": FOR_MS,
        "severity": "warning",
        "channels": [],
        "enabled": True,
        "labels": {"owner": body["owner"]},
        "runbook": "",
    }


async def _find(broker: Broker, id: str) -> Document:
    kept = await broker.documents.get(KIND, id)
    if kept is None:
        raise HttpError(404, "UnknownRegistration", f"there is no registration {id!r}")
    return kept


def _describe(kept: Document) -> dict[str, Any]:
    # Older ones have no user, and no limits.
    return {"id": kept.id, "user": "", "message_bytes": 0, "limits": False, **kept.body, "version": kept.version}


def _body(fields: Fields) -> dict[str, Any]:
    body: dict[str, Any] = {
        name: fields.text(name) for name in ("kind", "topic", "group", "owner", "description", "scenario", "user")
    }
    contacts = fields.take("contacts", [])
    body["contacts"] = contacts
    body["rate"] = fields.number("rate", 0)
    body["message_bytes"] = fields.number("message_bytes", 0)
    body["retention_ms"] = fields.number("retention_ms", 0, -1)
    body["partitions"] = fields.number("partitions", 0, 0, (1 << 31) - 1)
    fields.end()
    if body["kind"] not in KINDS:
        raise bad_request(f"kind must be one of {', '.join(KINDS)} (got {body['kind']!r})")
    check_name(body["topic"])
    if not body["owner"].strip():
        raise bad_request("owner is missing: name the team")
    if bool(body["group"]) != (body["kind"] == CONSUMER):
        raise bad_request("group is of a consumer, which has one, and of no topic")
    if long := [name for name, value in body.items() if isinstance(value, str) and len(value) > TEXT_MAX]:
        raise bad_request(f"{long[0]} has more than {TEXT_MAX} characters")
    if (
        not isinstance(contacts, list)
        or len(contacts) > CONTACTS_MAX
        or not all(isinstance(each, str) and len(each) <= TEXT_MAX for each in contacts)
    ):
        raise bad_request(f"contacts is a list of at most {CONTACTS_MAX} texts")
    return body
