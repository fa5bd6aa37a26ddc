"""Lists that the broker searches, sorts and cuts into pages, with figures that stay live."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from nicegui import ui

from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page, js
from headrace.console.ui.tables import Column, ListQuery, empty, foot, table

Row = TypeVar("Row")
Found = tuple[Sequence[Row], int]
"""The rows of a page, and how many there are in all."""


@dataclass
class ListView(Generic[Row]):
    """A list on a page. Its address has what is searched and how it is sorted, so that it can be passed on."""

    page: Page
    path: str
    noun: str
    columns: Sequence[Column[Row]]
    fetch: Callable[[ListQuery], Awaitable[Found[Row]]]
    nothing: Html
    """What stands there where nothing is searched, and nothing is there."""
    sort: str
    order: str = "asc"
    extra: Child = None
    """More to choose from, beside the search."""
    searchable: bool = True

    async def show(self) -> None:
        page = self.page
        self.query = ListQuery.read(dict(page.query), self.sort, self.order)
        self.kept = {
            name: value for name, value in page.query.items() if name not in ("search", "sort", "order", "offset")
        }
        if self.searchable:
            field = h(
                "input",
                name="search",
                value=self.query.search,
                class_="f",
                type="search",
                data_filter=True,
                placeholder=f"Filter {self.noun}, * and ? are wildcards",
                aria_label=f"Filter {self.noun}",
                autocomplete="off",
                style="max-width:340px",
            )
            page.show(
                h(
                    "form",
                    h("div", field, self.extra, class_="row-of"),
                    data_form="search",
                    data_live=True,
                    role="search",
                    style="margin-bottom:12px",
                )
            )
        elif self.extra:
            page.show(h("div", self.extra, class_="row-of", style="margin-bottom:12px"))
        page.on("search", self._search)
        self._element = page.show("")
        await self.read()
        page._live.append(self._draw)

    async def read(self) -> None:
        """Read the list anew."""
        self.rows, self.total = await self.fetch(self.query)
        self._draw()

    def _draw(self) -> None:
        path = self.page.link(self.path, **self.kept)
        if not self.rows and not self.query.search and not self.query.offset:
            made: Html = h("div", self.nothing, class_="card")
        elif not self.rows:
            words = f"Nothing in {self.noun} fits {self.query.search!r}."
            made = h("div", empty("Nothing found", words), class_="card")
        else:
            shown = table(self.columns, self.rows, self.noun, path, self.query)
            made = h("div", shown, foot(self.query, len(self.rows), self.total, path, self.noun), class_="card")
        if self._element.content != made:
            self._element.content = made

    async def _search(self, given: dict[str, str]) -> None:
        page = self.page
        self.query = ListQuery(str(given.get("search", ""))[:256], self.query.sort, self.query.order)
        ui.run_javascript(
            f"history.replaceState(null, '', {js(self.query.address(page.link(self.path, **self.kept)))})"
        )
        await self.read()
