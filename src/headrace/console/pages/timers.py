"""Timers: messages that wait for their time, and cancelling them."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any

from headrace.console.ui import formats, tables
from headrace.console.ui.dialogs import Answer, ask
from headrace.console.ui.markup import h
from headrace.console.ui.page import Page

Row = dict[str, Any]


async def build(page: Page) -> None:
    topic = page.query.get("search", "")
    page.on("search", lambda given: page.go("/timers", search=given.get("search", "")))
    found = await page.api.timers({"topic": topic, "limit": 100, "after": page.query.get("after", "")})
    page.on_change("cancel", lambda id: _cancel(page, id, found.timers))
    page.head("Timers", f"{formats.plural(found.pending, 'message')} wait for their time.")
    field = h(
        "input",
        name="search",
        value=topic,
        class_="f",
        type="search",
        data_filter=True,
        placeholder="Topic",
        aria_label="Topic",
        style="max-width:340px",
    )
    page.show(h("form", field, data_form="search", role="search", style="margin-bottom:12px"))
    if not found.timers:
        nothing = tables.empty(
            "Nothing waits",
            "Publish a message with a delay, and it shows here until it is due.",
            "echo tea | headrace produce orders --delay 5m",
        )
        page.show(h("div", nothing, class_="card"))
        return
    page.live(lambda: _table(page, found.timers))
    if found.next:
        page.show(
            h(
                "div",
                h("span", class_="grow"),
                h("a", "Next", class_="b tiny", href=page.link("/timers", search=topic, after=str(found.next))),
                class_="foot",
            )
        )


def _table(page: Page, rows: Sequence[Row]) -> Any:
    now = page.sampler.table.at_ms
    column = tables.Column[Row]
    columns = [
        column("Due", lambda t: formats.ago(t.get("deliver_at") or t.get("due_ms"), now), "name nowrap"),
        column("At", lambda t: formats.moment(t.get("deliver_at") or t.get("due_ms"), page.zone), "nowrap"),
        column("Topic", lambda t: h("a", str(t.get("topic")), href=page.link("/topic", name=str(t.get("topic"))))),
        column("Key", lambda t: h("code", str(t.get("key") or "–")), "clip"),
        column("Size", lambda t: formats.size(t.get("bytes") or t.get("value_bytes") or t.get("size")), "num"),
        column("Id", lambda t: h("code", str(t.get("id"))), "clip"),
        column("", lambda t: page.button("Cancel", "cancel", str(t.get("id")), "tiny danger"), "act"),
    ]
    return h("div", tables.table(columns, rows, "Timers"), class_="card")


def _cancel(page: Page, id: str, rows: Sequence[Row]) -> None:
    row = next((each for each in rows if each.get("id") == id), {})

    async def act(_: Answer) -> None:
        await page.api.cancel_timer(id)

    ask(
        page,
        "Cancel a delayed message",
        f"The message for {row.get('topic')} is never delivered.",
        act,
        verb="Cancel the message",
        is_danger=True,
        equivalent=f"headrace timer cancel {quote(id)}",
        done="The message is cancelled.",
    )
