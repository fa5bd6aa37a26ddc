"""Who did what, the newest first."""

from __future__ import annotations

from headrace.console.pages.pieces import Row, choice, column, filters, listed, text_of
from headrace.console.ui import formats, tables
from headrace.console.ui.markup import Child, h
from headrace.console.ui.page import Page

RESULTS = {"ok": "good", "refused": "bad", "would be refused": "warn", "failed": "bad"}
HOURS = {"": 0, "last hour": 1, "last day": 24, "last week": 168}


async def show(page: Page) -> None:
    fields = [("user", "User"), ("action", "Action (topic.*)"), ("name", "On")]
    result, when = choice(page, "result", "Result", ("", *RESULTS)), choice(page, "when", "When", tuple(HOURS))
    filters(page, "audit", fields, result, when)
    query: dict[str, str | int] = {name: page.query.get(name, "") for name in ("user", "action", "name", "result")}
    hours = HOURS.get(page.query.get("when", ""), 0)
    if hours and page.sampler.table.at_ms:
        query["since_ms"] = page.sampler.table.at_ms - hours * 3_600_000

    def what(row: Row) -> Child:
        times = f" ({formats.count(row['count'])} times)" if row.get("count") else ""
        return f"{row['action']}{times}"

    columns = [
        column("When", lambda r: formats.moment(r["t"], page.zone), "nowrap"),
        column("User", text_of("user"), "name"),
        column("Action", what),
        column("On", lambda r: " ".join(filter(None, (str(r["resource"]), str(r["name"])))) or "–", "clip"),
        column("Result", lambda r: tables.mark(r["result"], RESULTS.get(r["result"], ""))),
        column("From", lambda r: " ".join(filter(None, (str(r["door"]), str(r["host"])))) or "–", "nowrap"),
        column("", lambda r: h("span", str(r.get("detail") or ""), class_="small muted"), "clip"),
    ]
    nothing = tables.empty(
        "Nothing is recorded",
        "Nothing fits, or the broker keeps no audit. It does when it is told to, and where it asks for rights.",
        "headrace serve --audit on",
    )
    await listed(page, "/v1/audit", "entries", columns, nothing, "Audit", query)
