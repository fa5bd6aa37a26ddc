"""`headrace register`: ask for topics and consumers, and decide."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from headrace.cli.output import local_time, show
from headrace.cli.over_http import PAGE, Api, over_http

app = typer.Typer(help="Registers topics and consumers, and approves them.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Id = Annotated[str, typer.Argument(metavar="ID", help="As `register list` shows it.")]
Owner = Annotated[str, typer.Option(help="The team.")]
Contact = Annotated[list[str], typer.Option(help="Whom to ask; may be repeated.")]
Text = Annotated[str, typer.Option()]
Rate = Annotated[int, typer.Option(min=0, help="Messages a second that are expected.")]
Size = Annotated[int, typer.Option(min=0, help="How many bytes a message has, about.")]
User = Annotated[str, typer.Option(help="As whom its programs come: whose quota follows from it.")]
Reason = Annotated[str, typer.Option(help="Why.")]
PATH = "/v1/registrations"


@app.command()
@over_http
def topic(
    api: Api,
    name: Topic,
    owner: Owner,
    contact: Contact = [],  # noqa: B006 - typer copies it
    description: Text = "",
    scenario: Text = "",
    rate: Rate = 0,
    message_bytes: Size = 0,
    user: User = "",
    retention_ms: Annotated[int, typer.Option(min=-1, help="0: as the broker says.")] = 0,
    partitions: Annotated[int, typer.Option(min=0, help="0: as the broker says.")] = 0,
) -> None:
    """Registers a topic. An operator approves it."""
    body = {
        **{"kind": "topic", "topic": name, "owner": owner, "contacts": contact, "description": description},
        **{"scenario": scenario, "rate": rate, "retention_ms": retention_ms, "partitions": partitions},
        **{"message_bytes": message_bytes, "user": user},
    }
    _print_id(api, api.ask("POST", PATH, body))


@app.command()
@over_http
def consumer(
    api: Api,
    name: Topic,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group, or the queue.")],
    owner: Owner,
    contact: Contact = [],  # noqa: B006 - typer copies it
    description: Text = "",
    scenario: Text = "",
    rate: Rate = 0,
    message_bytes: Size = 0,
    user: User = "",
) -> None:
    """Registers a consumer of a topic. An operator approves it."""
    body = {
        **{"kind": "consumer", "topic": name, "group": group, "owner": owner, "contacts": contact},
        **{"description": description, "scenario": scenario, "rate": rate},
        **{"message_bytes": message_bytes, "user": user},
    }
    _print_id(api, api.ask("POST", PATH, body))


def _print_id(api: Api, answer: dict[str, object]) -> None:
    api.print_answer(answer)
    if not api.as_json:
        print(answer["id"])


@app.command("list")
@over_http
def list_registrations(api: Api, search: Annotated[str, typer.Argument(metavar="[TEXT]")] = "") -> None:
    """Lists registrations."""
    show(
        api.get(PATH, search=search, limit=PAGE)["registrations"],
        api.as_json,
        {
            **{"id": "id", "state": "state", "kind": "kind", "topic": "topic", "group": "group", "owner": "owner"},
            "requested": lambda each: local_time(each["requested_ms"]),
            "by": "requested_by",
        },
    )


@app.command()
@over_http
def unregistered(api: Api) -> None:
    """Lists what was used without a registration."""
    show(
        api.get(f"{PATH}/unregistered")["uses"],
        api.as_json,
        {
            **{"kind": "kind", "topic": "topic", "group": "group", "count": "count"},
            "last": lambda each: local_time(each["last_ms"]),
            "users": lambda each: ", ".join(each["users"]),
        },
    )


@app.command()
@over_http
def approve(
    api: Api,
    id: Id,
    reason: Reason = "",
    create: Annotated[bool, typer.Option("--create", help="Create the topic, if it is missing.")] = False,
    limits: Annotated[
        bool, typer.Option("--limits", help="Set the topic's retention and the user's quota by what is expected.")
    ] = False,
) -> None:
    """Approves a registration."""
    body = {"reason": reason, "create": create, "limits": limits}
    api.print_answer(api.ask("POST", f"{PATH}/{quote(id, safe='')}/approve", body))


@app.command()
@over_http
def reject(api: Api, id: Id, reason: Reason = "") -> None:
    """Rejects a registration, also one that was approved."""
    api.print_answer(api.ask("POST", f"{PATH}/{quote(id, safe='')}/reject", {"reason": reason}))


@app.command()
@over_http
def delete(api: Api, id: Id) -> None:
    """Deletes a registration. The topic stays."""
    api.print_answer(api.ask("DELETE", f"{PATH}/{quote(id, safe='')}"))
