"""Users, rights, tokens and the audit, where the broker keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.console.client.transport import ApiError
from headrace.console.pages.topic import tabs
from headrace.console.ui import formats, tables
from headrace.console.ui.markup import Child, h
from headrace.console.ui.page import Page, failure

TABS = {"": "Users", "rights": "Rights", "tokens": "Tokens", "audit": "Audit"}
Row = dict[str, Any]
Columns = Sequence[tables.Column[Row]]


async def build(page: Page) -> None:
    page.head("Users and rights")
    page.show(tabs(page, "/access", TABS))
    tab = page.query.get("tab", "")
    views: Mapping[str, tuple[str, str, Callable[[Page], Columns], str, str]] = {
        "": (
            "/v1/users",
            "users",
            _user_columns,
            "No users",
            "Whoever reaches the broker may do everything. Make a user, then set `authorization`.",
        ),
        "rights": (
            "/v1/acls",
            "rules",
            _rule_columns,
            "No rules",
            "Without a rule a user may do nothing, once `authorization` is on.",
        ),
        "tokens": (
            "/v1/tokens",
            "tokens",
            _token_columns,
            "No tokens",
            "Tokens are for programs: they can be limited, expire, and be revoked.",
        ),
        "audit": (
            "/v1/audit",
            "entries",
            _audit_columns,
            "Nothing is recorded",
            "Set `audit` at the broker, and every change is recorded with who made it.",
        ),
    }
    path, name, columns, title, advice = views.get(tab, views[""])
    try:
        answer = await page.api.ask("GET", path, {"limit": 200})
    except ApiError as error:
        if not error.is_missing_route:
            raise
        page.show(h("div", failure(error), class_="card"))
        return
    rows = answer.get(name) or []
    if not rows:
        page.show(h("div", tables.empty(title, advice), class_="card"))
        return
    page.show(h("div", tables.table(columns(page), rows, TABS.get(tab, "")), class_="card"))


def _text(name: str) -> Callable[[Row], Child]:
    return lambda row: "–" if row.get(name) in (None, "") else str(row[name])


def _user_columns(page: Page) -> Columns:
    del page
    column = tables.Column[Row]
    return [
        column("User", _text("name"), "name"),
        column(
            "Can log in by",
            lambda r: ", ".join(str(each["mechanism"]) for each in r.get("credentials", ())),
        ),
        column("Tokens", lambda r: formats.count(r.get("tokens")), "num"),
    ]


def _rule_columns(page: Page) -> Columns:
    del page
    column = tables.Column[Row]
    return [
        column("User", _text("user"), "name"),
        column(
            "",
            lambda r: tables.mark(str(r.get("permission")), "bad" if r.get("permission") == "deny" else "good"),
        ),
        column("May", _text("operation")),
        column("On", _text("resource")),
        column("Name", _text("name")),
        column("From", _text("host")),
    ]


def _token_columns(page: Page) -> Columns:
    column = tables.Column[Row]
    return [
        column("Token", _text("id"), "name"),
        column("User", _text("user")),
        column("Note", _text("note"), "clip"),
        column("Expires", lambda r: formats.moment(r.get("expires_ms"), page.zone)),
        column("May", lambda r: ", ".join(map(str, r.get("scope") or ())) or "what its user may", "clip"),
    ]


def _audit_columns(page: Page) -> Columns:
    column = tables.Column[Row]
    return [
        column("When", lambda r: formats.moment(r.get("t"), page.zone), "nowrap"),
        column("User", _text("user"), "name"),
        column("What", _text("action")),
        column("On", _text("name"), "clip"),
        column("Result", lambda r: tables.mark(str(r.get("result")), "good" if r.get("result") == "ok" else "bad")),
        column("From", _text("host")),
        column("", lambda r: h("span", str(r.get("detail") or ""), class_="small muted"), "clip"),
    ]
