"""Topics: all of them, searched and sorted by the broker; and a new one."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from headrace.console.client import models as m
from headrace.console.ui import charts, formats, tables
from headrace.console.ui.dialogs import Answer, Field, ask
from headrace.console.ui.lists import ListView
from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page, explain
from headrace.errors import ConfigError

Column = tables.Column[m.Topic]


async def build(page: Page) -> None:
    internal = page.query.get("internal") == "true"
    page.on_change("create", lambda: create(page))
    other = h(
        "a",
        "Hide internal topics" if internal else "Show internal topics",
        href=page.link("/topics", internal=None if internal else "true"),
        class_="b quiet",
    )
    page.head("Topics", actions=page.button("New topic", "create", kind="main-action"))

    async def fetch(query: tables.ListQuery) -> tuple[Sequence[m.Topic], int]:
        found = await page.api.topics({**query.to_broker, "internal": internal})
        return found.topics, found.total

    table = page.sampler.table
    columns = [
        Column("Topic", lambda t: h("a", t.topic, href=page.link("/topic", name=t.topic)), "name", "topic"),
        Column("Partitions", lambda t: _partitions(t), "num", "partitions"),
        Column("Messages", lambda t: formats.count(t.messages), "num", "messages", "Those that are kept"),
        Column("Size", lambda t: formats.size(t.bytes), "num", "bytes"),
        Column("", lambda t: charts.spark(table.spark("topics", t.topic), f"messages a second into {t.topic}"), "num"),
        Column(
            "In",
            lambda t: formats.rate(rate_of(page, t.topic, "messages_in_rate", t.messages_in_rate)),
            "num",
            "messages_in_rate",
        ),
        Column(
            "Traffic",
            lambda t: formats.byte_rate(rate_of(page, t.topic, "bytes_in_rate", t.bytes_in_rate)),
            "num",
            "bytes_in_rate",
        ),
        Column("Queues", lambda t: t.queues or "", "num"),
        Column("Kept", lambda t: kept_for(t), "nowrap"),
    ]
    nothing = tables.empty(
        "No topics yet",
        "Make one here, or publish a message: its topic is made then.",
        "echo hello | headrace produce greetings",
    )
    await ListView(page, "/topics", "topics", columns, fetch, nothing, "topic", extra=other).show()


def rate_of(page: Page, topic: str, figure: str, given: float | None) -> float | None:
    """A rate as the sampler has it, or as the list came with it."""
    value = page.sampler.table.row("topics", topic).get(figure)
    return float(value) if isinstance(value, int | float) else given


def _partitions(topic: m.Topic) -> Child:
    if not topic.offline:
        return formats.count(topic.partitions)
    return h("span", tables.mark(f"{topic.offline} offline", "bad"), " ", formats.count(topic.partitions))


def kept_for(topic: m.Topic) -> Html:
    """How long messages stay, in words."""
    if "compact" in topic.cleanup_policy:
        return h("span", "compacted")
    if topic.retention_ms is None:
        return h("span", "")
    return h("span", "for ever" if topic.retention_ms < 0 else formats.milliseconds(topic.retention_ms))


def parse_settings(words: str) -> dict[str, str]:
    """Settings that are written as NAME=VALUE, one a line."""
    found = {}
    for line in words.splitlines():
        if line.strip():
            name, equals, value = line.partition("=")
            if not equals:
                raise ConfigError(f"a setting must be NAME=VALUE (got {line.strip()!r})")
            found[name.strip()] = value.strip()
    return found


def create(page: Page) -> None:
    """Ask for a new topic; the broker judges the form as it is filled in."""
    retention = [
        ("", "as the broker has it"),
        ("3600000", "1 hour"),
        ("86400000", "1 day"),
        ("604800000", "7 days"),
        ("2592000000", "30 days"),
        ("-1", "for ever"),
    ]
    fields = [
        Field("name", "Name", required=True, placeholder="orders"),
        Field(
            "partitions",
            "Partitions",
            kind="number",
            placeholder="as the broker has it",
            hint="They can be added later, not taken away.",
        ),
        Field("retention.ms", "Messages are kept", kind="select", choices=retention),
        Field(
            "cleanup.policy",
            "Old messages",
            kind="select",
            choices=[
                ("", "are deleted"),
                ("compact", "are compacted by key"),
                ("compact,delete", "are compacted and deleted"),
            ],
        ),
        Field(
            "durability",
            "An acknowledgement means",
            kind="select",
            choices=[
                ("", "as the broker has it"),
                ("sync", "sync: survives a power cut"),
                ("async", "async: survives a crash of the process"),
                ("memory", "memory: is never written"),
            ],
        ),
        Field(
            "more",
            "More settings",
            kind="area",
            placeholder="max.message.bytes=4000000\ndelay=true",
            hint="NAME=VALUE, one a line. A topic's page explains each.",
        ),
    ]

    def settings(answer: Answer) -> dict[str, str]:
        chosen = {name: answer[name] for name in ("retention.ms", "cleanup.policy", "durability") if answer.get(name)}
        return chosen | parse_settings(answer.get("more", ""))

    def partitions(answer: Answer) -> int | None:
        return int(answer["partitions"]) if answer.get("partitions") else None

    async def act(answer: Answer) -> None:
        await page.api.create_topic(answer["name"], partitions(answer), settings(answer))
        page.go("/topic", name=answer["name"])

    async def preview(answer: Answer) -> Child:
        found = await page.api.check_topic(answer.get("name", ""), partitions(answer), settings(answer))
        if found.valid:
            return h("div", tables.mark("The broker accepts this", "good"))
        return [
            h("div", f"{each.field}: {explain(ConfigError(each.message))}", class_="note-box bad")
            for each in found.problems
        ]

    def words(answer: Answer) -> str:
        sets = "".join(f" --set {quote(f'{name}={value}')}" for name, value in settings(answer).items())
        count = f" --partitions {answer['partitions']}" if answer.get("partitions") else ""
        return f"headrace topic create {quote(answer.get('name') or 'NAME')}{count}{sets}"

    async def stay() -> None:
        pass

    ask(
        page,
        "New topic",
        "Producers and consumers of every protocol see it at once.",
        act,
        fields,
        verb="Create topic",
        equivalent=words,
        preview=preview,
        is_wide=True,
        done="The topic is there.",
        again=stay,
    )
