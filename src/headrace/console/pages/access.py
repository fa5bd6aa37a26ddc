"""Users, their rights and tokens, and who did what, as the broker keeps them. Everything is asked of the broker as the
person who is logged in: its rights decide what is seen and done here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from shlex import quote

from headrace.console.client.api import part
from headrace.console.client.transport import ApiError
from headrace.console.pages import audit, rights
from headrace.console.pages.pieces import Row, column, listed, text_of
from headrace.console.pages.topic import tabs
from headrace.console.sessions import Role
from headrace.console.ui import formats, tables
from headrace.console.ui.dialogs import Answer, Field, ask, sheet
from headrace.console.ui.markup import Child, h
from headrace.console.ui.page import Page, copy_button, failure
from headrace.errors import ConfigError

TABS = {"": "Users", "roles": "Roles", "rights": "Rules", "check": "Check", "tokens": "Tokens", "audit": "Audit"}
DAY_MS = 86_400_000


async def build(page: Page) -> None:
    tab = page.query.get("tab", "")
    actions = {
        "": page.button("New user", "create-user", kind="main-action", role=Role.ADMIN),
        "roles": page.button("Grant a role", "grant-role", kind="main-action", role=Role.ADMIN),
        "rights": page.button("New rule", "add-rule", kind="main-action", role=Role.ADMIN),
        "tokens": page.button("New token", "create-token", kind="main-action", role=Role.OPERATOR),
    }
    page.head("Users and rights", None, actions.get(tab))
    page.show(tabs(page, "/access", TABS))
    views: Mapping[str, Callable[[Page], Awaitable[None]]] = {
        "roles": rights.show_roles,
        "rights": rights.show_rules,
        "check": rights.show_check,
        "tokens": show_tokens,
        "audit": audit.show,
    }
    try:
        await views.get(tab, show_users)(page)
    except ApiError as error:
        page.show(h("div", failure(error), class_="card"))


# --- users ------------------------------------------------------------------------------------------------------------


async def show_users(page: Page) -> None:
    page.on_change("create-user", lambda _: _create_user(page), Role.ADMIN)
    page.on_change("set-password", lambda name: _set_password(page, name), Role.ADMIN)
    page.on_change("delete-user", lambda name: _delete_user(page, name), Role.ADMIN)

    def acts(row: Row) -> Child:
        name = str(row["name"])
        return h(
            "div",
            page.button("Password", "set-password", name, "tiny", Role.ADMIN, f"Set the password of {name}"),
            page.button("Delete", "delete-user", name, "tiny danger", Role.ADMIN, f"Delete {name}"),
            class_="row-of",
        )

    columns = [
        column("User", text_of("name"), "name"),
        column("Can log in by", lambda r: ", ".join(_mechanism(each) for each in r["credentials"]) or "tokens alone"),
        column(
            "Tokens",
            lambda r: h("a", formats.count(r["tokens"]), href=page.link("/access", tab="tokens", user=str(r["name"]))),
            "num",
        ),
        column("", acts, "act"),
    ]
    nothing = tables.empty(
        "No users yet",
        [
            "Every client that reaches the broker may do everything. Make users and give them roles, then set ",
            h("code", "authorization"),
            ".",
        ],
        "headrace user create ann && headrace role grant ann admin",
    )
    await listed(page, "/v1/users", "users", columns, nothing, "Users")


def _mechanism(credential: Mapping[str, object]) -> str:
    return f"{credential['mechanism']}" + (" (until it ends)" if credential.get("expires_ms") else "")


def _password(answer: Answer) -> str:
    if answer.get("password") != answer.get("again"):
        raise ConfigError("the two passwords differ")
    return answer.get("password", "")


PASSWORDS = [Field("password", "Password", kind="password"), Field("again", "Password again", kind="password")]


def _create_user(page: Page) -> None:
    async def act(answer: Answer) -> None:
        body: dict[str, object] = {"name": answer.get("name", "")}
        if password := _password(answer):
            body["password"] = password
        await page.api.ask("POST", "/v1/users", body=body)

    hint = "Without a password it has tokens alone."
    first = Field("name", "Name", required=True, hint=hint)
    ask(
        page,
        "New user",
        "It may do nothing yet: give it a role, or add rules.",
        act,
        [first, *PASSWORDS],
        verb="Create user",
        done="The user is there.",
        equivalent=lambda a: f"headrace user create {quote(a.get('name', ''))}",
    )


def _set_password(page: Page, name: str) -> None:
    async def act(answer: Answer) -> None:
        keep = float(answer.get("keep") or 0)
        body = {"password": _password(answer), "keep_old_ms": int(keep * 3_600_000)}
        await page.api.ask("PUT", f"/v1/users/{part(name)}/password", body=body)

    ask(
        page,
        f"Set the password of {name}",
        "Programs that use the old one need the new one.",
        act,
        [*PASSWORDS, Field("keep", "The old one is valid, too, for so many hours", "0", kind="number")],
        verb="Set password",
        done="The password is set.",
        equivalent=f"headrace user set-password {quote(name)}",
    )


def _delete_user(page: Page, name: str) -> None:
    async def act(_: Answer) -> None:
        await page.api.ask("DELETE", f"/v1/users/{part(name)}")

    ask(
        page,
        f"Delete {name}",
        "Its sessions end at once; its tokens and roles go with it. Rules that name it stay.",
        act,
        verb="Delete user",
        is_danger=True,
        done=f"{name} is deleted.",
        equivalent=f"headrace user delete {quote(name)}",
    )


# --- tokens -----------------------------------------------------------------------------------------------------------


async def show_tokens(page: Page) -> None:
    user = page.query.get("user", "")
    page.on_change("create-token", lambda _: _create_token(page, user))
    page.on_change("revoke-token", lambda id: _revoke_token(page, id))
    columns = [
        column("Token", lambda r: h("code", str(r["id"])), "name"),
        column("User", text_of("user")),
        column("Note", text_of("note"), "clip"),
        column("May", lambda r: ", ".join(map(str, r["scope"])) or "what its user may", "clip"),
        column("Made", lambda r: formats.moment(r["created_ms"], page.zone), "nowrap"),
        column("Ends", lambda r: formats.moment(r["expires_ms"], page.zone) if r["expires_ms"] else "never", "nowrap"),
        column("", lambda r: page.button("Revoke", "revoke-token", str(r["id"]), "tiny danger"), "act"),
    ]
    nothing = tables.empty(
        f"No tokens of {user}" if user else "No tokens yet",
        "Tokens are for programs: they can be limited, they can end, and they can be revoked.",
        f"headrace token create {quote(user or 'ann')} --expires 90d",
    )
    await listed(page, "/v1/tokens", "tokens", columns, nothing, "Tokens", {"user": user})


def _create_token(page: Page, user: str) -> None:
    made: dict[str, str] = {}

    async def act(answer: Answer) -> None:
        body: dict[str, object] = {"user": answer.get("user", ""), "note": answer.get("note", "")}
        if days := float(answer.get("days") or 0):
            body["expires_ms"] = page.sampler.table.at_ms + int(days * DAY_MS)
        if scope := [each.strip() for each in answer.get("scope", "").split(",") if each.strip()]:
            body["scope"] = scope
        made["token"] = str((await page.api.ask("POST", "/v1/tokens", body=body))["token"])

    async def show_once() -> None:
        sheet(
            page,
            "The new token",
            h("p", "Copy it now: it is shown this once, and the broker keeps no copy that could be shown."),
            h("pre", made["token"], class_="payload", tabindex="0"),
            h("div", copy_button("Copy the token", made["token"]), class_="end"),
            is_wide=False,
            stays=True,
        )
        await page.reload()

    ask(
        page,
        "New token",
        "A program shows it in place of a password.",
        act,
        [
            Field("user", "User", user, required=True),
            Field("note", "Note", hint="What it is for."),
            Field("days", "Ends after so many days", "90", kind="number", hint="0: never."),
            Field("scope", "May at most", hint="write:topic:orders*, with commas between; empty: what its user may."),
        ],
        verb="Create token",
        equivalent=lambda a: f"headrace token create {quote(a.get('user', ''))}",
        again=show_once,
    )


def _revoke_token(page: Page, id: str) -> None:
    async def act(_: Answer) -> None:
        await page.api.ask("DELETE", f"/v1/tokens/{part(id)}")

    ask(
        page,
        "Revoke a token",
        f"What uses the token {id} is cut off at once.",
        act,
        verb="Revoke",
        is_danger=True,
        done="The token is revoked.",
        equivalent=f"headrace token revoke {quote(id)}",
    )
