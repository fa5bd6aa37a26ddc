"""Dead letters: why messages died, and sending them back at a rate, with the result of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from shlex import quote

from headrace.console.client import models as m
from headrace.console.pages.browse import key_of, open_message, parse_id, value_of
from headrace.console.sessions import Role
from headrace.console.ui import formats, tables
from headrace.console.ui.dialogs import Answer, Field, ask, sheet
from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page
from headrace.errors import ConfigError

STEP = 50
"""Letters of one request, so that results come as it goes."""
SELECT_MAX = 1_000


async def build(page: Page) -> None:
    topic = page.query.get("topic", "")
    page.on("open", lambda id: open_message(page, id))
    if topic:
        await _topic(page, topic)
        return
    page.head("Dead letters", "Messages that were given up: after too many attempts, or because a consumer said so.")
    found = await page.api.dead_topics()
    if not found.topics:
        nothing = tables.empty(
            "No dead letters",
            "Nothing was given up. A queue gives up after max_attempts deliveries, if that is set.",
            "headrace queue set orders mail --max-attempts 5",
        )
        page.show(h("div", nothing, class_="card"))
        return
    column = tables.Column[m.DeadTopic]
    columns = [
        column(
            "Topic of dead letters", lambda t: h("a", t.topic, href=page.link("/dead-letters", topic=t.topic)), "name"
        ),
        column("Waiting", lambda t: formats.count(t.waiting), "num"),
        column("Letters in all", lambda t: formats.count(t.messages), "num"),
        column("From", lambda t: ", ".join(f"{each.topic}/{each.queue}" for each in t.queues[:5]), "clip"),
    ]
    page.show(h("div", tables.table(columns, found.topics, "Topics of dead letters"), class_="card"))
    # What died of what stands here at once: it is two clicks less to the letters.
    for each in found.topics[:5]:
        if each.waiting or each.messages:
            page.show(h("div", h("h2", each.topic), class_="section"))
            await _errors(page, each.topic)


async def _errors(page: Page, topic: str) -> None:
    found = await page.api.dead_kinds(topic)
    if not found.kinds:
        page.show(h("div", tables.empty("No letters", "All were sent back, or retention took them."), class_="card"))
        return

    def where(kind: m.DeadKind) -> str:
        return page.link(
            "/dead-letters", topic=topic, error=kind.error, origin=kind.topic, queue=kind.queue, list="true"
        )

    column = tables.Column[m.DeadKind]
    columns = [
        column("Error", lambda k: h("a", k.error or "no error was given", href=where(k)), "name"),
        column("From", lambda k: "/".join(each for each in (k.topic, k.queue) if each), "clip"),
        column("Letters", lambda k: formats.count(k.count), "num"),
        column("First", lambda k: formats.moment(k.first_ms, page.zone), "nowrap"),
        column("Last", lambda k: formats.moment(k.last_ms, page.zone), "nowrap"),
    ]
    words = f"{formats.plural(found.counted, 'letter')} counted" + ("" if found.all_counted else ", the newest")
    shown = tables.table(columns, found.kinds, f"Errors of {topic}")
    page.show(h("div", shown, h("div", words, class_="foot"), class_="card"))


async def _topic(page: Page, topic: str) -> None:
    page.head(topic, "Dead letters", crumb=h("a", "Dead letters", href=page.link("/dead-letters")))
    if page.query.get("list") == "true":
        await _letters(page, topic)
        return
    all_ = h("a", "All letters", class_="b tiny", href=page.link("/dead-letters", topic=topic, list="true"))
    page.show(h("div", h("h2", "By error"), h("span", class_="grow"), all_, class_="section", style="margin-top:0"))
    await _errors(page, topic)


async def _letters(page: Page, topic: str) -> None:
    if not page.may(Role.READER):
        page.show(
            h(
                "div",
                tables.empty("You may not read messages", "Ask for the role reader, or a higher one."),
                class_="card",
            )
        )
        return
    query: dict[str, str | int] = {
        "limit": 200,
        "after": page.query.get("after", ""),
        **{name: page.query[name] for name in ("error", "origin", "queue") if page.query.get(name)},
    }
    found = await page.api.dead_letters(topic, query)
    waiting = [each for each in found.messages if not each.sent_back]
    words = [f"{formats.plural(len(found.messages), 'letter')}"]
    if page.query.get("error"):
        words.append(f" with the error “{page.query['error']}”")
    everything = [f"{topic}/{each.partition}/{each.offset}" for each in waiting]
    page.on_change("redrive", lambda _, picks: redrive(page, topic, picks, found.messages))
    page.on_change("redrive-all", lambda: redrive(page, topic, everything, found.messages))
    page.on_change(
        "edit",
        lambda id: _edit(page, topic, next(e for e in found.messages if id.endswith(f"/{e.partition}/{e.offset}"))),
    )
    actions = [
        page.button("Redrive selected", "redrive"),
        page.button(f"Redrive these {len(waiting)}", "redrive-all", kind="main-action"),
    ]
    page.show(
        h(
            "div",
            h("span", words),
            h("span", class_="grow"),
            actions if waiting else None,
            class_="section",
            style="margin-top:0",
        )
    )
    if not found.messages:
        page.show(h("div", tables.empty("No letters", "Nothing fits, or all were sent back."), class_="card"))
        return
    column = tables.Column[m.DeadLetter]

    def id_of(each: m.DeadLetter) -> str:
        return f"{topic}/{each.partition}/{each.offset}"

    columns = [
        column(
            "",
            lambda e: h(
                "input",
                type="checkbox",
                data_pick=True,
                value=id_of(e),
                aria_label=f"Select {id_of(e)}",
                disabled=e.sent_back,
            ),
        ),
        column(
            "Letter",
            lambda e: h(
                "button",
                f"{e.partition}/{e.offset}",
                type="button",
                class_="b quiet tiny mono",
                data_do="open",
                data_arg=id_of(e),
            ),
            "nowrap",
        ),
        column("From", lambda e: _origin(page, e.origin), "clip"),
        column("Died", lambda e: h("span", formats.moment(e.dead_at_ms, page.zone), class_="small nowrap")),
        column("Attempts", lambda e: formats.count(e.attempts), "num"),
        column("Error", lambda e: e.error or "–", "clip"),
        column("Key", lambda e: h("code", key_of(e)), "clip"),
        column("Value", lambda e: h("code", value_of(e)[:200]), "clip"),
        column(
            "",
            lambda e: (
                tables.mark("sent back", "good") if e.sent_back else page.button("Edit", "edit", id_of(e), "tiny")
            ),
            "act",
        ),
    ]
    further = (
        h("a", "Next", class_="b tiny", href=page.link("/dead-letters", **{**page.query, "after": str(found.next)}))
        if found.next
        else None
    )
    foot = h("div", f"{formats.count(found.looked)} looked at", h("span", class_="grow"), further, class_="foot")
    page.show(h("div", tables.table(columns, found.messages, f"Letters of {topic}"), foot, class_="card"))


def _origin(page: Page, origin: Mapping[str, object]) -> Child:
    topic = str(origin.get("topic") or "")
    if not topic:
        return "unknown"
    id = f"{topic}/{origin.get('partition')}/{origin.get('offset')}"
    return h("a", id, href=page.link("/life", id=id))


def redrive(page: Page, topic: str, picks: list[str], letters: list[m.DeadLetter]) -> None:
    """Ask for a rate, send letters back in steps, and show what became of each."""
    if not picks:
        raise ConfigError("nothing is selected")
    places = [parse_id(each)[1:] for each in picks][:SELECT_MAX]
    keys = {(each.partition, each.offset): key_of(each) for each in letters}

    async def act(answer: Answer) -> None:
        rate = int(answer.get("rate") or 0)
        body: list[dict[str, object]] = [{"partition": partition, "offset": offset} for partition, offset in places]
        await _send(page, topic, body, rate, keys)

    async def stay() -> None:
        pass

    what = (
        f"{formats.plural(len(places), 'letter')} go back to where they came from, each at most once. "
        "Those that are refused stay here."
    )
    options = "".join(
        f" --{name} {quote(page.query[name])}" for name in ("error", "origin", "queue") if page.query.get(name)
    )
    ask(
        page,
        f"Redrive {formats.plural(len(places), 'letter')}",
        what,
        act,
        [Field("rate", "At most so many a second", "100", kind="number")],
        verb="Redrive",
        again=stay,
        equivalent=lambda a: f"headrace redrive {quote(topic)}{options} --rate {a.get('rate') or 0}",
    )


async def _send(
    page: Page, topic: str, letters: list[dict[str, object]], rate: int, keys: Mapping[tuple[int, int], str]
) -> None:
    results: list[m.Outcome] = []
    dialog, shown = sheet(page, "Redrive")

    def draw(words: str) -> None:
        shown.content = _results(page, topic, results, keys, words)

    step = min(STEP, rate) if rate else STEP
    waiting = list(letters)
    while waiting:
        draw(f"{len(letters) - len(waiting)} of {len(letters)}")
        began = time.monotonic()
        found = await page.api.redrive(topic, waiting[:step])
        results += found.results
        if not found.results:
            break
        waiting = waiting[len(found.results) :]
        if rate and waiting:
            await asyncio.sleep(max(len(found.results) / rate - (time.monotonic() - began), 0))
    done = sum(each.outcome == "redriven" for each in results)
    draw(f"{formats.plural(done, 'letter')} of {len(letters)} sent back.")
    page.record("redrive", topic=topic, letters=len(letters), redriven=done)
    dialog.on("hide", page.reload)


def _results(page: Page, topic: str, results: list[m.Outcome], keys: Mapping[tuple[int, int], str], words: str) -> Html:
    column = tables.Column[m.Outcome]
    columns = [
        column("Letter", lambda r: h("code", f"{r.partition}/{r.offset}"), "nowrap"),
        column("Key", lambda r: h("code", keys.get((r.partition, r.offset), "")), "clip"),
        column("Result", lambda r: tables.mark(r.outcome, "good" if r.outcome == "redriven" else "bad")),
        column("", lambda r: r.reason or _sent_to(r.sent_to), "clip"),
    ]
    return h(
        "div", h("p", words, role="status"), tables.table(columns, results, f"Results of {topic}") if results else None
    )


def _sent_to(place: object) -> str:
    if isinstance(place, dict):
        return "to " + "/".join(str(each) for each in place.values())
    return f"to {place}" if place else ""


def _edit(page: Page, topic: str, letter: m.DeadLetter) -> None:
    """Change a letter before it goes back."""
    fields = [
        Field("key", "Key", letter.key or ""),
        Field("value", "Value", letter.value if letter.value is not None else value_of(letter), kind="area"),
    ]

    async def act(answer: Answer) -> None:
        edit = {
            name: answer[name] for name in ("key", "value") if answer.get(name, "") != (getattr(letter, name) or "")
        }
        body: dict[str, object] = {"partition": letter.partition, "offset": letter.offset}
        if edit:
            body["edit"] = edit
        await _send(page, topic, [body], 0, {(letter.partition, letter.offset): key_of(letter)})

    async def stay() -> None:
        pass

    ask(
        page,
        "Edit and redrive",
        "The changed message goes back to where the letter came from; the letter counts as sent back.",
        act,
        fields,
        verb="Redrive",
        is_wide=True,
        again=stay,
    )
