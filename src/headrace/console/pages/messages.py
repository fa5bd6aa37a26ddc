"""Messages: found in all topics by key, id, header or trace; and the life of one as a timeline."""

from __future__ import annotations

from headrace.console.client import models as m
from headrace.console.client.transport import ApiError
from headrace.console.pages.browse import message_columns, open_message, parse_id
from headrace.console.sessions import Role
from headrace.console.ui import formats, tables
from headrace.console.ui.markup import Html, h
from headrace.console.ui.page import Page

NAMES_MAX = 8
BY = (
    ("key", "Key"),
    ("id", "Id (TOPIC/PARTITION/OFFSET)"),
    ("header", "Header (NAME=VALUE)"),
    ("trace", "Trace id"),
    ("unique_key", "RocketMQ's unique key"),
    ("tag", "Tag"),
)
SINCE = (("", "the last day"), ("1h", "the last hour"), ("7d", "the last 7 days"), ("all", "all time"))


async def build(page: Page) -> None:
    page.on("open", lambda id: open_message(page, id))
    page.on("find", lambda given: page.go("/messages", **{name: value for name, value in given.items() if value}))
    page.head("Messages", "Find a message in all topics that you may read.")
    if not page.may(Role.READER):
        page.show(
            h(
                "div",
                tables.empty("You may not read messages", "Ask for the role reader, or a higher one."),
                class_="card",
            )
        )
        return
    by, words = page.query.get("by", "key"), page.query.get("q", "")
    choices = [h("option", title, value=name, selected=name == by) for name, title in BY]
    times = [h("option", title, value=name, selected=name == page.query.get("since", "")) for name, title in SINCE]
    page.show(
        h(
            "form",
            h(
                "div",
                h(
                    "label",
                    h("span", "By"),
                    h("select", choices, name="by", class_="f", style="width:100%"),
                    class_="field",
                ),
                h(
                    "label",
                    h("span", "Value"),
                    h("input", name="q", value=words, class_="f", data_filter=True, required=True),
                    class_="field",
                ),
                h(
                    "label",
                    h("span", "Topics"),
                    h(
                        "input",
                        name="topics",
                        value=page.query.get("topics", ""),
                        class_="f",
                        placeholder="all, or a pattern: orders*",
                    ),
                    class_="field",
                ),
                h(
                    "label",
                    h("span", "Published in"),
                    h("select", times, name="since", class_="f", style="width:100%"),
                    class_="field",
                ),
                class_="fields",
            ),
            h("div", h("button", "Find", class_="b main-action"), style="margin-top:10px"),
            data_form="find",
            class_="card pad",
            role="search",
            style="margin-bottom:12px",
        )
    )
    if not words:
        return
    if by == "id" or (by == "trace" and not page.query.get("topics")):
        page.go("/life", id=words)
        return
    await results(page, by if by in dict(BY) else "key", words)


def since_ms(page: Page) -> str:
    """The beginning of the period that is searched, as the API has it."""
    name = page.query.get("since", "")
    hours = {"": 24, "1h": 1, "7d": 168}.get(name)
    return str(page.sampler.table.at_ms - hours * 3_600_000) if hours and page.sampler.table.at_ms else ""


async def results(page: Page, by: str, words: str) -> int:
    """Search all topics, and show what is found; how many."""
    query: dict[str, str | int] = {by: words, "since": since_ms(page), "limit": 100, "value_max": 512}
    query |= {name: page.query.get(name, "") for name in ("topics", "after")}
    found = await page.api.find(query)
    further = (
        h("a", "Go on", class_="b tiny", href=page.link("/messages", **{**page.query, "after": str(found.next)}))
        if found.next
        else None
    )
    if not found.messages and further is not None:
        words = "Nothing found so far. A broker looks for two seconds at a time."
        page.show(h("div", tables.empty(words, "There is more to look through."), h("p", further), class_="card pad"))
        return 0
    if not found.messages:
        advice = (
            "Look in a longer time, or by something else. A topic with an index (its setting index) is searched faster."
        )
        page.show(
            h(
                "div",
                tables.empty(
                    "No message found",
                    advice,
                    f"headrace topic config TOPIC --set index={'key' if by == 'key' else 'header:NAME'}",
                ),
                class_="card",
            )
        )
        return 0
    columns = [
        *message_columns(page),
        tables.Column[m.Message](
            "",
            lambda e: h(
                "a", "Its life", class_="b tiny", href=page.link("/life", id=f"{e.topic}/{e.partition}/{e.offset}")
            ),
            "act",
        ),
    ]
    foot = h("div", formats.plural(len(found.messages), "message"), h("span", class_="grow"), further, class_="foot")
    page.show(h("div", tables.table(columns, found.messages, "Messages that were found"), foot, class_="card"))
    return len(found.messages)


async def find(page: Page) -> None:
    """What the field at the top finds: things by their names, else messages by their key."""
    words = page.query.get("q", "")
    if words.count("/") >= 2:
        try:
            parse_id(words)
        except ValueError:
            pass
        else:
            page.go("/life", id=words)
            return
    page.head(f"Found for “{words}”")
    page.on("open", lambda id: open_message(page, id))
    query: dict[str, str | int] = {"search": words, "limit": NAMES_MAX}
    rows: list[tuple[str, Html]] = []
    for each in (await page.api.topics(query)).topics:
        rows.append(("topic", h("a", each.topic, href=page.link("/topic", name=each.topic))))
    for queue in (await page.api.queues(query)).queues:
        link = page.link("/queue", topic=queue.topic, name=queue.queue)
        rows.append(("queue", h("a", f"{queue.topic}/{queue.queue}", href=link)))
    for group in (await page.api.groups(query)).groups:
        rows.append(("group", h("a", group.group, href=page.link("/group", name=group.group))))
    try:
        for app in (await page.api.apps(query)).apps:
            rows.append(("app", h("a", app.app, href=page.link("/app", name=app.app))))
    except ApiError as error:
        if not error.is_missing_route:
            raise
    if rows:
        column = tables.Column[tuple[str, Html]]
        columns = [column("Kind", lambda row: tables.mark(row[0], "plain")), column("Name", lambda row: row[1], "name")]
        page.show(h("div", tables.table(columns, rows, "What was found"), class_="card"))
    if page.may(Role.READER):
        page.show(h("div", h("h2", f"Messages with the key “{words}”"), class_="section"))
        await results(page, "key", words)
