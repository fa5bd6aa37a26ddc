"""Messages: found in all topics by key, id, header or trace; and the life of one as a timeline."""

from __future__ import annotations

from shlex import quote

from headrace.console.client import models as m
from headrace.console.client.transport import ApiError
from headrace.console.pages.browse import key_of, message_columns, open_message, parse_id, pretty
from headrace.console.sessions import Role
from headrace.console.ui import formats, tables
from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page, command, copy_button
from headrace.errors import ConfigError

NAMES_MAX = 8
TOPICS_MAX = 10
BY = (
    ("key", "Key"),
    ("id", "Id (TOPIC/PARTITION/OFFSET)"),
    ("header", "Header (NAME=VALUE)"),
    ("trace", "Trace id"),
    ("unique_key", "RocketMQ's unique key"),
    ("tag", "Tag"),
)
SINCE = (("", "the last day"), ("1h", "the last hour"), ("7d", "the last 7 days"), ("all", "all time"))
KINDS = {
    "dead": "bad",
    "timed_out": "bad",
    "failed": "bad",
    "requeued": "warn",
    "released": "warn",
    "finished": "good",
    "redriven": "good",
    "read": "good",
}
WORDS = {
    "produced": "Published",
    "delivered": "Delivered",
    "finished": "Finished",
    "requeued": "Given back",
    "timed_out": "Timed out",
    "dead": "Given up: a dead letter",
    "redriven": "Sent back from the dead letters",
    "read": "Read",
    "released": "Its consumer disconnected",
    "touched": "Held for longer",
}


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
    if by == "id":
        page.go("/life", id=words)
        return
    await results(page, by if by in dict(BY) else "key", words)


def since_ms(page: Page) -> str:
    """The beginning of the period that is searched, as the API has it."""
    name = page.query.get("since", "")
    hours = {"": 24, "1h": 1, "7d": 168}.get(name)
    return f"ms:{page.sampler.table.at_ms - hours * 3_600_000}" if hours and page.sampler.table.at_ms else ""


async def search(page: Page, by: str, words: str) -> m.Messages:
    """Search all topics; where the broker cannot, those that fit the pattern, one after the other, the newest first."""
    topics, since = page.query.get("topics", ""), since_ms(page)
    try:
        return await page.api.find({by: words, "topics": topics, "since": since, "limit": 100})
    except ApiError as error:
        if not error.is_missing_route or by not in ("key", "header"):
            raise
    listed = await page.api.topics({"search": topics, "limit": TOPICS_MAX, "sort": "messages", "order": "desc"})
    found: list[m.Message] = []
    for each in listed.topics:
        query: dict[str, str | int] = {by: words, "newest": True, "limit": 20, "value_max": 512}
        found += (await page.api.browse(each.topic, query)).messages
    return m.Messages(messages=found)


async def results(page: Page, by: str, words: str) -> int:
    """Search, and show what is found; how many."""
    found = await search(page, by, words)
    if not found.messages:
        advice = (
            "Look in a longer time, or by something else. A topic with an index (the setting `index`) is "
            "searched faster."
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
    more = "More were found than are shown: narrow the search." if found.next else ""
    foot = h("div", formats.plural(len(found.messages), "message"), " ", more, class_="foot")
    page.show(h("div", tables.table(columns, found.messages, "Messages that were found"), foot, class_="card"))
    return len(found.messages)


async def life(page: Page) -> None:
    """One message: what it is, and what became of it."""
    id = page.query.get("id", "")
    try:
        topic, partition, offset = parse_id(id)
    except ValueError:
        raise ConfigError(f"a message is named TOPIC/PARTITION/OFFSET (got {id!r})") from None
    try:
        found = await page.api.life(topic, partition, offset)
    except ApiError as error:
        if not error.is_missing_route:
            raise
        message = await page.api.message(topic, partition, offset)
        found = m.Life(message=message, hint="This broker tells the life of a message to the command below.")
    page.on("open", lambda which: open_message(page, which))
    actions = [
        copy_button("Copy link", page.link("/life", id=id)),
        h("button", "Open the message", type="button", class_="b", data_do="open", data_arg=id),
    ]
    page.head(id, None, actions, h("a", "Messages", href=page.link("/messages")))
    if found.message is not None:
        message = found.message
        pairs: list[tuple[str, Child]] = [
            ("Topic", h("a", topic, href=page.link("/topic", name=topic))),
            ("Key", h("code", key_of(message))),
            ("Published", formats.moment(message.timestamp, page.zone)),
            ("Size", formats.size(message.size)),
        ]
        body = [
            tables.facts(pairs),
            h("pre", pretty(message)[:4000], class_="payload", style="margin-top:12px;max-height:220px", tabindex="0"),
        ]
        page.show(h("div", body, class_="card pad"))
    page.show(h("div", h("h2", "Its life"), class_="section"))
    if not found.recorded or found.hint:
        page.show(
            h(
                "div",
                found.hint
                or (
                    "Deliveries of this message were not recorded. Set `deliveries` of its queue to record a share "
                    "of them."
                ),
                class_="note-box warn",
            )
        )
    page.show(
        h("div", timeline(page, found.events), class_="card pad")
        if found.events
        else h(
            "div",
            tables.empty("Nothing is recorded", "Reads by consumer groups leave no record of single messages."),
            class_="card",
        )
    )
    page.show(h("div", command(f"headrace trace {quote(id)}"), style="margin-top:12px"))


def timeline(page: Page, events: list[m.LifeEvent]) -> Html:
    """Events in order, with the time between."""
    items = []
    before: int | None = None
    for event in sorted(events, key=lambda each: each.at_ms or 0):
        gap = f"+{formats.milliseconds(event.at_ms - before)}" if before and event.at_ms else ""
        before = event.at_ms or before
        words: list[Child] = [
            h("b", WORDS.get(event.kind.replace("-", "_"), event.kind.replace("_", " ").capitalize()))
        ]
        if event.queue:
            words += [
                " in ",
                h("a", f"{event.topic}/{event.queue}", href=page.link("/queue", topic=event.topic, name=event.queue)),
            ]
        elif event.topic and event.offset is not None:
            words += [
                " in ",
                h(
                    "a",
                    f"{event.topic}/{event.partition}/{event.offset}",
                    href=page.link("/life", id=f"{event.topic}/{event.partition}/{event.offset}"),
                ),
            ]
        if event.consumer:
            words += [" by ", h("code", event.consumer)]
        notes = [
            f"attempt {event.attempt}" if event.attempt else "",
            f"again in {formats.milliseconds(event.delay_ms)}" if event.delay_ms else "",
            event.error or "",
            gap,
        ]
        note = " · ".join(each for each in notes if each)
        kind = KINDS.get(event.kind.replace("-", "_"), "")
        items.append(
            h(
                "li",
                h("span", formats.moment(event.at_ms, page.zone), class_="when"),
                h("span", class_=f"dot {kind}".strip()),
                h("span", words, h("div", note, class_="small muted") if note else None, class_="what"),
            )
        )
    return h("ol", items, class_="life")


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
