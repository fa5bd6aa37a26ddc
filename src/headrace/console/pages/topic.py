"""One topic: figures, messages, partitions, settings, and who reads it."""

from __future__ import annotations

from shlex import quote

from headrace.console.client import models as m
from headrace.console.pages import browse
from headrace.console.pages.overview import span_links, span_of
from headrace.console.pages.topics import kept_for, rate_of
from headrace.console.ui import charts, formats, tables
from headrace.console.ui.dialogs import Answer, Field, ask
from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page, copy_button
from headrace.errors import ConfigError

TABS = {"": "Overview", "messages": "Messages", "partitions": "Partitions", "settings": "Settings"}


def tabs(page: Page, path: str, names: dict[str, str], **query: str) -> Html:
    """The tabs of a page about one thing; its address has which is open."""
    here = page.query.get("tab", "")
    links = [
        h("a", title, href=page.link(path, **query, tab=name), aria_current="page" if name == here else None)
        for name, title in names.items()
    ]
    return h("nav", links, class_="tabs", aria_label="Parts of this page")


async def build(page: Page) -> None:
    name = page.query.get("name", "")
    topic = await page.api.topic(name)
    page.on_change("produce", lambda: produce(page, topic))
    page.on_change("delete-records", lambda: delete_records(page, topic))
    page.on_change("delete", lambda: delete(page, topic))
    actions = [
        copy_button("Copy link", page.link("/topic", name=name)),
        page.button("Produce", "produce"),
        page.button("Delete records", "delete-records", kind="danger"),
        page.button("Delete topic", "delete", kind="danger"),
    ]
    marks = tables.mark(f"{topic.offline} partitions offline", "bad") if topic.offline else None
    sub = [
        formats.plural(topic.partitions, "partition"),
        " · kept ",
        kept_for(topic),
        f" · {topic.durability} " if topic.durability else " ",
        marks,
    ]
    page.head(name, sub, actions, h("a", "Topics", href=page.link("/topics")))
    page.show(tabs(page, "/topic", TABS, name=name))
    tab = page.query.get("tab", "")
    if tab == "messages":
        await browse.build(page, topic)
    elif tab == "partitions":
        _partitions(page, topic)
    elif tab == "settings":
        await _settings(page, name)
    else:
        await _overview(page, topic)


async def _overview(page: Page, topic: m.TopicDetail) -> None:
    name = topic.topic

    def stats() -> Html:
        row = page.sampler.table.row("topics", name)
        size = row.get("bytes")
        cards = [
            tables.stat(
                "Messages in",
                formats.rate(rate_of(page, name, "messages_in_rate", topic.messages_in_rate)),
                drawn=charts.spark(page.sampler.table.spark("topics", name)),
            ),
            tables.stat("In", formats.byte_rate(rate_of(page, name, "bytes_in_rate", topic.bytes_in_rate))),
            tables.stat("Out", formats.byte_rate(rate_of(page, name, "bytes_out_rate", None))),
            tables.stat("Messages kept", formats.count(_number(row.get("messages"), topic.messages))),
            tables.stat("Size", formats.size(_number(size, topic.bytes))),
        ]
        return tables.stats(cards)

    page.live(stats)
    page.show(
        h(
            "div",
            h("h2", "Over time"),
            h("span", class_="grow"),
            span_links(page, "/topic", name=name),
            class_="section",
        )
    )
    _, seconds = span_of(page)

    async def drawn() -> Html:
        points = {
            each: await page.history("topics", name, each, seconds)
            for each in ("messages_in_rate", "bytes_in_rate", "bytes_out_rate")
        }
        traffic = [charts.Line("in", points["bytes_in_rate"]), charts.Line("out", points["bytes_out_rate"])]
        return h(
            "div",
            charts.chart(
                "Messages in", [charts.Line("", points["messages_in_rate"])], formats.rate, page.zone, seconds
            ),
            charts.chart("Traffic", traffic, formats.byte_rate, page.zone, seconds),
            class_="grid two",
        )

    await page.live_async(drawn)()
    page.show(h("div", h("h2", "Who reads it"), class_="section"))
    page.live(lambda: _readers(page, topic))


def _number(value: object, given: float | None) -> float | None:
    return float(value) if isinstance(value, int | float) else given


def _readers(page: Page, topic: m.TopicDetail) -> Html:
    table = page.sampler.table
    rows: list[tuple[str, Child, Child, Child]] = []
    for group in topic.groups:
        row = table.row("groups", group, topic.topic)
        lag = row.get("lag")
        link = h("a", group, href=page.link("/group", name=group))
        rows.append(
            (
                "group",
                link,
                formats.count(float(lag)) if isinstance(lag, int | float) else formats.DASH,
                str(row.get("state") or ""),
            )
        )
    for queue in topic.queue_names:
        row = table.row("queues", topic.topic, queue)
        ready = row.get("depth")
        link = h("a", queue, href=page.link("/queue", topic=topic.topic, name=queue))
        state = "paused" if row.get("paused") else f"{row.get('consumers', 0)} consumers"
        rows.append(
            ("queue", link, formats.count(float(ready)) if isinstance(ready, int | float) else formats.DASH, state)
        )
    if not rows:
        nothing = tables.empty(
            "Nobody reads this topic",
            "Read it with a consumer group, or give it a queue.",
            f"headrace consume {topic.topic} --group readers",
        )
        return h("div", nothing, class_="card")
    column = tables.Column[tuple[str, Child, Child, Child]]
    columns = [
        column("Kind", lambda row: tables.mark(row[0], "plain")),
        column("Name", lambda row: row[1], "name"),
        column("Lag", lambda row: row[2], "num"),
        column("State", lambda row: row[3]),
    ]
    return h("div", tables.table(columns, rows, "Who reads it"), class_="card")


def _partitions(page: Page, topic: m.TopicDetail) -> None:
    page.on_change("add", lambda: add_partitions(page, topic))
    page.show(
        h("div", h("span", class_="grow"), page.button("Add partitions", "add"), class_="section", style="margin-top:0")
    )
    column = tables.Column[m.TopicPartition]
    largest = max((each.bytes or 0 for each in topic.partition_list), default=0) or 1
    columns = [
        column(
            "Partition",
            lambda p: h(
                "a", p.partition, href=page.link("/topic", name=topic.topic, tab="messages", partition=p.partition)
            ),
            "name",
        ),
        column("First offset", lambda p: formats.count(p.start) if p.start is None else f"{p.start:,}", "num"),
        column("End offset", lambda p: "–" if p.end is None else f"{p.end:,}", "num", hint="The high watermark"),
        column("Messages", lambda p: formats.count((p.end or 0) - (p.start or 0)) if p.end is not None else "–", "num"),
        column(
            "Open transactions hold",
            lambda p: (
                formats.count(p.end - p.last_stable)
                if p.end is not None and p.last_stable is not None and p.last_stable < p.end
                else ""
            ),
            "num",
        ),
        column(
            "Size",
            lambda p: h(
                "span",
                h("i", class_="bar-of", style=f"width:{60 * (p.bytes or 0) // largest}px"),
                " ",
                formats.size(p.bytes),
            ),
            "num",
        ),
        column("Leader", lambda p: "" if p.leader is None else p.leader, "num"),
        column("In sync", lambda p: f"{len(p.isr)} of {len(p.replicas)}" if p.replicas else "", "num"),
        column(
            "State",
            lambda p: tables.mark(f"offline: {p.offline}", "bad") if p.offline else tables.mark("online", "good"),
        ),
    ]
    page.show(h("div", tables.table(columns, topic.partition_list, "Partitions"), class_="card"))


def add_partitions(page: Page, topic: m.TopicDetail) -> None:
    async def act(answer: Answer) -> None:
        await page.api.add_partitions(topic.topic, int(answer["count"]))

    what = (
        f"{topic.topic} has {formats.plural(topic.partitions, 'partition')}. Messages with a key go to "
        "other partitions from then on, "
        "so the order of a key is not kept across the change."
    )
    ask(
        page,
        "Add partitions",
        what,
        act,
        [Field("count", "How many there are to be", str(topic.partitions + 1), kind="number", required=True)],
        verb="Add partitions",
        done="The partitions are there.",
        equivalent=lambda answer: f"headrace topic partitions {quote(topic.topic)} {answer.get('count', '')}",
    )


async def _settings(page: Page, name: str) -> None:
    found = (await page.api.topic_settings(name)).settings
    search = page.query.get("search", "").lower()
    show_all = page.query.get("all") == "true"
    page.on(
        "search",
        lambda given: page.go(
            "/topic", name=name, tab="settings", all=page.query.get("all"), search=given.get("search", "")
        ),
    )
    page.on_change("change", lambda setting: change(page, name, next(each for each in found if each.name == setting)))
    shown = [each for each in found if (show_all or each.honoured) and search in f"{each.name} {each.doc}".lower()]
    own = [each for each in shown if each.source == "topic"]
    rest = [each for each in shown if each.source != "topic"]
    field = h(
        "input",
        name="search",
        value=page.query.get("search", ""),
        class_="f",
        type="search",
        data_filter=True,
        placeholder="Filter settings",
        aria_label="Filter settings",
        style="max-width:340px",
    )
    other = h(
        "a",
        "Hide those without effect" if show_all else "Show those without effect, too",
        class_="b quiet",
        href=page.link("/topic", name=name, tab="settings", all=None if show_all else "true"),
    )
    page.show(h("form", h("div", field, other, class_="row-of"), data_form="search", style="margin-bottom:12px"))
    column = tables.Column[m.Setting]
    columns = [
        column("Setting", lambda s: h("code", s.name), "name nowrap"),
        column("Value", lambda s: h("code", _value(s.value)), "clip"),
        column(
            "From",
            lambda s: tables.mark(
                {"topic": "this topic", "broker": "the broker"}.get(s.source, "default"),
                "info" if s.source == "topic" else "plain",
            ),
            "nowrap",
        ),
        column("What it does", lambda s: h("span", tables.prose(s.doc), class_="small muted")),
        column("", lambda s: page.button("Change", "change", s.name, "tiny", label=f"Change {s.name}"), "act"),
    ]
    for title, rows in (("Set for this topic", own), ("All others" if own else "All settings", rest)):
        if rows:
            page.show(
                h("div", h("h2", title), class_="section"), h("div", tables.table(columns, rows, title), class_="card")
            )
    if not shown:
        page.show(h("div", tables.empty("Nothing found", "No setting fits the filter."), class_="card"))


def _value(value: str | None) -> str:
    return "empty" if value == "" else formats.DASH if value is None else value


def change(page: Page, topic: str, setting: m.Setting) -> None:
    """Ask for another value of a setting; the broker judges it, and says what changes."""
    choices = setting.choices or (["true", "false"] if setting.type == "boolean" else [])
    if choices:
        field = Field(
            "value", setting.name, setting.value or "", kind="select", choices=[(each, each) for each in choices]
        )
    else:
        field = Field(
            "value", setting.name, setting.value or "", hint=f"{setting.type}; the default is {_value(setting.default)}"
        )

    def value(answer: Answer) -> str | None:
        return None if answer.get("default") else answer.get("value", "")

    async def act(answer: Answer) -> None:
        await page.api.change_topic(topic, {setting.name: value(answer)}, dry_run=False)

    async def preview(answer: Answer) -> Child:
        found = (await page.api.change_topic(topic, {setting.name: value(answer)}, dry_run=True)).changed
        if not found:
            return h("div", "Nothing would change.", class_="note-box")
        return [
            h("div", h("code", each.name), f" {_value(each.before)} → {_value(each.after)}", class_="note-box")
            for each in found
        ]

    def words(answer: Answer) -> str:
        new = value(answer)
        way = f"--delete {setting.name}" if new is None else f"--set {quote(f'{setting.name}={new}')}"
        return f"headrace topic config {quote(topic)} {way}"

    fields = [field]
    if setting.source == "topic":
        fields.append(Field("default", "Back to the default", kind="check"))
    ask(
        page,
        f"Change {setting.name} of {topic}",
        [tables.prose(setting.doc), " It takes effect at once."],
        act,
        fields,
        verb="Change",
        equivalent=words,
        preview=preview,
        done=f"{setting.name} is changed.",
    )


def produce(page: Page, topic: m.TopicDetail) -> None:
    """Ask for a message, and publish it."""
    fields = [
        Field("key", "Key"),
        Field("partition", "Partition", kind="number", placeholder="by the key"),
        Field("delay", "Delay", placeholder="none, or 30s, 5m, 2h"),
        Field("value", "Value", kind="area", required=True),
        Field("headers", "Headers", kind="area", placeholder="trace=7", hint="NAME=VALUE, one a line."),
    ]

    async def act(answer: Answer) -> None:
        body: dict[str, object] = {"value": answer.get("value", "")}
        if answer.get("key"):
            body["key"] = answer["key"]
        if answer.get("partition"):
            body["partition"] = int(answer["partition"])
        if answer.get("delay"):
            body["delay"] = answer["delay"]
        headers = []
        for line in answer.get("headers", "").splitlines():
            name, equals, value = line.partition("=")
            if line.strip() and not equals:
                raise ConfigError(f"a header must be NAME=VALUE (got {line!r})")
            if line.strip():
                headers.append({"name": name.strip(), "value": value})
        if headers:
            body["headers"] = headers
        await page.api.produce(topic.topic, body)

    def words(answer: Answer) -> str:
        options = "".join(
            f" --{name} {quote(answer[name])}" for name in ("key", "partition", "delay") if answer.get(name)
        )
        return f"echo {quote(answer.get('value', ''))} | headrace produce {quote(topic.topic)}{options}"

    ask(
        page,
        f"Produce to {topic.topic}",
        "The message is stored at once, and every reader of the topic sees it.",
        act,
        fields,
        verb="Publish",
        equivalent=words,
        done="The message is published.",
        is_wide=True,
    )


def delete_records(page: Page, topic: m.TopicDetail) -> None:
    """Ask up to where records are deleted."""
    hours = [
        ("all", "all that is there now"),
        ("1", "those older than 1 hour"),
        ("24", "those older than 1 day"),
        ("168", "those older than 7 days"),
    ]

    def which(answer: Answer) -> dict[str, object]:
        chosen = answer.get("older", "all")
        if chosen == "all":
            return {"all": True}
        return {"before_ms": page.sampler.table.at_ms - int(chosen) * 3_600_000}

    async def act(answer: Answer) -> None:
        await page.api.delete_records(topic.topic, which(answer), dry_run=False)

    async def preview(answer: Answer) -> Child:
        found = (await page.api.delete_records(topic.topic, which(answer), dry_run=True)).partitions
        total = sum(each.deleted for each in found)
        some = [each for each in found if each.deleted]
        words = f"{formats.plural(total, 'record')} of {formats.plural(len(some), 'partition')} would be deleted."
        return h("div", words, class_="note-box warn")

    ask(
        page,
        f"Delete records of {topic.topic}",
        "Records are deleted for every reader, and cannot be brought back. Those who have not read them lose them.",
        act,
        [Field("older", "Which", kind="select", choices=hours)],
        verb="Delete records",
        is_danger=True,
        preview=preview,
        equivalent=f"headrace topic delete-records {quote(topic.topic)}",
        done="The records are deleted.",
    )


def delete(page: Page, topic: m.TopicDetail) -> None:
    """Ask before the topic goes: its name has to be written."""

    async def act(answer: Answer) -> None:
        if answer.get("name") != topic.topic:
            raise ConfigError(f"write {topic.topic} to delete it (got {answer.get('name')!r})")
        await page.api.delete_topic(topic.topic)

    async def leave() -> None:
        page.go("/topics")

    readers = len(topic.groups) + len(topic.queue_names)
    what = (
        f"{topic.topic} and its {formats.plural(topic.messages or 0, 'message')} are deleted, with "
        f"{formats.plural(readers, 'reader')}' positions. This cannot be undone."
    )
    ask(
        page,
        f"Delete {topic.topic}",
        what,
        act,
        [Field("name", "Write the topic's name", required=True)],
        verb="Delete topic",
        is_danger=True,
        equivalent=f"headrace topic delete {quote(topic.topic)} --yes",
        done="The topic is deleted.",
        again=leave,
    )
