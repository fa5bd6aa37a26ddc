"""The pipeline: tables of the lake and archives that follow topics, as the broker knows them, and how far they are."""

from __future__ import annotations

from headrace.console.figures.table import number
from headrace.console.pages.pieces import Row, column
from headrace.console.ui import formats, tables
from headrace.console.ui.lists import ListView
from headrace.console.ui.markup import Child, h
from headrace.console.ui.page import Page
from headrace.console.ui.tables import ListQuery


async def build(page: Page) -> None:
    page.head("Pipeline", "Tables of the lake and archives that follow topics, and how far they are.")

    async def fetch(query: ListQuery) -> tuple[list[Row], int]:
        answer = await page.api.ask("GET", "/v1/pipeline", query.to_broker)
        return answer["targets"], answer["total"]

    def progress(row: Row) -> Child:
        return formats.rate(sum(number(each, "committed_rate") for each in page.sampler.table.group(row["group"])))

    columns = [
        column("Topic", lambda r: h("a", str(r["topic"]), href=page.link("/topic", name=r["topic"])), "name", "topic"),
        column("Goes to", lambda r: h("code", str(r["place"])) if r["place"] else "an archive", "clip"),
        column("By the group", lambda r: h("a", str(r["group"]), href=page.link("/group", name=r["group"])), "clip"),
        column("Lag", lambda r: formats.count(r["lag"]) if r["lag"] is not None else "see the group", "num", "lag"),
        column("Behind by", lambda r: formats.milliseconds(r["stale_ms"]) if r["lag"] else "–", "num", "stale_ms"),
        column("Progress", progress, "num"),
    ]
    nothing = tables.empty(
        "No topic is written to a table",
        "A topic with the setting lake is written to a table by one job for all of them.",
        "headrace topic config orders --set lake=parquet+/srv/orders && headrace pipeline lake",
    )
    await ListView(page, "/pipeline", "topics", columns, fetch, nothing, "topic").show()
