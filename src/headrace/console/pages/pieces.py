"""Lists of what the API answers page by page, each row as it came."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.console.ui import formats, tables
from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page

Row = dict[str, Any]
PAGE_ROWS = 100
column = tables.Column[Row]


def text_of(name: str) -> Callable[[Row], Child]:
    """What a row has under a name."""
    return lambda row: "–" if row.get(name) in (None, "") else str(row[name])


async def listed(
    page: Page,
    path: str,
    name: str,
    columns: Sequence[tables.Column[Row]],
    nothing: Html,
    title: str,
    query: Mapping[str, str | int] | None = None,
) -> None:
    """A list, and a link to where it goes on."""
    asked = {**(query or {}), "limit": PAGE_ROWS, "after": page.query.get("after", "")}
    answer = await page.api.ask("GET", path, {key: value for key, value in asked.items() if value != ""})
    rows, following = answer[name], answer["next"]
    further = (
        h("a", "Next", class_="b tiny", href=page.link("/access", **{**page.query, "after": str(following)}))
        if following is not None
        else None
    )
    if not rows and further is None:
        page.show(h("div", nothing, class_="card"))
        return
    foot = h("div", f"{formats.count(len(rows))} shown", h("span", class_="grow"), further, class_="foot")
    page.show(h("div", tables.table(columns, rows, title), foot, class_="card"))


def filters(page: Page, tab: str, fields: Sequence[tuple[str, str]], *more: Child, verb: str = "Filter") -> None:
    """Fields above a list, whose values are in its address."""
    inputs = [
        h(
            "label",
            h("span", words),
            h("input", name=name, value=page.query.get(name, ""), class_="f", autocomplete="off"),
            class_="field",
        )
        for name, words in fields
    ]
    page.on("filter", lambda given: page.go("/access", tab=tab, **{key: each for key, each in given.items() if each}))
    button = h("div", h("button", verb, class_="b main-action"), style="margin-top:10px")
    form = (h("div", inputs, *more, class_="fields"), button)
    page.show(h("form", form, data_form="filter", role="search", class_="card pad", style="margin-bottom:12px"))


def choice(page: Page, name: str, words: str, choices: Sequence[str], default: str = "") -> Html:
    """A field among `filters` with few values."""
    given = page.query.get(name, default)
    options = [h("option", each or "all", value=each, selected=each == given) for each in choices]
    return h("label", h("span", words), h("select", options, name=name, class_="f", style="width:100%"), class_="field")
