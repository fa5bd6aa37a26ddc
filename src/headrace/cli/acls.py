"""`headrace acl` and `headrace role`: who may do what."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.offline import manages
from headrace.cli.options import Yes
from headrace.cli.output import confirm, print_json, show
from headrace.cli.over_http import Api
from headrace.cli.users import describe_role
from headrace.errors import HeadraceError

app = typer.Typer(help="Manages rules: who may do what to which topics, groups and queues.", no_args_is_help=True)
roles = typer.Typer(help="Grants roles: viewer, operator, admin, producer, consumer.", no_args_is_help=True)

User = Annotated[
    str, typer.Argument(metavar="USER", help="'*': each user. ANONYMOUS: clients that are not authenticated.")
]
Operations = Annotated[
    str, typer.Argument(metavar="OPERATION", help="read, write, describe, create, ...; several with commas between.")
]
Resource = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help="topic, group, cluster, transactional-id, user, queue (TOPIC/QUEUE), timer, schema, app or console.",
    ),
]
ResourceName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="With * at its end, all that begin so. The cluster is kafka-cluster."),
]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Only for clients from this address.")]
COLUMNS = ("permission", "user", "host", "operation", "resource", "name")


@app.command()
@manages
def grant(
    api: Api,
    name: User,
    operations: Operations,
    resource: Resource,
    resource_name: ResourceName,
    host: Host = "*",
    deny: Annotated[bool, typer.Option("--deny", help="Deny it. What denies beats what allows.")] = False,
) -> None:
    """Adds a rule. It is in force at once."""
    rules = [
        {
            "permission": "deny" if deny else "allow",
            "user": name,
            "host": host,
            "operation": each.strip(),
            "resource": resource,
            "name": resource_name,
        }
        for each in operations.split(",")
    ]
    api.print_answer(api.ask("POST", "/v1/acls", {"rules": rules}))


@app.command()
@manages
def revoke(
    api: Api,
    name: User,
    operation: Annotated[str, typer.Argument(metavar="[OPERATION]", show_default=False)] = "",
    resource: Annotated[str, typer.Argument(metavar="[RESOURCE]", show_default=False)] = "",
    resource_name: Annotated[str, typer.Argument(metavar="[NAME]", show_default=False)] = "",
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Only rules for this address.")] = "",
    yes: Yes = False,
) -> None:
    """Removes the rules of a user that have this operation, kind of resource and name; without these, all."""
    wanted = {"user": name, "operation": operation, "resource": resource, "name": resource_name, "host": host}
    if not yes and not (operation and resource and resource_name):
        found = api.get_pages("/v1/acls", "rules", 1 << 31, **wanted)
        if not found:
            raise HeadraceError("no rule fits. See `headrace acl list`.")
        confirm(f"Remove {len(found)} rule(s) of {name}?")
    answer = api.ask("DELETE", "/v1/acls", query=wanted)
    if not answer["rules"]:
        raise HeadraceError("no rule fits. See `headrace acl list`.")
    show(answer["rules"], api.as_json, COLUMNS)


@app.command("list")
@manages
def list_rules(
    api: Api,
    name: Annotated[str, typer.Argument(metavar="[USER]", show_default=False)] = "",
    resource: Annotated[str, typer.Option(help="Only rules on this kind of resource.")] = "",
    resource_name: Annotated[str, typer.Option("--name", help="Only rules of this name, as they have it.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most rules to list.")] = 10_000,
) -> None:
    """Lists rules, without those of roles."""
    found = api.get_pages("/v1/acls", "rules", limit, user=name, resource=resource, name=resource_name)
    show(found, api.as_json, COLUMNS)


@app.command()
@manages
def check(
    api: Api,
    name: User,
    operation: Annotated[str, typer.Argument(metavar="OPERATION")],
    resource: Resource,
    resource_name: Annotated[str, typer.Argument(metavar="NAME")],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="As if the user came from there.")] = "",
) -> None:
    """Shows whether a user may do something, and which rule decides. Exit code 1: not allowed."""
    answer = api.get("/v1/acls/check", user=name, operation=operation, resource=resource, name=resource_name, host=host)
    if api.as_json:
        print_json(answer)
    else:
        print(f"{'allowed' if answer['allowed'] else 'not allowed'}: {answer['why']}")
        if answer["authorization"] != "on":
            print(f"(authorization is {answer['authorization']}: nothing is refused)")
    if not answer["allowed"]:
        raise typer.Exit(1)


# --- roles ------------------------------------------------------------------------------------------------------------

Role = Annotated[str, typer.Argument(metavar="ROLE", help="viewer, operator, admin, producer or consumer.")]
Of = Annotated[str, typer.Option("--of", metavar="TOPIC", help="The topics of a producer or consumer: NAME, PREFIX*.")]
Group = Annotated[str, typer.Option("--group", help="The groups that a consumer may join: NAME or PREFIX*.")]


@roles.command("grant")
@manages
def grant_role(api: Api, name: User, role: Role, of: Of = "*", group: Group = "*") -> None:
    """Gives a user a role. It is in force at once."""
    api.print_answer(api.ask("POST", "/v1/roles", {"user": name, "role": role, "name": of, "group": group}))


@roles.command("revoke")
@manages
def revoke_role(api: Api, name: User, role: Role, of: Of = "*", group: Group = "*") -> None:
    """Takes a role from a user, as it was granted."""
    wanted = {"user": name, "role": role, "name": of, "group": group}
    api.print_answer(api.ask("DELETE", "/v1/roles", query=wanted))


@roles.command("list")
@manages
def list_roles(
    api: Api,
    name: Annotated[str, typer.Argument(metavar="[USER]", show_default=False)] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most roles to list.")] = 10_000,
) -> None:
    """Lists the roles of users."""

    def described(each: dict[str, Any]) -> str:
        return describe_role(each)

    show(api.get_pages("/v1/roles", "roles", limit, user=name), api.as_json, {"user": "user", "role": described})
