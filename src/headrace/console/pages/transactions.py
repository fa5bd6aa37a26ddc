"""Transactions of Kafka's producers, and prepared messages: what is open, what hangs, and deciding it."""

from __future__ import annotations

from shlex import quote
from typing import Any

from headrace.console.client import models as m
from headrace.console.client.transport import ApiError
from headrace.console.sessions import Role
from headrace.console.ui import formats, tables
from headrace.console.ui.dialogs import Answer, ask
from headrace.console.ui.markup import Html, h
from headrace.console.ui.page import Page, failure

Row = dict[str, Any]


async def build(page: Page) -> None:
    page.head("Transactions", "Kafka's transactions, and RocketMQ's prepared (half) messages.")
    page.on_change("abort", lambda id: _abort(page, id), Role.ADMIN)
    page.on_change("commit", lambda id: _decide(page, id, "commit"))
    page.on_change("rollback", lambda id: _decide(page, id, "rollback"))
    page.show(h("div", h("h2", "Transactions"), class_="section"))
    try:
        found = await page.api.transactions({"limit": 200, "search": page.query.get("search", "")})
        page.show(_transactions(page, found))
    except ApiError as error:
        page.show(h("div", failure(error), class_="card"))
    page.show(h("div", h("h2", "Prepared messages"), class_="section"))
    try:
        prepared = await page.api.prepared({"limit": 100})
        page.show(_prepared(page, prepared.half or prepared.messages))
    except ApiError as error:
        page.show(h("div", failure(error), class_="card"))


def _transactions(page: Page, found: m.Transactions) -> Html:
    if not found.transactions:
        return h("div", tables.empty("No transactions", "Producers with a transactional id show here."), class_="card")
    column = tables.Column[m.Transaction]
    columns = [
        column("Transactional id", lambda t: t.transactional_id, "name"),
        column(
            "State",
            lambda t: (
                tables.mark("hanging", "bad") if t.hanging else tables.mark(t.state, "warn" if t.started_ms else "")
            ),
        ),
        column("Open for", lambda t: formats.milliseconds(t.age_ms) if t.started_ms else "", "num"),
        column("Timeout", lambda t: formats.milliseconds(t.timeout_ms), "num"),
        column("Producer", lambda t: h("code", f"{t.producer_id} / {t.epoch}")),
        column("Partitions", lambda t: ", ".join(f"{p.topic}/{p.partition}" for p in t.partitions[:4]), "clip"),
        column(
            "",
            lambda t: (
                page.button("Abort", "abort", t.transactional_id, "tiny danger", Role.ADMIN) if t.started_ms else ""
            ),
            "act",
        ),
    ]
    return h("div", tables.table(columns, found.transactions, "Transactions"), class_="card")


def _abort(page: Page, id: str) -> None:
    async def act(_: Answer) -> None:
        await page.api.abort_transaction(id)

    what = (
        "Its messages are discarded, and readers that wait behind it go on. Its producer is fenced: it "
        "has to start again."
    )
    ask(
        page,
        f"Abort {id}",
        what,
        act,
        verb="Abort",
        is_danger=True,
        done="The transaction is aborted.",
        equivalent=f"headrace transaction abort {quote(id)}",
    )


def _prepared(page: Page, rows: list[Row]) -> Html:
    if not rows:
        return h(
            "div",
            tables.empty("No prepared messages", "Messages that wait for their producer's decision show here."),
            class_="card",
        )
    now = page.sampler.table.at_ms
    column = tables.Column[Row]
    columns = [
        column("Prepared", lambda r: formats.ago(r.get("prepared_at") or r.get("prepared_ms"), now), "nowrap"),
        column(
            "Topic", lambda r: h("a", str(r.get("topic")), href=page.link("/topic", name=str(r.get("topic")))), "name"
        ),
        column("Producer group", lambda r: str(r.get("group") or "–")),
        column("Checks", lambda r: formats.count(r.get("checks")), "num"),
        column("State", lambda r: tables.mark(str(r.get("state") or "undecided"), "warn")),
        column("Id", lambda r: h("code", str(r.get("id"))), "clip"),
        column(
            "",
            lambda r: h(
                "span",
                page.button("Commit", "commit", str(r.get("id")), "tiny"),
                " ",
                page.button("Roll back", "rollback", str(r.get("id")), "tiny danger"),
            ),
            "act",
        ),
    ]
    return h("div", tables.table(columns, rows, "Prepared messages"), class_="card")


def _decide(page: Page, id: str, decision: str) -> None:
    async def act(_: Answer) -> None:
        await page.api.decide_prepared(id, decision)

    is_commit = decision == "commit"
    what = "Consumers see the message from now on." if is_commit else "No consumer ever sees the message."
    ask(
        page,
        "Commit the message" if is_commit else "Roll the message back",
        f"{what} This decides for its producer.",
        act,
        verb="Commit" if is_commit else "Roll back",
        is_danger=not is_commit,
        done="It is decided.",
        equivalent=f"headrace half {decision} {quote(id)}",
    )
