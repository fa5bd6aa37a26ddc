"""Browsing the messages of a topic: filters, pages, a live tail, one message whole, downloads."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from shlex import quote

from nicegui import background_tasks, ui

from headrace.console.client import models as m
from headrace.console.client.transport import ApiError, BrokerAway
from headrace.console.sessions import Role
from headrace.console.ui import formats, tables
from headrace.console.ui.dialogs import sheet
from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page, command, copy_button, explain

LIMIT = 50
TAIL_ROWS = 200
TAIL_WAIT_MS = 5_000
FILTERS = ("key", "key_contains", "value_contains", "header", "where")
STARTS = (
    ("latest", "newest first"),
    ("earliest", "from the first on"),
    ("1h", "of the last hour on"),
    ("24h", "of the last day on"),
)
FORMS = (("auto", "as it fits"), ("text", "text"), ("json", "JSON"), ("hex", "hex"))


async def build(page: Page, topic: m.TopicDetail) -> None:
    if not page.may(Role.READER):
        page.show(
            h(
                "div",
                tables.empty("You may not read messages", "Ask for the role reader, or a higher one."),
                class_="card",
            )
        )
        return
    page.on("filter", lambda given: page.go("/topic", name=topic.topic, tab="messages", **_kept(given)))
    page.on("open", lambda id: open_message(page, id))
    tail = page.query.get("live") == "true"
    page.show(_form(page, topic, tail))
    if tail:
        _tail(page, topic.topic)
    else:
        await _read(page, topic.topic)


def _kept(given: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in given.items()
        if value and (name, value) not in (("from", "latest"), ("form", "auto"))
    }


def _form(page: Page, topic: m.TopicDetail, tail: bool) -> Html:
    query = page.query

    def field(name: str, label: str, placeholder: str = "") -> Html:
        control = h(
            "input",
            name=name,
            value=query.get(name, ""),
            class_="f",
            placeholder=placeholder or None,
            autocomplete="off",
        )
        return h("label", h("span", label), control, class_="field")

    def select(name: str, label: str, choices: tuple[tuple[str, str], ...]) -> Html:
        options = [h("option", words, value=value, selected=query.get(name) == value) for value, words in choices]
        return h(
            "label", h("span", label), h("select", options, name=name, class_="f", style="width:100%"), class_="field"
        )

    partitions = (
        ("", "all partitions"),
        *((str(p.partition), f"partition {p.partition}") for p in topic.partition_list[:200]),
    )
    here = {name: query.get(name) for name in ("partition", *FILTERS)}
    live = h(
        "a",
        "Stop the live tail" if tail else "Live tail",
        class_="b",
        href=page.link("/topic", name=topic.topic, tab="messages", live=None if tail else "true", **here),
    )
    return h(
        "form",
        h(
            "div",
            select("from", "Messages", STARTS),
            select("partition", "Partition", partitions),
            field("key", "Key is"),
            field("value_contains", "Value contains"),
            field("header", "Header", "NAME or NAME=VALUE"),
            select("form", "Shown as", FORMS),
            class_="fields",
        ),
        h("div", field("where", "Expression", 'value.customer.id = 42 and header.kind != "x"'), style="margin:10px 0"),
        h("div", h("button", "Show", class_="b main-action"), live, class_="row-of"),
        data_form="filter",
        class_="card pad",
        style="margin-bottom:12px",
    )


def _filters(page: Page) -> dict[str, str]:
    return {name: page.query[name] for name in (*FILTERS, "partition") if page.query.get(name)}


def request_of(page: Page) -> dict[str, str | int | bool]:
    """The query of the API that a page's address means."""
    start = page.query.get("from", "latest")
    asked: dict[str, str | int | bool] = {
        "limit": LIMIT,
        "value_max": 512,
        "form": page.query.get("form", "auto"),
        **_filters(page),
    }
    if page.query.get("after"):
        asked["after"] = page.query["after"]
    if start == "latest":
        asked["newest"] = True
    elif start in ("1h", "24h"):
        asked["from"] = f"ms:{page.sampler.table.at_ms - int(start[:-1]) * 3_600_000}"
    else:
        asked["from"] = start
    return asked


async def _read(page: Page, topic: str) -> None:
    found = await page.api.browse(topic, request_of(page))
    if not found.messages:
        looked = f"{formats.plural(found.looked or 0, 'message')} looked at. "
        more = None if not found.next else h("a", "Look further", class_="b", href=_further(page, topic, found.next))
        page.show(
            h(
                "div",
                tables.empty("No messages here", [looked, "Change the filter, or publish one."]),
                h("div", more, class_="foot") if more else None,
                class_="card",
            )
        )
        return
    columns = message_columns(page, topic)
    further = h("a", "Next", class_="b tiny", href=_further(page, topic, found.next)) if found.next else None
    words = f"{formats.plural(len(found.messages), 'message')}, {formats.count(found.looked)} looked at"
    masked = tables.mark("fields are masked", "warn") if any(each.masked for each in found.messages) else None
    foot = h("div", h("span", words), masked, h("span", class_="grow"), further, class_="foot")
    page.show(h("div", tables.table(columns, found.messages, f"Messages of {topic}"), foot, class_="card"))
    page.show(h("div", command(consume_command(page, topic)), style="margin-top:12px"))


def _further(page: Page, topic: str, after: object) -> str:
    kept = {name: value for name, value in page.query.items() if name not in ("after", "name", "tab")}
    return page.link("/topic", name=topic, tab="messages", **kept, after=str(after))


def consume_command(page: Page, topic: str) -> str:
    """A command line that shows about the same."""
    start = {"earliest": " --from earliest", "1h": " --from -1h", "24h": " --from -1d"}.get(
        page.query.get("from", ""), ""
    )
    partition = f" --partition {page.query['partition']}" if page.query.get("partition") else ""
    return f"headrace consume {quote(topic)}{start}{partition} --format json"


def message_columns(page: Page, topic: str = "") -> list[tables.Column[m.Message]]:
    """How messages are listed."""
    column = tables.Column[m.Message]

    def place(message: m.Message) -> Html:
        name = topic or message.topic
        words = f"{message.partition}/{message.offset}" if topic else f"{name}/{message.partition}/{message.offset}"
        id = f"{name}/{message.partition}/{message.offset}"
        return h(
            "button",
            words,
            type="button",
            class_="b quiet tiny mono",
            data_do="open",
            data_arg=id,
            aria_label=f"Open message {words}",
        )

    return [
        column("Message", place, "nowrap"),
        column("Time", lambda each: h("span", formats.moment(each.timestamp, page.zone), class_="nowrap small")),
        column("Key", lambda each: h("code", key_of(each)), "clip"),
        column("Value", lambda each: h("code", value_of(each)[:300]), "clip"),
        column("Size", lambda each: formats.size(each.value_bytes or each.size), "num"),
    ]


def key_of(message: m.Message) -> str:
    if message.key is not None:
        return message.key
    return f"base64:{message.key_base64}" if message.key_base64 else "–"


def value_of(message: m.Message) -> str:
    """The value, on one line."""
    if message.value_json is not None:
        return json.dumps(message.value_json, ensure_ascii=False)
    if message.value is not None:
        return message.value
    if message.value_hex is not None:
        return message.value_hex
    return f"base64:{message.value_base64}" if message.value_base64 else "–"


def pretty(message: m.Message) -> str:
    """The value over several lines, where it is JSON."""
    value: object = message.value_json
    if value is None and message.value is not None:
        try:
            value = json.loads(message.value)
        except ValueError:
            return message.value
    if isinstance(value, dict | list):
        return json.dumps(value, indent=2, ensure_ascii=False)
    return value_of(message)


def parse_id(id: str) -> tuple[str, int, int]:
    """Topic, partition and offset of TOPIC/PARTITION/OFFSET."""
    topic, partition, offset = id.rsplit("/", 2)
    return topic, int(partition), int(offset)


async def open_message(page: Page, id: str) -> None:
    """Show one message whole."""
    topic, partition, offset = parse_id(id)
    message = await page.api.message(topic, partition, offset)
    headers = [
        (each.name, each.value if each.value is not None else f"base64:{each.value_base64}") for each in message.headers
    ]
    about = tables.facts(
        [
            ("Topic", h("a", topic, href=page.link("/topic", name=topic))),
            ("Partition", partition),
            ("Offset", f"{offset:,}"),
            ("Time", formats.moment(message.timestamp, page.zone)),
            ("Key", h("code", key_of(message))),
            ("Size", formats.size(message.size)),
        ]
    )
    life = h("a", "Its life", class_="b tiny", href=page.link("/life", id=id))
    link = copy_button("Copy link", page.link("/life", id=id))
    save = h("button", "Download value", type="button", class_="b tiny", data_do="download", data_arg=id)
    body: list[Child] = [
        about,
        h("div", h("h2", "Headers"), class_="section") if headers else None,
        tables.facts([(name, h("code", value)) for name, value in headers]) if headers else None,
        h(
            "div",
            h("h2", "Value"),
            h("span", class_="grow"),
            copy_button("Copy value", pretty(message)),
            class_="section",
        ),
        h("pre", pretty(message), class_="payload", tabindex="0"),
        h("div", life, save, link, class_="row-of", style="margin-top:12px"),
        command(f"headrace trace {quote(id)}"),
    ]
    page.on("download", lambda which: download(page, which))
    sheet(page, f"Message {id}", *body)


async def download(page: Page, id: str) -> None:
    """Give the browser a value as it is."""
    topic, partition, offset = parse_id(id)
    value = await page.api.value(topic, partition, offset)
    ui.download.content(value, f"{topic}-{partition}-{offset}.bin")


def _tail(page: Page, topic: str) -> None:
    """Messages as they come; what comes faster than it can be looked at is dropped, and counted."""
    element = page.show("")
    rows: deque[m.Message] = deque(maxlen=TAIL_ROWS)
    columns = message_columns(page, topic)
    state = {"dropped": 0, "seen": 0}

    def draw(words: str) -> None:
        foot = h("div", tables.mark("live", "good"), h("span", words), class_="foot")
        body = (
            tables.table(columns, rows, f"Live messages of {topic}")
            if rows
            else tables.empty(
                "Waiting for messages",
                "Those that are published from now on appear here.",
                f"echo hello | headrace produce {quote(topic)}",
            )
        )
        element.content = h("div", body, foot, class_="card")

    async def follow() -> None:
        cursor = ""
        while not element.is_deleted:
            try:
                found = await page.api.tail(
                    topic, {"cursor": cursor, "wait_ms": TAIL_WAIT_MS, "limit": 100, "value_max": 512, **_filters(page)}
                )
            except (ApiError, BrokerAway) as error:
                draw(explain(error))
                await asyncio.sleep(2)
                continue
            cursor = str(found.next or cursor)
            state["dropped"] += found.skipped + max(len(found.messages) - TAIL_ROWS, 0)
            state["seen"] += len(found.messages)
            rows.extendleft(found.messages[-TAIL_ROWS:])
            dropped = (
                f", {formats.count(state['dropped'])} dropped because they came too fast" if state["dropped"] else ""
            )
            draw(f"{formats.plural(state['seen'], 'message')} since the tail began{dropped}")
            await asyncio.sleep(0.2)

    draw("Waiting")
    background_tasks.create(follow(), name=f"tail of {topic}")
