"""One queue: figures, the messages of each state, settings; paused, emptied, deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from shlex import quote

from headrace.console.client import models as m
from headrace.console.figures.table import number
from headrace.console.pages.overview import span_links, span_of
from headrace.console.pages.queue_messages import STATES, show_messages
from headrace.console.pages.queues import queue_state
from headrace.console.pages.topic import tabs
from headrace.console.ui import charts, formats, tables
from headrace.console.ui.dialogs import Answer, Field, ask
from headrace.console.ui.markup import Html, h
from headrace.console.ui.page import Page, copy_button
from headrace.errors import ConfigError

TABS = {"": "Overview", "messages": "Messages", "settings": "Settings", "consumers": "Consumers"}
FIGURES = {"ready": "depth"}
"""The figures of states, where they are called otherwise."""
DOCS = {
    "timeout_ms": "The visibility timeout in ms; a consumer may ask for another.",
    "timeout_max_ms": "Touching does not extend a delivery beyond this, in ms.",
    "max_attempts": "After so many deliveries a message is dead; 0: never.",
    "backoff_ms": (
        "Delays after the first failed attempt, the second, ... in ms with commas between; the last one repeats."
    ),
    "dead_letter_topic": "Where dead messages go; made when it is first needed.",
    "filter": "Which messages the queue takes; the others are settled unseen.",
    "order_by_key": "At most one unsettled message of a key.",
    "dead_key": "What a dead message does to its key: release it, or park later messages with it, too.",
    "lookahead_max": "How many messages may be blocked before the queue stops looking further.",
    "deliveries": "The share of messages, 0 to 1, whose deliveries are recorded for their timeline.",
}


async def build(page: Page) -> None:
    topic, name = page.query.get("topic", ""), page.query.get("name", "")
    queue = await page.api.queue(topic, name)
    page.on_change("pause", lambda: _act(page, queue, "unpause" if queue.paused else "pause"))
    page.on_change("empty", lambda: _act(page, queue, "empty"))
    page.on_change("delete", lambda: _delete(page, queue))
    actions = [
        copy_button("Copy link", page.link("/queue", topic=topic, name=name)),
        page.button("Resume" if queue.paused else "Pause", "pause"),
        page.button("Empty", "empty", kind="danger"),
        page.button("Delete queue", "delete", kind="danger"),
    ]
    sub = ["of ", h("a", topic, href=page.link("/topic", name=topic)), " ", queue_state(queue.paused, queue.stuck)]
    page.head(name, sub, actions, h("a", "Queues", href=page.link("/queues")))
    if queue.move_error:
        page.show(
            h(
                "div",
                f"Dead messages cannot be moved to {queue.dead_letter_topic}: {queue.move_error}",
                class_="note-box bad",
            )
        )
    page.show(tabs(page, "/queue", TABS, topic=topic, name=name))
    tab = page.query.get("tab", "")
    if tab == "messages":
        await show_messages(page, queue)
    elif tab == "settings":
        _settings(page, queue)
    elif tab == "consumers":
        _consumers(page, queue)
    else:
        await _overview(page, queue)


async def _overview(page: Page, queue: m.Queue) -> None:
    def figure(name: str, given: float) -> float:
        row = page.sampler.table.row("queues", queue.topic, queue.queue)
        return number(row, name) if name in row else given

    def oldest() -> float | None:
        table = page.sampler.table
        return table.age_ms(table.row("queues", queue.topic, queue.queue))

    def stats() -> Html:
        def state(name: str, given: int, kind: str = "") -> Html:
            value = figure(FIGURES.get(name, name), given)
            href = page.link("/queue", topic=queue.topic, name=queue.queue, tab="messages", state=name)
            return tables.stat(STATES[name], formats.count(value), kind=kind if value else "", href=href)

        dead = page.link("/dead-letters", topic=queue.dead_letter_topic)
        cards = [
            state("ready", queue.depth),
            state("in_flight", queue.in_flight),
            state("deferred", queue.deferred),
            state("blocked", queue.blocked),
            tables.stat(
                "Dead",
                formats.count(figure("dead", queue.dead)),
                "since the start",
                "bad" if figure("dead", queue.dead) else "",
                href=dead,
            ),
            tables.stat("Oldest", formats.milliseconds(oldest()), "of those that are not settled"),
            tables.stat(
                "Out",
                formats.rate(figure("finished_rate", 0)),
                f"{formats.rate(figure('requeued_rate', 0))} given back",
            ),
            tables.stat("Consumers", formats.count(figure("consumers", queue.consumers))),
        ]
        return tables.stats(cards)

    page.live(stats)
    page.show(
        h(
            "div",
            h("h2", "Over time"),
            h("span", class_="grow"),
            span_links(page, "/queue", topic=queue.topic, name=queue.queue),
            class_="section",
        )
    )
    _, seconds = span_of(page)
    name = f"{queue.topic}/{queue.queue}"

    async def drawn() -> Html:
        async def line(words: str, figure: str) -> charts.Line:
            return charts.Line(words, await page.history("queues", name, figure, seconds))

        states = [await line(words.lower(), FIGURES.get(each, each)) for each, words in list(STATES.items())[:3]]
        rates = [
            await line("delivered", "delivered_rate"),
            await line("finished", "finished_rate"),
            await line("given back", "requeued_rate"),
            await line("dead", "dead_rate"),
        ]
        return h(
            "div",
            charts.chart("Messages by state", states, formats.count, page.zone, seconds),
            charts.chart("Deliveries", rates, formats.rate, page.zone, seconds),
            class_="grid two",
        )

    await page.live_async(drawn)()


def _settings(page: Page, queue: m.Queue) -> None:
    page.on_change("change", lambda name: _change(page, queue, name))
    column = tables.Column[tuple[str, object]]
    columns = [
        column("Setting", lambda row: h("code", row[0]), "name nowrap"),
        column("Value", lambda row: h("code", shown(row[1])), "clip"),
        column("What it does", lambda row: h("span", DOCS.get(row[0], ""), class_="small muted")),
        column("", lambda row: page.button("Change", "change", row[0], "tiny", label=f"Change {row[0]}"), "act"),
    ]
    rows = sorted(queue.settings.items())
    page.show(h("div", tables.table(columns, rows, "Settings of the queue"), class_="card"))


def shown(value: object) -> str:
    """The value of a queue's setting, as people write it."""
    if isinstance(value, list):
        return ",".join(map(str, value)) or "empty"
    return "empty" if value == "" else json.dumps(value) if not isinstance(value, str) else value


def parsed(words: str, before: object) -> object:
    """What was written, as the setting's type."""
    try:
        if isinstance(before, bool):
            return words == "true"
        if isinstance(before, int):
            return int(words)
        if isinstance(before, float):
            return float(words)
        if isinstance(before, list):
            return [int(each) for each in words.split(",") if each.strip()]
    except ValueError:
        raise ConfigError(f"{words!r} is not a number") from None
    return words


def _change(page: Page, queue: m.Queue, name: str) -> None:
    before = queue.settings[name]
    words = "" if before in ("", []) else shown(before)
    if isinstance(before, bool):
        field = Field("value", name, words, kind="select", choices=[("true", "true"), ("false", "false")])
    else:
        field = Field("value", name, words)

    async def act(answer: Answer) -> None:
        await page.api.change_queue(queue.topic, queue.queue, {name: parsed(answer.get("value", ""), before)})

    flag = "--" + name.replace("_", "-")
    ask(
        page,
        f"Change {name} of {queue.queue}",
        f"{DOCS.get(name, '')} It takes effect at once, also for messages that are in the queue.",
        act,
        [field],
        verb="Change",
        done=f"{name} is changed.",
        equivalent=lambda a: (
            f"headrace queue set {quote(queue.topic)} {quote(queue.queue)} {flag} {quote(a.get('value', ''))}"
        ),
    )


def _consumers(page: Page, queue: m.Queue) -> None:
    if not queue.subscriptions:
        page.show(
            h(
                "div",
                tables.empty(
                    "Nobody consumes this queue",
                    "Subscribe with a client of NSQ, RocketMQ or HTTP, or with the framework.",
                ),
                class_="card",
            )
        )
        return
    column = tables.Column[dict[str, object]]
    columns = [column("Consumer", lambda row: str(row.get("label") or row.get("id")), "name")]
    for name, title in (
        ("credit", "Takes up to"),
        ("in_flight", "In flight"),
        ("delivered", "Delivered"),
        ("finished", "Finished"),
        ("requeued", "Given back"),
        ("timed_out", "Timed out"),
    ):
        columns.append(column(title, _counted(name), "num"))
    page.show(h("div", tables.table(columns, queue.subscriptions, "Consumers"), class_="card"))


def _counted(name: str) -> Callable[[dict[str, object]], str]:
    return lambda row: formats.count(float(str(row.get(name) or 0)))


WORDS = {
    "pause": (
        "Pause",
        "Nothing is delivered until the queue is resumed. Messages in flight can still be settled.",
        "The queue is paused.",
    ),
    "unpause": ("Resume", "Deliveries resume.", "The queue delivers again."),
    "empty": (
        "Empty",
        "All messages of the queue are settled undelivered. The topic keeps them, other queues too.",
        "The queue is empty.",
    ),
}


def _act(page: Page, queue: m.Queue, action: str) -> None:
    verb, what, done = WORDS[action]

    async def act(_: Answer) -> None:
        await page.api.act_on_queue(queue.topic, queue.queue, action)

    if action == "empty":
        count = queue.depth + queue.deferred + queue.blocked
        what = (
            f"{formats.plural(count, 'message')} of {queue.queue} are settled undelivered. The topic keeps "
            "them, and so do other queues."
        )
    ask(
        page,
        f"{verb} {queue.queue}",
        what,
        act,
        verb=verb,
        done=done,
        is_danger=action == "empty",
        equivalent=(
            f"headrace queue {action} {quote(queue.topic)} {quote(queue.queue)}{' --yes' if action == 'empty' else ''}"
        ),
    )


def _delete(page: Page, queue: m.Queue) -> None:
    async def act(_: Answer) -> None:
        await page.api.delete_queue(queue.topic, queue.queue)

    async def leave() -> None:
        page.go("/queues")

    what = (
        f"{queue.queue} and its state are deleted, and {formats.plural(queue.consumers, 'consumer')} cut "
        f"off. The messages stay in {queue.topic}."
    )
    ask(
        page,
        f"Delete {queue.queue}",
        what,
        act,
        verb="Delete queue",
        is_danger=True,
        done="The queue is deleted.",
        again=leave,
        equivalent=f"headrace queue delete {quote(queue.topic)} {quote(queue.queue)} --yes",
    )
