"""Clients: the connections of every door, and closing one."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.console.client import models as m
from headrace.console.sessions import Role
from headrace.console.ui import formats, tables
from headrace.console.ui.dialogs import Answer, ask
from headrace.console.ui.lists import ListView
from headrace.console.ui.markup import Html, h
from headrace.console.ui.page import Page

Column = tables.Column[m.Client]


async def build(page: Page) -> None:
    page.head("Clients")
    page.live(lambda: _doors(page))
    shown: dict[str, m.Client] = {}
    page.on_change("kill", lambda id: _kill(page, shown[id]), Role.ADMIN)

    async def fetch(query: tables.ListQuery) -> tuple[Sequence[m.Client], int]:
        found = await page.api.clients(query.to_broker)
        shown.update({str(each.id): each for each in found.clients})
        return found.clients, found.total

    columns = [
        Column("Client", lambda c: c.client_id or h("span", "no name", class_="muted"), "name", "client_id"),
        Column("User", lambda c: c.user or "–", "", "user"),
        Column("Door", lambda c: tables.mark(c.door, "plain"), "", "door"),
        Column("Address", lambda c: h("code", c.address), "", "address"),
        Column("Connected for", lambda c: formats.milliseconds(c.age_ms), "num", "age_ms"),
        Column("TLS", lambda c: tables.mark("TLS", "good") if c.tls else h("span", "plain", class_="muted")),
        Column("", lambda c: page.button("Close", "kill", str(c.id), "tiny danger", Role.ADMIN), "act"),
    ]
    nothing = tables.empty("Nobody is connected", "Connections of every protocol show here.")
    page.show(h("div", h("h2", "Connections"), class_="section"))
    await ListView(page, "/clients", "clients", columns, fetch, nothing, "age_ms", "desc").show()


def _doors(page: Page) -> Html:
    cards = []
    for (door,), row in sorted(page.sampler.table.rows("doors").items()):
        connections = row.get("connections")
        rate = row.get("requests_rate")
        cards.append(
            tables.stat(
                door,
                formats.count(float(connections)) if isinstance(connections, int | float) else "–",
                f"{formats.rate(float(rate)) if isinstance(rate, int | float) else ''} requests",
            )
        )
    return tables.stats(cards)


def _kill(page: Page, client: m.Client) -> None:
    async def act(_: Answer) -> None:
        await page.api.kill_client(str(client.id))

    what = (
        f"The {client.door} connection of {client.client_id or client.address} is closed. Most clients "
        "connect again by themselves; what it had in flight is delivered again."
    )
    ask(
        page,
        "Close a connection",
        what,
        act,
        verb="Close it",
        is_danger=True,
        done="The connection is closed.",
        equivalent=f"headrace client kill {client.id}",
    )
