"""The messages of a queue, each state opened, and what an operator does with those that are selected."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from headrace.console.client import models as m
from headrace.console.pages.browse import key_of, open_message, value_of
from headrace.console.sessions import Role
from headrace.console.ui import formats, tables
from headrace.console.ui.dialogs import Answer, Field, ask
from headrace.console.ui.markup import Child, h
from headrace.console.ui.page import Page
from headrace.errors import ConfigError

STATES = {"ready": "Ready", "in_flight": "In flight", "deferred": "Deferred", "blocked": "Blocked", "dead": "Dead"}
PARKED = "parked"
NOTES = {"ready": "Came back because", "in_flight": "Is with", "deferred": "Ready again", "dead": "Why"}
"""What the last column is about."""


class Act(NamedTuple):
    """What is done with selected messages."""

    button: str
    verb: str
    what: str
    fields: Sequence[Field] = ()
    kind: str = ""


ACTS = {
    "settle": Act(
        "Settle selected",
        "Settle",
        "will not be delivered again, also those in flight. The topic keeps them.",
        kind="danger",
    ),
    "requeue": Act(
        "Give back selected",
        "Give back",
        "will be delivered again, also those in flight.",
        [Field("delay", "Delay in seconds", "0", kind="number")],
    ),
    "reject": Act(
        "Dead-letter selected",
        "Dead-letter",
        "will go to the dead letters, also those in flight.",
        [Field("error", "Reason, for the dead letters", "")],
        kind="danger",
    ),
}


async def show_messages(page: Page, queue: m.Queue) -> None:
    """The tab of a queue's page."""
    if not page.may(Role.READER):
        page.show(
            h(
                "div",
                tables.empty("You may not read messages", "Ask for the role reader, or a higher one."),
                class_="card",
            )
        )
        return
    state = page.query.get("state", "ready")
    state = state if state in STATES else "ready"
    links = [
        h(
            "a",
            words,
            class_="b tiny" if each == state else "b tiny quiet",
            aria_current="true" if each == state else None,
            href=page.link("/queue", topic=queue.topic, name=queue.queue, tab="messages", state=each),
        )
        for each, words in STATES.items()
    ]
    page.on("open", lambda id: open_message(page, id))
    for act in ACTS:
        page.on_change(act, lambda _, picks, act=act: _on_selected(page, queue, act, picks))
    buttons = [page.button(each.button, act, kind=each.kind) for act, each in ACTS.items()]
    page.show(h("div", links, h("span", class_="grow"), buttons, class_="section", style="margin-top:0;flex-wrap:wrap"))
    if state == "dead":
        dead = page.link("/dead-letters", topic=queue.dead_letter_topic)
        page.show(
            h(
                "div",
                "These are on their way. Those that have arrived are in ",
                h("a", queue.dead_letter_topic, href=dead),
                ".",
                class_="note-box",
            )
        )
    query: dict[str, str | int] = {"state": state, "limit": 50, "value_max": 512, "after": page.query.get("after", "")}
    found = await page.api.queue_messages(queue.topic, queue.queue, query)
    if not found.messages:
        page.show(
            h("div", tables.empty(f"No messages are {STATES[state].lower()}", "Other states are above."), class_="card")
        )
        return
    column = tables.Column[m.Message]

    def place(each: m.Message) -> str:
        return f"{queue.topic}/{each.partition}/{each.offset}"

    def pick(each: m.Message) -> str:
        return f"{each.partition}/{each.offset}" if each.parked is None else f"{PARKED}/{each.parked}"

    columns = [
        column(
            "", lambda e: h("input", type="checkbox", data_pick=True, value=pick(e), aria_label=f"Select {place(e)}")
        ),
        column(
            "Message",
            lambda e: h(
                "button",
                f"{e.partition}/{e.offset}",
                type="button",
                class_="b quiet tiny mono",
                data_do="open",
                data_arg=place(e),
            ),
            "nowrap",
        ),
        column("Time", lambda e: h("span", formats.moment(e.timestamp, page.zone), class_="small nowrap")),
        column("Attempts", lambda e: formats.count(e.attempts), "num"),
        column("Key", lambda e: h("code", key_of(e)), "clip"),
        column("Value", lambda e: h("code", value_of(e)[:300]), "clip"),
    ]
    if state in NOTES and (state != "ready" or any(each.error for each in found.messages)):
        columns.append(column(NOTES[state], lambda e: _note(page, e), "clip"))
    further = (
        h(
            "a",
            "Next",
            class_="b tiny",
            href=page.link(
                "/queue", topic=queue.topic, name=queue.queue, tab="messages", state=state, after=str(found.next)
            ),
        )
        if found.next
        else None
    )
    foot = h("div", formats.plural(len(found.messages), "message"), h("span", class_="grow"), further, class_="foot")
    page.show(h("div", tables.table(columns, found.messages, f"Messages that are {state}"), foot, class_="card"))


def _note(page: Page, message: m.Message) -> Child:
    """Who has a message, when it is ready again, or why it came back."""
    now = page.sampler.table.at_ms
    words: list[Child] = []
    if message.deadline_ms:
        who = "a lease" if message.consumer == "lease" else message.consumer or "a consumer"
        words = [who, ", until ", formats.moment(message.deadline_ms, page.zone)]
    elif message.due_ms:
        words = [formats.ago(message.due_ms, now)]
    if message.stuck:
        words.append("cannot be moved")
    if message.error:
        words += [": " if words else "", message.error]
    return h("span", words, class_="small")


def _on_selected(page: Page, queue: m.Queue, act: str, picks: list[str]) -> None:
    if not picks:
        raise ConfigError("nothing is selected")
    places = [_place(each) for each in picks]
    words = ACTS[act]

    async def run(answer: Answer) -> None:
        given: dict[str, object] = {}
        if act == "requeue":
            given["delay_ms"] = int(float(answer.get("delay") or 0) * 1000)
        elif act == "reject":
            given["error"] = answer.get("error", "")
        found = await page.api.intervene(queue.topic, queue.queue, act, places, **given)
        refused = [each for each in found.results if each.outcome != "done"]
        if refused:
            page.tell(f"{formats.plural(len(refused), 'message')} stayed: {refused[0].reason}.")

    shown = " ".join(picks[:5]) + (" ..." if len(picks) > 5 else "")
    ask(
        page,
        words.button,
        f"{formats.plural(len(places), 'message')} of {queue.queue} {words.what}",
        run,
        words.fields,
        verb=words.verb,
        is_danger=bool(words.kind),
        done="Done.",
        equivalent=f"headrace queue {act} {quote(queue.topic)} {quote(queue.queue)} {shown}",
    )


def _place(pick: str) -> dict[str, int]:
    first, _, offset = pick.partition("/")
    return {PARKED: int(offset)} if first == PARKED else {"partition": int(first), "offset": int(offset)}
