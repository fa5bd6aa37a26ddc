"""Lists that are searched, sorted and paged where the data is, a turn of the loop at a time.

However long a list is, a step of it looks at `STEP` entries: they are sorted in runs of that length, and the runs are
merged as far as the page that is asked for.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from headrace.broker.security import Resource, Security, Session
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.operations import PAGE_DEFAULT, PAGE_MAX, Query, limit_query, text_query
from headrace.doors.http.api.schemas import Shape, array, integer, object_of

STEP = 64
OFFSET_MAX = 1_000_000
SEARCH_CHARACTERS_MAX = 256

T = TypeVar("T")
SortKey = tuple[bool, float | str, str]


class Listing(NamedTuple):
    """What is wanted of a list."""

    search: str
    sort: str
    descending: bool
    offset: int
    limit: int


class Found(NamedTuple, Generic[T]):
    """A page of a list."""

    items: list[T]
    total: int
    """Entries that were found."""


def listing_query(sorts: Sequence[str], limit: Query | None = None) -> tuple[Query, ...]:
    """The parameters of a list that can be sorted by these fields, the first of them if none is given."""
    return (
        text_query("search", "A part of the name, or with `*` and `?` a pattern of all of it. Case does not matter."),
        Query("sort", {"type": "string", "enum": list(sorts), "default": sorts[0]}),
        Query("order", {"type": "string", "enum": ["asc", "desc"], "default": "asc"}),
        Query("offset", integer("Entries to leave out.", 0, OFFSET_MAX, 0)),
        limit or limit_query(),
    )


def listing_answer(name: str, entry: Shape, **more: Shape) -> Shape:
    """The answer that has a page of a list."""
    return object_of({name: array(entry), "total": integer("Entries that were found."), "offset": integer(), **more})


def listing_of(
    fields: Fields, sorts: Sequence[str], limit_default: int = PAGE_DEFAULT, limit_max: int = PAGE_MAX
) -> Listing:
    """What a request wants."""
    search = fields.text("search")
    if len(search) > SEARCH_CHARACTERS_MAX:
        raise bad_request(f"search must have at most {SEARCH_CHARACTERS_MAX} characters (got {len(search)})")
    sort, order = fields.text("sort", sorts[0]), fields.text("order", "asc")
    if sort not in sorts:
        raise bad_request(f"sort must be one of {', '.join(sorts)} (got {sort!r})")
    if order not in ("asc", "desc"):
        raise bad_request(f"order must be asc or desc (got {order!r})")
    return Listing(
        search, sort, order == "desc", fields.number("offset", 0, 0, OFFSET_MAX),
        fields.number("limit", limit_default, 1, limit_max),
    )  # fmt: skip


def matcher(search: str) -> Callable[[str], bool]:
    """Whether a name is searched for."""
    if not search:
        return lambda name: True
    wanted = search.casefold()
    if "*" in wanted or "?" in wanted:
        # Brackets mean themselves.
        pattern = re.compile(translate(wanted.replace("[", "[[]")))
        return lambda name: pattern.match(name.casefold()) is not None
    return lambda name: wanted in name.casefold()


def sort_key(value: object, name: str) -> SortKey:
    """By a number or a text, what has none first; then by name."""
    if isinstance(value, str):
        return True, value, name
    return value is not None, float(value) if isinstance(value, int | float) else 0.0, name


class Visible(NamedTuple):
    """What a session may see of a kind of resource."""

    security: Security
    session: Session
    resource: Resource

    def of(self, names: list[str]) -> set[str]:
        return set(self.security.visible(self.session, self.resource, names))


async def page_of(
    items: Iterable[T],
    listing: Listing,
    name: Callable[[T], str],
    value: Callable[[T], object],
    visible: Visible | None = None,
    is_wanted: Callable[[T], bool] | None = None,
) -> Found[T]:
    """The entries of a page. `name` is what is searched and seen by rights, `value` what is sorted by."""
    matches = matcher(listing.search)
    by_key = itemgetter(0)
    runs: list[list[tuple[SortKey, T]]] = []
    total = 0
    every = list(items)
    for first in range(0, len(every), STEP):
        some = [(name(each), each) for each in every[first : first + STEP] if is_wanted is None or is_wanted(each)]
        shown = [(called, each) for called, each in some if matches(called)]
        if visible is not None and shown:
            seen = visible.of([called for called, _ in shown])
            shown = [(called, each) for called, each in shown if called in seen]
        if shown:
            run = [(sort_key(value(each), called), each) for called, each in shown]
            run.sort(key=by_key, reverse=listing.descending)
            runs.append(run)
            total += len(run)
        await asyncio.sleep(0)
    found: list[T] = []
    merged = heapq.merge(*runs, key=by_key, reverse=listing.descending)
    for at, (_, each) in enumerate(merged):
        if at >= listing.offset + listing.limit:
            break
        if at >= listing.offset:
            found.append(each)
        if at % STEP == STEP - 1:
            await asyncio.sleep(0)
    return Found(found, total)
