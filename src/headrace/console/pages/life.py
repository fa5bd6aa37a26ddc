"""The life of a message, and of all messages of its trace, as a timeline across queues, services and retries."""

from __future__ import annotations

from shlex import quote

from headrace.console.client import models as m
from headrace.console.pages.browse import key_of, open_message, pretty
from headrace.console.ui import formats, tables
from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page, command, copy_button
from headrace.errors import ConfigError

KINDS = {
    "dead": "bad",
    "put aside": "bad",
    "timed-out": "bad",
    "not consumed": "bad",
    "requeued": "warn",
    "released": "warn",
    "to be tried again": "warn",
    "finished": "good",
    "consumed": "good",
    "sent back": "good",
}
WORDS = {
    "published": "Published",
    "delivered": "Delivered",
    "finished": "Finished",
    "requeued": "Given back",
    "timed-out": "Timed out",
    "dead": "Given up",
    "put aside": "Put into the dead letters",
    "to be tried again": "Put aside for a retry",
    "sent back": "Sent back from the dead letters",
    "released": "Its consumer disconnected",
    "touched": "Held for longer",
    "emptied": "Settled by hand",
}


async def build(page: Page) -> None:
    id = page.query.get("id", "")
    if not id:
        raise ConfigError("no message is named. Use TOPIC/PARTITION/OFFSET, or the id of a trace.")
    life = await page.api.life(id)
    page.on("open", lambda which: open_message(page, which))
    own = next((each for each in life.messages if each.id == id), None)
    actions: list[Child] = [copy_button("Copy link", page.link("/life", id=id))]
    if own is not None:
        actions.append(h("button", "Open the message", type="button", class_="b", data_do="open", data_arg=id))
    title = id if "/" in id else f"Trace {id}"
    page.head(title, None, actions, h("a", "Messages", href=page.link("/messages")))
    if own is not None:
        _show_message(page, own, life.trace)
    page.show(h("div", h("h2", "Its life"), class_="section"))
    if life.steps:
        page.show(h("div", timeline(page, life), class_="card pad"))
    else:
        nothing = tables.empty("Nothing is known", "It may be deleted by now, or was never written.")
        page.show(h("div", nothing, class_="card"))
    _show_readers(page, life)
    if life.notes:
        notes = h("ul", [h("li", each) for each in life.notes], style="margin:0;padding-left:18px")
        page.show(h("div", h("h2", "What is not known"), class_="section"))
        page.show(h("div", notes, class_="card pad small muted"))
    page.show(h("div", command(f"headrace trace {quote(id)}"), style="margin-top:12px"))


def _show_message(page: Page, message: m.Message, trace: str | None) -> None:
    pairs: list[tuple[str, Child]] = [
        ("Topic", h("a", message.topic, href=page.link("/topic", name=message.topic))),
        ("Key", h("code", key_of(message))),
        ("Published", formats.moment(message.timestamp, page.zone)),
    ]
    if trace:
        pairs.append(("Trace", h("a", h("code", trace), href=page.link("/life", id=trace))))
    payload = h("pre", pretty(message)[:4000], class_="payload", style="margin-top:12px;max-height:220px", tabindex="0")
    page.show(h("div", tables.facts(pairs), payload, class_="card pad"))


def _show_readers(page: Page, life: m.Life) -> None:
    if not life.readers:
        return
    page.show(h("div", h("h2", "Now"), class_="section"))
    column = tables.Column[m.Reader]

    def link(each: m.Reader) -> Html:
        topic = each.message.rsplit("/", 2)[0]
        if each.kind == "group":
            return h("a", each.name, href=page.link("/group", name=each.name))
        return h("a", f"{topic}/{each.name}", href=page.link("/queue", topic=topic, name=each.name))

    columns = [
        column("Message", lambda e: h("a", e.message, class_="mono", href=page.link("/life", id=e.message)), "nowrap"),
        column("", lambda e: tables.mark(e.kind, "plain")),
        column("Read by", link, "name"),
        column("State", lambda e: e.state),
        column("", lambda e: h("span", e.note, class_="small muted"), "clip"),
    ]
    page.show(h("div", tables.table(columns, life.readers, "Who reads these messages"), class_="card"))


def timeline(page: Page, life: m.Life) -> Html:
    """The steps in order, with the time between."""
    items = []
    before: int | None = None
    for step in life.steps:
        gap = f"+{formats.milliseconds(step.t - before)}" if before is not None and step.t > before else ""
        before = step.t
        words: list[Child] = [
            h("b", WORDS.get(step.what, step.what.capitalize())),
            " ",
            h("a", step.message, class_="mono", href=page.link("/life", id=step.message)),
        ]
        if step.who:
            words += [" in ", step.who]
        if step.consumer:
            words += [" by ", h("code", step.consumer)]
        if step.at:
            words += [" as ", h("a", step.at, class_="mono", href=page.link("/life", id=step.at))]
        notes = [
            f"attempt {step.attempt}" if step.attempt else "",
            f"again in {formats.milliseconds(step.delay_ms)}" if step.delay_ms else "",
            step.error,
            gap,
        ]
        note = " · ".join(each for each in notes if each)
        items.append(
            h(
                "li",
                h("span", formats.moment(step.t, page.zone), class_="when"),
                h("span", class_=f"dot {KINDS.get(step.what, '')}".strip()),
                h("span", words, h("div", note, class_="small muted") if note else None, class_="what"),
            )
        )
    return h("ol", items, class_="life")
