"""Consumer groups: who is behind, by how much."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.console.client import models as m
from headrace.console.figures.table import number
from headrace.console.ui import formats, tables
from headrace.console.ui.lists import ListView
from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page

Column = tables.Column[m.Group]
GOOD, WAITING = ("stable", "active"), ("preparingrebalance", "completingrebalance", "assigning", "reconciling")


async def build(page: Page) -> None:
    page.head("Groups")

    async def fetch(query: tables.ListQuery) -> tuple[Sequence[m.Group], int]:
        found = await page.api.groups(query.to_broker)
        return found.groups, found.total

    columns = [
        Column("Group", lambda g: h("a", g.group, href=page.link("/group", name=g.group)), "name", "group"),
        Column("Lag", lambda g: formats.count(lag_of(page, g)), "num", "lag", "Messages behind the end of its topics"),
        Column("Behind by", lambda g: formats.milliseconds(g.lag_ms), "num", "lag_ms"),
        Column("Members", lambda g: formats.count(g.members), "num", "members"),
        Column("State", lambda g: state_mark(g.state), "", "state"),
        Column("Kind", lambda g: g.kind),
        Column("Topics", lambda g: topic_links(page, g.topics), "clip"),
    ]
    nothing = tables.empty(
        "No consumer groups yet",
        "Read a topic with a group, and its lag shows here.",
        "headrace consume orders --group billing",
    )
    await ListView(page, "/groups", "groups", columns, fetch, nothing, "lag", "desc").show()


def lag_of(page: Page, group: m.Group) -> float | None:
    rows = page.sampler.table.group(group.group)
    return sum(number(row, "lag") for row in rows) if rows else group.lag


def topic_links(page: Page, topics: Sequence[str]) -> Child:
    links = [h("a", each, href=page.link("/topic", name=each)) for each in topics[:3]]
    more = f" and {len(topics) - 3} more" if len(topics) > 3 else ""
    return [[" " if place else "", link] for place, link in enumerate(links)] + [more]


def state_mark(state: str) -> Html:
    plain = state.replace("_", "").lower()
    kind = "good" if plain in GOOD else "warn" if plain in WAITING else ""
    return tables.mark(state or "unknown", kind)
