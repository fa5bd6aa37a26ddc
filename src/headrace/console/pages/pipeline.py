"""The pipeline: jobs that write tables from topics, as the groups that they are to the broker, and how far they are."""

from __future__ import annotations

from headrace.console.client import models as m
from headrace.console.client.transport import ApiError
from headrace.console.figures.table import number
from headrace.console.ui import formats, tables
from headrace.console.ui.markup import h
from headrace.console.ui.page import Page, failure


async def build(page: Page) -> None:
    page.head("Pipeline", "Tables of the lake that follow topics, and the jobs that write them.")
    try:
        groups = await page.api.groups({"search": "*lake*", "limit": 100, "sort": "lag", "order": "desc"})
        archives = await page.api.groups({"search": "*archive*", "limit": 100, "sort": "lag", "order": "desc"})
    except ApiError as error:
        page.show(h("div", failure(error), class_="card"))
        return
    jobs = {each.group: each for each in (*groups.groups, *archives.groups)}
    if not jobs:
        nothing = tables.empty(
            "No job has read yet",
            "A topic with the setting `lake` is written to a table by one job for all of them.",
            "headrace topic config orders --set lake=parquet+/srv/orders && headrace pipeline lake",
        )
        page.show(h("div", nothing, class_="card"))
        return
    column = tables.Column[m.Group]
    columns = [
        column("Job", lambda g: h("a", g.group, href=page.link("/group", name=g.group)), "name"),
        column("Topics", lambda g: ", ".join(g.topics[:4]), "clip"),
        column("Lag", lambda g: formats.count(g.lag), "num"),
        column("Behind by", lambda g: formats.milliseconds(g.lag_ms), "num"),
        column(
            "Progress",
            lambda g: formats.rate(sum(number(row, "committed_rate") for row in page.sampler.table.group(g.group))),
            "num",
        ),
    ]
    page.show(h("div", tables.table(columns, jobs.values(), "Jobs"), class_="card"))
