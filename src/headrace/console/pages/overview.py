"""The overview: is all well, and if not, what and where."""

from __future__ import annotations

from headrace.console.client.models import Problem
from headrace.console.figures.table import number, optional
from headrace.console.ui import charts, formats, tables
from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page

TOP = 6
SPANS = {"15m": 900, "1h": 3600, "6h": 6 * 3600, "1d": 86_400, "14d": 14 * 86_400}


def span_of(page: Page) -> tuple[str, int]:
    """The period that a page's charts show."""
    name = page.query.get("span", "1h")
    return (name, SPANS[name]) if name in SPANS else ("1h", SPANS["1h"])


def span_links(page: Page, path: str, **query: str) -> Html:
    """The choice of it."""
    chosen, _ = span_of(page)
    links = [
        h(
            "a",
            name,
            href=page.link(path, **query, span=name),
            class_="b tiny quiet" if name != chosen else "b tiny",
            aria_current="true" if name == chosen else None,
        )
        for name in SPANS
    ]
    return h("span", links, class_="row-of", style="gap:2px")


async def build(page: Page) -> None:
    page.head("Overview", actions=span_links(page, "/"))
    page.live(lambda: _stats(page))
    page.show(h("div", class_="gap"))
    page.live(lambda: _problems(page))
    page.show(h("div", class_="gap"))
    await page.live_async(lambda: _charts(page))()
    page.live(lambda: _busiest(page))


def _stats(page: Page) -> Html:
    table = page.sampler.table
    node = table.node
    figures = page.sampler.node_figures()
    free, total = number(node, "disk_free_bytes"), number(node, "disk_bytes")
    used = (total - free) / total if total else None
    dead = figures.get("dead_rate", 0.0)
    lag = figures.get("lag", 0.0)
    errors = optional(node, "errors_rate")
    cards = [
        tables.stat(
            "Messages in",
            formats.rate(optional(node, "messages_in_rate")),
            f"{formats.byte_rate(optional(node, 'bytes_in_rate'))} in · "
            f"{formats.byte_rate(optional(node, 'bytes_out_rate'))} out",
            drawn=charts.spark(table.spark("node", *_node_key(page)), "messages a second, the last minutes"),
        ),
        tables.stat("Publish p99", formats.milliseconds(figures["p99_ms"] or None), "of the last minute"),
        tables.stat(
            "Lag of groups",
            formats.count(lag),
            formats.plural(len({key[0] for key in table.rows("groups")}), "group"),
            href=page.link("/groups", sort="lag", order="desc"),
        ),
        tables.stat(
            "Ready in queues",
            formats.count(figures.get("ready", 0.0)),
            formats.plural(len(table.rows("queues")), "queue"),
            href=page.link("/queues", sort="depth", order="desc"),
        ),
        tables.stat(
            "Dead letters",
            formats.rate(dead),
            f"{formats.count(figures.get('dead'))} since the start",
            kind="bad" if dead else "",
            href=page.link("/dead-letters"),
        ),
        tables.stat(
            "Errors answered",
            formats.rate(errors),
            f"of {formats.rate(optional(node, 'requests_rate'))} requests",
            kind="warn" if errors else "",
        ),
        tables.stat(
            "Disk",
            formats.percent(used),
            f"{formats.size(free)} free of {formats.size(total)}" if total else "",
            kind="bad" if used and used > 0.9 else "warn" if used and used > 0.8 else "",
        ),
        tables.stat(
            "Connections",
            formats.count(optional(node, "connections")),
            f"{formats.size(optional(node, 'memory_bytes'))} of memory",
            href=page.link("/clients"),
        ),
    ]
    return tables.stats(cards)


def _node_key(page: Page) -> tuple[str, ...]:
    return next(iter(page.sampler.table.rows("node")), ())


def _problems(page: Page) -> Html:
    overview = page.sampler.overview
    firing = page.entry.alerts.firing if page.entry.shows_all(page.session) else []
    problems = overview.problems if overview is not None else []
    if page.sampler.away is not None:
        return h("div", "What is wrong now is not known while the broker does not answer.", class_="note-box warn")
    if not problems and not firing:
        words = "Nothing is wrong that the broker or an alert knows of."
        return h("div", h("span", tables.mark("All well", "good"), " ", words), class_="note-box")
    rows: list[tuple[str, Child, Child]] = [
        (
            each.severity,
            h("a", each.name, href=page.link("/alerts")),
            f"{each.about}: {each.figure.replace('_', ' ')} {formats.figure(each.figure, each.value)}",
        )
        for each in firing[:10]
    ]
    rows += [(each.severity, _where(page, each), each.message) for each in problems[:20]]
    columns = [
        tables.Column[tuple[str, Child, Child]](
            "", lambda row: tables.mark(row[0], "bad" if row[0] == "critical" else "warn")
        ),
        tables.Column[tuple[str, Child, Child]]("Where", lambda row: row[1], "name"),
        tables.Column[tuple[str, Child, Child]]("What", lambda row: row[2]),
    ]
    more = overview.problems_total - len(problems[:20]) if overview is not None else 0
    foot = h("div", f"and {formats.plural(more, 'more problem')}", class_="foot") if more > 0 else None
    title = h("div", h("h2", "What is wrong now"), class_="section")
    return h("div", title, h("div", tables.table(columns, rows, "What is wrong now"), foot, class_="card"))


def _where(page: Page, problem: Problem) -> Child:
    """The subject of a problem, as a link to where it is looked at."""
    subject = {name: str(value) for name, value in problem.subject.items() if value is not None}
    if "group" in subject:
        return h("a", subject["group"], href=page.link("/group", name=subject["group"]))
    if "queue" in subject:
        return h(
            "a",
            f"{subject.get('topic')}/{subject['queue']}",
            href=page.link("/queue", topic=subject.get("topic"), name=subject["queue"]),
        )
    if "topic" in subject:
        return h("a", subject["topic"], href=page.link("/topic", name=subject["topic"]))
    return problem.kind.replace("_", " ")


async def _charts(page: Page) -> Html:
    if not page.entry.shows_all(page.session):
        return Html("")
    _, seconds = span_of(page)

    async def line(figure: str, name: str = "") -> charts.Line:
        return charts.Line(name, await page.history("node", "", figure, seconds))

    zone = page.zone
    return h(
        "div",
        charts.chart("Messages in", [await line("messages_in_rate")], formats.rate, zone, seconds),
        charts.chart(
            "Traffic",
            [await line("bytes_in_rate", "in"), await line("bytes_out_rate", "out")],
            formats.byte_rate,
            zone,
            seconds,
        ),
        charts.chart("Lag of groups", [await line("lag")], formats.count, zone, seconds),
        charts.chart("Ready in queues", [await line("ready")], formats.count, zone, seconds),
        class_="grid two",
    )


def _busiest(page: Page) -> Html:
    table = page.sampler.table
    topics = sorted(
        (
            (number(row, "messages_in_rate"), key[0], row)
            for key, row in table.rows("topics").items()
            if not row.get("internal")
        ),
        key=lambda each: (-each[0], each[1]),
    )[:TOP]
    behind: dict[str, float] = {}
    for (group, _), row in table.rows("groups").items():
        behind[group] = behind.get(group, 0.0) + number(row, "lag")
    groups = sorted(behind.items(), key=lambda each: (-each[1], each[0]))[:TOP]
    topic_columns = [
        tables.Column[tuple[float, str, object]](
            "Busiest topics", lambda row: h("a", row[1], href=page.link("/topic", name=row[1])), "name"
        ),
        tables.Column[tuple[float, str, object]]("", lambda row: charts.spark(table.spark("topics", row[1])), "num"),
        tables.Column[tuple[float, str, object]]("In", lambda row: formats.rate(row[0]), "num"),
    ]
    group_columns = [
        tables.Column[tuple[str, float]](
            "Groups that are most behind", lambda row: h("a", row[0], href=page.link("/group", name=row[0])), "name"
        ),
        tables.Column[tuple[str, float]]("Lag", lambda row: formats.count(row[1]), "num"),
    ]
    left: Child = tables.table(topic_columns, topics, "Busiest topics")
    if not topics:
        left = tables.empty(
            "No topics yet", "Publish a message, and its topic is made.", "echo hello | headrace produce greetings"
        )
    right: Child = tables.table(group_columns, groups, "Groups that are most behind")
    if not groups:
        right = tables.empty(
            "No consumer groups yet",
            "Read a topic with a group to see its lag here.",
            "headrace consume greetings --group readers",
        )
    return h(
        "div", h("div", left, class_="card"), h("div", right, class_="card"), class_="grid two", style="margin-top:12px"
    )
