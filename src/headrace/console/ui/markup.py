"""HTML as values: what is text is escaped, what is `Html` is taken as it is.

Tables and charts are one element each, so that a page of a hundred rows costs one message to the browser. Whatever
comes from a broker goes through `h` or an attribute of it, which escape.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

VOID = frozenset(("br", "hr", "img", "input", "line", "polyline", "polygon"))


class Html(str):
    """Markup that was made here."""

    __slots__ = ()


Child = str | int | float | Html | None | Iterable["Child"]


def text(child: Child) -> Html:
    """Children as markup: strings are escaped, None is nothing."""
    if child is None:
        return Html("")
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int | float):
        return Html(escape(str(child), quote=False))
    return Html("".join(text(each) for each in child))


def h(tag: str, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """An element. `class_` is class, other underscores are dashes; None and False leave an attribute out."""
    parts = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        plain = name.rstrip("_").replace("_", "-")
        parts.append(plain if value is True else f'{plain}="{escape(str(value))}"')
    opening = f"<{' '.join(parts)}>"
    if tag in VOID:
        # In SVG an element that is not closed has all that follows inside it.
        return Html(opening[:-1] + "/>")
    return Html(f"{opening}{text(children)}</{tag}>")


def join(children: Iterable[Child], between: Child = "") -> Html:
    return Html(text(between).join(text(each) for each in children))
