"""Tables: one element each, made here as markup, with links to sort and pages that the broker cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlencode

from headrace.console.ui.formats import count
from headrace.console.ui.markup import Child, Html, h, join

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: what its cells show."""

    title: str
    cell: Callable[[Row], Child]
    kind: str = ""
    """The cells' class: `num`, `name`, `clip`, `act`."""
    sort: str = ""
    """The field by which the broker sorts; empty: it cannot."""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a page's address says of its list."""

    search: str = ""
    sort: str = ""
    order: str = ""
    offset: int = 0
    limit: int = 50

    @classmethod
    def read(cls, given: dict[str, str], sort: str, order: str = "asc") -> ListQuery:
        """From the query of an address; what does not fit is as if it were not there."""
        offset = given.get("offset", "")
        chosen = given.get("order", "")
        return cls(
            search=given.get("search", "")[:256],
            sort=given.get("sort", "") or sort,
            order=chosen if chosen in ("asc", "desc") else order,
            offset=int(offset) if offset.isascii() and offset.isdigit() and len(offset) < 10 else 0,
        )

    @property
    def to_broker(self) -> dict[str, str | int]:
        return {
            "search": self.search,
            "sort": self.sort,
            "order": self.order,
            "offset": self.offset,
            "limit": self.limit,
        }

    def address(self, path: str, **changes: str | int) -> str:
        """The page's address with some of it changed."""
        given = {"search": self.search, "sort": self.sort, "order": self.order, "offset": self.offset, **changes}
        kept = {name: value for name, value in given.items() if value}
        mark = "&" if "?" in path else "?"
        return path + (mark + urlencode(kept) if kept else "")


def table(
    columns: Sequence[Column[Row]], rows: Iterable[Row], label: str, path: str = "", query: ListQuery | None = None
) -> Html:
    """A table; with a path and a query, its headings sort."""
    heads = []
    for column in columns:
        shown: Child = column.title
        sorted_: str | None = None
        if query is not None and column.sort:
            is_this = column.sort == query.sort
            sorted_ = {"asc": "ascending", "desc": "descending"}[query.order] if is_this else None
            order = (
                ("desc" if query.order == "asc" else "asc") if is_this else ("desc" if column.kind == "num" else "asc")
            )
            arrow = {"ascending": " ↑", "descending": " ↓"}.get(sorted_ or "", "")
            shown = h("a", column.title + arrow, href=query.address(path, sort=column.sort, order=order, offset=0))
        kind = "num" if "num" in column.kind else None
        heads.append(h("th", shown, scope="col", class_=kind, aria_sort=sorted_, title=column.hint or None))
    body = [h("tr", [h("td", column.cell(row), class_=column.kind or None) for column in columns]) for row in rows]
    made = h("table", h("thead", h("tr", heads)), h("tbody", body), class_="t", aria_label=label)
    # It can be scrolled with the keyboard where it is wider than the page.
    return h("div", made, class_="scroll", tabindex="0", role="region", aria_label=label)


def foot(query: ListQuery, shown: int, total: int, path: str, noun: str) -> Html:
    """Where in the list the page is, and the ways on."""
    first = query.offset + 1 if shown else 0
    words = f"{count(first)}–{count(query.offset + shown)} of {count(total)} {noun}"
    ways = []
    if query.offset:
        ways.append(
            h("a", "Previous", href=query.address(path, offset=max(query.offset - query.limit, 0)), class_="b tiny")
        )
    if query.offset + shown < total:
        ways.append(h("a", "Next", href=query.address(path, offset=query.offset + query.limit), class_="b tiny"))
    return h("div", h("span", words), h("span", class_="grow"), ways, class_="foot")


def empty(title: str, advice: Child, command: str = "") -> Html:
    """What stands where a list would be: why it is empty, and what to do next."""
    return h("div", h("h3", title), h("p", advice), h("code", command) if command else None, class_="empty")


def stats(cards: Sequence[Html]) -> Html:
    """Figures side by side: up to five in a row, more in rows of four."""
    return h("div", cards, class_="grid stats", style=f"--n:{len(cards) if len(cards) <= 5 else 4}")


def prose(words: str) -> Html:
    """A sentence in which backquotes mark what is code."""
    pieces = words.split("`")
    return join(h("code", piece) if place % 2 else piece for place, piece in enumerate(pieces))


def facts(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Names and values, one pair a line."""
    return h("dl", [(h("dt", name), h("dd", value)) for name, value in pairs], class_="facts")


def mark(words: str, kind: str = "") -> Html:
    """A state: good, warn, bad, info, or none of them."""
    return h("span", words, class_=f"mark {kind}".strip())


def stat(label: str, value: str, note: Child = "", kind: str = "", drawn: Child = None, href: str = "") -> Html:
    """One figure of an overview, large."""
    inside = [
        h("div", label, class_="label"),
        h("div", value, class_="value"),
        h("div", note, class_="note"),
        drawn,
    ]
    shown = h("div", inside, class_=f"card stat {kind}".strip())
    return h("a", shown, href=href, style="color:inherit;text-decoration:none") if href else shown
