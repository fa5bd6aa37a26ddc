"""The cluster: this broker, and the nodes of its group where there is one."""

from __future__ import annotations

from typing import Any

from headrace.console.figures.table import number, optional
from headrace.console.pages.overview import span_links, span_of
from headrace.console.ui import charts, formats, tables
from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page


async def build(page: Page) -> None:
    cluster = await page.api.cluster()
    page.head("Cluster", f"{cluster.cluster_id} · version {cluster.version}", span_links(page, "/cluster"))
    page.live(lambda: _node(page))
    if cluster.group:
        page.show(h("div", h("h2", "Group of nodes"), class_="section"), _group(cluster.group))
    else:
        page.show(
            h(
                "div",
                "One node. A group of nodes keeps every message on each of them: see docs/cluster.md.",
                class_="note-box",
                style="margin-top:12px",
            )
        )
    _, seconds = span_of(page)

    async def drawn() -> Html:
        if not page.entry.shows_all(page.session):
            return Html("")

        async def line(words: str, figure: str) -> charts.Line:
            return charts.Line(words, await page.history("node", "", figure, seconds))

        return h(
            "div",
            charts.chart("CPU", [await line("", "cpu_seconds_rate")], formats.percent, page.zone, seconds),
            charts.chart("Memory", [await line("", "memory_bytes")], formats.size, page.zone, seconds),
            charts.chart(
                "Requests",
                [await line("answered", "requests_rate"), await line("errors", "errors_rate")],
                formats.rate,
                page.zone,
                seconds,
            ),
            charts.chart("Disk that is free", [await line("", "disk_free_bytes")], formats.size, page.zone, seconds),
            class_="grid two",
        )

    page.show(h("div", class_="gap"))
    await page.live_async(drawn)()
    page.show(h("div", h("h2", "Requests"), class_="section"))
    page.live(lambda: _apis(page))


def _node(page: Page) -> Html:
    node = page.sampler.table.node
    started = optional(node, "started_ms")
    runs = (page.sampler.table.at_ms - started) / 1000 if started else None
    cards = [
        tables.stat("Runs for", formats.duration(runs), formats.moment(started, page.zone)),
        tables.stat("CPU", formats.percent(optional(node, "cpu_seconds_rate")), "of one core"),
        tables.stat("Memory", formats.size(optional(node, "memory_bytes"))),
        tables.stat(
            "Disk", formats.size(optional(node, "bytes")), f"{formats.size(optional(node, 'disk_free_bytes'))} free"
        ),
        tables.stat(
            "Partitions",
            formats.count(optional(node, "partitions")),
            f"{formats.count(number(node, 'offline_partitions'))} offline",
            "bad" if number(node, "offline") else "",
        ),
    ]
    return tables.stats(cards)


def _group(group: dict[str, Any]) -> Html:
    nodes = group.get("nodes")
    rows: list[dict[str, Any]] = list(nodes.values()) if isinstance(nodes, dict) else list(nodes or [])
    in_sync = set(group.get("isr") or [])
    leader = group.get("leader")
    column = tables.Column[dict[str, Any]]

    def id_of(row: dict[str, Any]) -> Any:
        return row.get("node_id", row.get("id", row.get("node")))

    def role(row: dict[str, Any]) -> Child:
        id = id_of(row)
        return [
            tables.mark("leads", "info") if id == leader else None,
            " ",
            tables.mark("in sync", "good") if id in in_sync else tables.mark("not in sync", "bad"),
        ]

    lag = group.get("lag_seconds")
    columns = [
        column("Node", lambda row: str(id_of(row)), "name"),
        column("State", role),
        column("Address", lambda row: h("code", str(row.get("http") or row.get("peer") or row.get("address") or "–"))),
        column(
            "Behind by", lambda row: formats.duration(lag.get(str(id_of(row)))) if isinstance(lag, dict) else "", "num"
        ),
    ]
    facts = tables.facts(
        [
            ("Role of this node", str(group.get("role"))),
            ("Epoch", str(group.get("epoch"))),
            ("Fewest in sync", str(group.get("min_insync_replicas"))),
            (
                "etcd",
                tables.mark("reached", "good") if group.get("etcd_reached") else tables.mark("not reached", "bad"),
            ),
        ]
    )
    listed = h("div", tables.table(columns, rows, "Nodes"), class_="card", style="margin-top:12px") if rows else None
    return h("div", h("div", facts, class_="card pad"), listed)


def _apis(page: Page) -> Html:
    rows = sorted(page.sampler.table.rows("apis").items(), key=lambda each: -number(each[1], "requests_rate"))[:25]
    column = tables.Column[tuple[tuple[str, ...], Any]]
    columns = [
        column("Request", lambda e: e[0][1], "name"),
        column("Door", lambda e: tables.mark(e[0][0], "plain")),
        column("Rate", lambda e: formats.rate(number(e[1], "requests_rate")), "num"),
        column("Errors", lambda e: formats.rate(number(e[1], "errors_rate")), "num"),
        column("p50", lambda e: formats.milliseconds(optional(e[1], "p50_ms")), "num"),
        column("p99", lambda e: formats.milliseconds(optional(e[1], "p99_ms")), "num"),
    ]
    return h("div", tables.table(columns, rows, "Requests"), class_="card")
