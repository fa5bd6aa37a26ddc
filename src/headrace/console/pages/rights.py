"""Roles and rules, and whether a user may do something, and why."""

from __future__ import annotations

from shlex import quote

from headrace.console.pages.pieces import Row, choice, column, filters, listed, text_of
from headrace.console.sessions import Role
from headrace.console.ui import tables
from headrace.console.ui.dialogs import Answer, Field, ask
from headrace.console.ui.markup import Child, h
from headrace.console.ui.page import Page

ROLES = {
    "viewer": "looks at everything but messages",
    "operator": "changes topics, queues and groups",
    "admin": "everything",
    "producer": "writes to topics",
    "consumer": "reads topics in groups",
}
RESOURCES = ("topic", "group", "queue", "cluster", "transactional-id", "timer", "app", "user", "console")
OPERATIONS = (
    *("read", "write", "create", "delete", "alter", "describe", "describe-configs", "alter-configs"),
    *("all", "create-tokens", "describe-tokens"),
)
CLUSTER = "kafka-cluster"
NAME_HINT = f"With * at its end, all that begin so. A queue is TOPIC/QUEUE, the cluster {CLUSTER}."


# --- roles ------------------------------------------------------------------------------------------------------------


async def show_roles(page: Page) -> None:
    page.on_change("grant-role", lambda _: _grant_role(page), Role.ADMIN)
    page.on_change("revoke-role", lambda arg: _revoke_role(page, arg), Role.ADMIN)

    def what(row: Row) -> Child:
        if row["role"] not in ("producer", "consumer"):
            return h("span", ROLES.get(row["role"], ""), class_="small muted")
        group = f", in groups {row['group']}" if row["role"] == "consumer" else ""
        return f"topics {row['name']}{group}"

    def revoke(row: Row) -> Child:
        arg = "\n".join(str(row[each]) for each in ("user", "role", "name", "group"))
        return page.button("Revoke", "revoke-role", arg, "tiny danger", Role.ADMIN)

    columns = [
        column("User", text_of("user"), "name"),
        column("Role", lambda r: tables.mark(str(r["role"]), "info")),
        column("May", what, "clip"),
        column("", revoke, "act"),
    ]
    nothing = tables.empty(
        "No roles are granted",
        "A role is a set of rules by a name: most users need one role, and no rule of their own.",
        "headrace role grant ann operator",
    )
    await listed(page, "/v1/roles", "roles", columns, nothing, "Roles")


def _grant_role(page: Page) -> None:
    def body(answer: Answer) -> dict[str, object]:
        given = {"user": answer.get("user", ""), "role": answer.get("role", "")}
        return {**given, "name": answer.get("name") or "*", "group": answer.get("group") or "*"}

    async def act(answer: Answer) -> None:
        await page.api.ask("POST", "/v1/roles", body=body(answer))

    def equivalent(answer: Answer) -> str:
        given = body(answer)
        of = f" --of {quote(str(given['name']))}" if given["name"] != "*" else ""
        group = f" --group {quote(str(given['group']))}" if given["group"] != "*" else ""
        return f"headrace role grant {quote(str(given['user']))} {given['role']}{of}{group}"

    ask(
        page,
        "Grant a role",
        "It is in force at once.",
        act,
        [
            Field("user", "User", required=True),
            Field("role", "Role", "viewer", kind="select", choices=[(n, f"{n}: {w}") for n, w in ROLES.items()]),
            Field("name", "Topics, of a producer or consumer", "*"),
            Field("group", "Groups, of a consumer", "*"),
        ],
        verb="Grant",
        done="The role is granted.",
        equivalent=equivalent,
    )


def _revoke_role(page: Page, arg: str) -> None:
    user, role, name, group = arg.split("\n")

    async def act(_: Answer) -> None:
        query = {"user": user, "role": role, "name": name, "group": group}
        await page.api.ask("DELETE", "/v1/roles", query)

    ask(
        page,
        f"Take the role {role} from {user}",
        "What it may do by this role alone ends at once.",
        act,
        verb="Revoke",
        is_danger=True,
        done="The role is revoked.",
        equivalent=f"headrace role revoke {quote(user)} {role} --of {quote(name)} --group {quote(group)}",
    )


# --- rules ------------------------------------------------------------------------------------------------------------


async def show_rules(page: Page) -> None:
    page.on_change("add-rule", lambda _: _add_rule(page), Role.ADMIN)
    page.on_change("remove-rule", lambda arg: _remove_rule(page, arg), Role.ADMIN)
    filters(page, "rights", [("user", "User"), ("name", "Name")], choice(page, "resource", "On", ("", *RESOURCES)))

    def remove(row: Row) -> Child:
        arg = "\n".join(str(row[each]) for each in RULE)
        return page.button("Remove", "remove-rule", arg, "tiny danger", Role.ADMIN)

    columns = [
        column("User", text_of("user"), "name"),
        column("", lambda r: tables.mark(r["permission"], "bad" if r["permission"] == "deny" else "good")),
        column("To", text_of("operation")),
        column("On", text_of("resource")),
        column("Name", lambda r: h("code", str(r["name"])), "clip"),
        column("From", lambda r: "anywhere" if r["host"] == "*" else str(r["host"])),
        column("", remove, "act"),
    ]
    nothing = tables.empty(
        "No rules",
        "Roles cover most. A rule allows or denies one operation; what denies beats what allows.",
        "headrace acl grant ann read topic 'orders*'",
    )
    query = {name: page.query.get(name, "") for name in ("user", "name", "resource")}
    await listed(page, "/v1/acls", "rules", columns, nothing, "Rules", query)


RULE = ("permission", "user", "host", "operation", "resource", "name")


def _add_rule(page: Page) -> None:
    async def act(answer: Answer) -> None:
        rule = {name: answer.get(name, "") for name in RULE}
        await page.api.ask("POST", "/v1/acls", body={"rules": [{**rule, "host": rule["host"] or "*"}]})

    def equivalent(answer: Answer) -> str:
        words = [answer.get(each, "") for each in ("user", "operation", "resource", "name")]
        deny = " --deny" if answer.get("permission") == "deny" else ""
        host = f" --host {quote(answer['host'])}" if answer.get("host", "*") not in ("", "*") else ""
        return f"headrace acl grant {' '.join(map(quote, words))}{deny}{host}"

    ask(
        page,
        "New rule",
        "It is in force at once. What denies beats what allows.",
        act,
        [
            Field("user", "User", required=True),
            Field(
                "permission", "Allow or deny", "allow", kind="select", choices=[("allow", "allow"), ("deny", "deny")]
            ),
            Field("operation", "Operation", "read", kind="select", choices=[(each, each) for each in OPERATIONS]),
            Field("resource", "On", "topic", kind="select", choices=[(each, each) for each in RESOURCES]),
            Field("name", "Name", required=True, hint=NAME_HINT),
            Field("host", "From the address", "*"),
        ],
        verb="Add rule",
        done="The rule is in force.",
        equivalent=equivalent,
    )


def _remove_rule(page: Page, arg: str) -> None:
    rule = dict(zip(RULE, arg.split("\n"), strict=True))

    async def act(_: Answer) -> None:
        await page.api.ask("DELETE", "/v1/acls", rule)

    words = [rule[each] for each in ("user", "operation", "resource", "name")]
    ask(
        page,
        "Remove a rule",
        f"{rule['user']} is not to be {'denied' if rule['permission'] == 'deny' else 'allowed'} {rule['operation']} on "
        f"{rule['resource']} {rule['name']} by this rule any more.",
        act,
        verb="Remove",
        is_danger=True,
        done="The rule is removed.",
        equivalent=f"headrace acl revoke {' '.join(map(quote, words))}",
    )


# --- may it? ----------------------------------------------------------------------------------------------------------


async def show_check(page: Page) -> None:
    filters(
        page,
        "check",
        [("user", "User"), ("name", "Name"), ("host", "From the address")],
        choice(page, "operation", "Operation", OPERATIONS, "read"),
        choice(page, "resource", "On", RESOURCES, "topic"),
        verb="Check",
    )
    asked = {name: page.query.get(name, "") for name in ("user", "operation", "resource", "name", "host")}
    if not asked["user"] or not asked["name"]:
        advice = f"Name a user, an operation and what it is on. {NAME_HINT}"
        page.show(h("div", tables.empty("May a user do something, and why?", advice), class_="card"))
        return
    answer = await page.api.ask("GET", "/v1/acls/check", {key: each for key, each in asked.items() if each})
    allowed = bool(answer["allowed"])
    lines: list[Child] = [
        h("p", tables.mark("allowed" if allowed else "refused", "good" if allowed else "bad"), " ", str(answer["why"]))
    ]
    if answer["authorization"] != "on":
        lines.append(
            h("p", f"The broker's authorization is {answer['authorization']}: it refuses nothing.", class_="muted")
        )
    page.show(h("div", lines, class_="card pad", role="status"))
