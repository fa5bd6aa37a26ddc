"""Applications of the framework, and registrations: who uses which topic, and may."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.console.client import models as m
from headrace.console.client.transport import ApiError
from headrace.console.pages.topic import tabs
from headrace.console.sessions import Role
from headrace.console.ui import formats, tables
from headrace.console.ui.dialogs import Answer, Field, ask
from headrace.console.ui.lists import ListView
from headrace.console.ui.markup import Html, h
from headrace.console.ui.page import Page

TABS = {"": "Applications", "registrations": "Registrations", "unregistered": "Unregistered use"}
MODES = {
    "allow": "Unregistered use is allowed.",
    "warn": "Unregistered use is allowed, and listed.",
    "refuse": "Unregistered use is refused.",
}


async def build(page: Page) -> None:
    page.on_change("request", lambda: _request(page))
    page.head("Apps", actions=page.button("Request a registration", "request", kind="main-action"))
    page.show(tabs(page, "/apps", TABS))
    tab = page.query.get("tab", "")
    if tab == "registrations":
        await _registrations(page)
    elif tab == "unregistered":
        await _unregistered(page)
    else:
        await _apps(page)


async def _apps(page: Page) -> None:
    async def fetch(query: tables.ListQuery) -> tuple[Sequence[m.App], int]:
        found = await page.api.apps(query.to_broker)
        return found.apps, found.total

    column = tables.Column[m.App]
    columns = [
        column("App", lambda a: h("a", a.app, href=page.link("/app", name=a.app)), "name", "app"),
        column("Owner", lambda a: a.owner or "–"),
        column("Instances", lambda a: instances_mark(a), "num"),
        column("Reads", lambda a: ", ".join(map(str, a.reads[:4])), "clip"),
        column("Sends to", lambda a: ", ".join(map(str, a.sends[:4])), "clip"),
        column("Set from outside", lambda a: a.settings or "", "num"),
        column("What it is", lambda a: h("span", a.description, class_="small muted"), "clip"),
    ]
    nothing = tables.empty(
        "No applications yet", "An App of the framework registers itself when it starts.", "headrace new project shop"
    )
    await ListView(page, "/apps", "apps", columns, fetch, nothing, "app").show()


def instances_mark(app: m.App) -> Html:
    if app.lost:
        return h("span", tables.mark(f"{app.lost} lost", "bad"), f" {app.instances}")
    return h("span", formats.count(app.instances))


async def _registrations(page: Page) -> None:
    page.on_change("approve", lambda id: _decide(page, id, "approve"), Role.ADMIN)
    page.on_change("reject", lambda id: _decide(page, id, "reject"), Role.ADMIN)
    mode = ""

    async def fetch(query: tables.ListQuery) -> tuple[Sequence[m.Registration], int]:
        nonlocal mode
        found = await page.api.registrations({"search": query.search, "offset": query.offset, "limit": query.limit})
        mode = found.mode
        return found.registrations, found.total

    def decide(each: m.Registration) -> Html | str:
        if each.state != "requested":
            return ""
        return h(
            "span",
            page.button("Approve", "approve", each.id, "tiny", Role.ADMIN),
            " ",
            page.button("Reject", "reject", each.id, "tiny danger", Role.ADMIN),
        )

    column = tables.Column[m.Registration]
    columns = [
        column(
            "For",
            lambda r: h(
                "span",
                h("a", r.topic, href=page.link("/topic", name=r.topic)),
                f" read by {r.group}" if r.group else "",
            ),
            "name",
        ),
        column("Kind", lambda r: tables.mark(r.kind, "plain")),
        column("Owner", lambda r: r.owner),
        column("Contacts", lambda r: ", ".join(r.contacts), "clip"),
        column("Expected", lambda r: formats.rate(r.rate) if r.rate else "", "num"),
        column("Kept", lambda r: formats.milliseconds(r.retention_ms) if r.retention_ms else "", "num"),
        column(
            "Requested",
            lambda r: h("span", f"{r.requested_by} ", formats.moment(r.requested_ms, page.zone), class_="small"),
            "clip",
        ),
        column("State", lambda r: tables.mark(r.state, {"approved": "good", "rejected": "bad"}.get(r.state, "warn"))),
        column("", decide, "act"),
    ]
    nothing = tables.empty(
        "No registrations yet", "A team asks for a topic or a consumer here; an operator approves it."
    )
    await ListView(page, "/apps", "registrations", columns, fetch, nothing, "").show()
    page.show(h("p", MODES.get(mode, ""), class_="muted small"))


def _request(page: Page) -> None:
    kinds = [("topic", "a topic"), ("consumer", "a consumer of a topic")]
    keeps = [("", "as the broker has it"), ("86400000", "1 day"), ("604800000", "7 days"), ("2592000000", "30 days")]
    fields = [
        Field("kind", "For", kind="select", choices=kinds),
        Field("topic", "Topic", required=True),
        Field("group", "Group or queue", hint="Of a consumer."),
        Field("owner", "Owner", required=True, placeholder="team-orders"),
        Field("contacts", "Contacts", placeholder="orders@example.org", hint="Several with commas between."),
        Field("scenario", "Scenario", placeholder="task, event, log"),
        Field("rate", "Messages a second, at most", kind="number"),
        Field("message_bytes", "Bytes of a message, about", kind="number"),
        Field("user", "User of its programs", hint="Whose quota may follow from it."),
        Field("retention_ms", "Messages are kept", kind="select", choices=keeps),
        Field("description", "What it is for", kind="area"),
    ]

    async def act(answer: Answer) -> None:
        body: dict[str, object] = {
            name: answer[name]
            for name in ("kind", "topic", "group", "owner", "scenario", "description", "user")
            if answer.get(name)
        }
        contacts = [each.strip() for each in answer.get("contacts", "").split(",") if each.strip()]
        if contacts:
            body["contacts"] = contacts
        body |= {name: int(answer[name]) for name in ("rate", "message_bytes", "retention_ms") if answer.get(name)}
        await page.api.request_registration(body)

    async def look() -> None:
        # An address that is open already is not built anew by going there.
        if page.query.get("tab") == "registrations":
            await page.reload()
        else:
            page.go("/apps", tab="registrations")

    ask(
        page,
        "Request a registration",
        "An operator approves it. Limits and alerts follow from what is said here.",
        act,
        fields,
        verb="Request",
        is_wide=True,
        done="It is requested.",
        again=look,
    )


def _decide(page: Page, id: str, decision: str) -> None:
    async def act(answer: Answer) -> None:
        body: dict[str, object] = {"reason": answer.get("reason", "")} if answer.get("reason") else {}
        body |= {name: True for name in ("create", "limits") if decision == "approve" and answer.get(name)}
        await page.api.decide_registration(id, decision, body)

    fields = [Field("reason", "Reason", required=decision == "reject")]
    if decision == "approve":
        fields += [
            Field("create", "Make the topic now, if it is not there", "true", kind="check"),
            Field("limits", "Set the topic's retention and the user's quota by it", kind="check"),
        ]
    ask(
        page,
        "Approve" if decision == "approve" else "Reject",
        "The team sees the decision with its reason.",
        act,
        fields,
        verb="Approve" if decision == "approve" else "Reject",
        is_danger=decision == "reject",
        done="It is decided.",
    )


async def _unregistered(page: Page) -> None:
    try:
        uses = (await page.api.unregistered()).uses
    except ApiError as error:
        if not error.is_missing_route:
            raise
        uses = []
    if not uses:
        page.show(
            h(
                "div",
                tables.empty(
                    "No unregistered use",
                    "What is not registered is listed here once the broker warns of it or refuses it.",
                ),
                class_="card",
            )
        )
        return
    column = tables.Column[dict[str, object]]
    columns = [
        column("Topic", lambda u: str(u.get("topic")), "name"),
        column("Group", lambda u: str(u.get("group") or "")),
        column("Kind", lambda u: tables.mark(str(u.get("kind")), "plain")),
        column("Times", lambda u: formats.count(float(str(u.get("count") or 0))), "num"),
        column("Last", lambda u: formats.moment(float(str(u.get("last_ms") or 0)), page.zone)),
        column("Users", lambda u: ", ".join(map(str, u.get("users") or [])), "clip"),  # type: ignore[call-overload]
    ]
    page.show(h("div", tables.table(columns, uses, "Unregistered use"), class_="card"))
