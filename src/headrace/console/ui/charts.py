"""Charts as SVG: lines over time with units, and sparklines.

They are made here and not in the browser: a page that is open costs one small message each few seconds, colours follow
the theme, and a figure that is not known is a gap in the line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

from headrace.console.ui.formats import DASH, byte_rate, offset, size
from headrace.console.ui.markup import Html, h

WIDTH, HEIGHT = 560.0, 150.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 6.0, 8.0, 22.0
SERIES_MAX = 6
STEPS = (60, 300, 600, 1800, 3600, 2 * 3600, 4 * 3600, 6 * 3600, 12 * 3600, 86_400, 2 * 86_400, 4 * 86_400)

Points = Sequence[tuple[int, float | None]]
Format = Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart."""

    name: str
    points: Points


def spark(values: Sequence[float], label: str = "") -> Html:
    """The last minutes, without axes."""
    if len(values) < 2:
        return Html("")
    top = max(values) or 1.0
    step = 100 / (len(values) - 1)
    points = " ".join(f"{place * step:.1f},{22 - 20 * max(value, 0) / top:.1f}" for place, value in enumerate(values))
    area = h("polygon", points=f"0,24 {points} 100,24", class_="area")
    line = h("polyline", points=points, class_="line")
    return h(
        "svg",
        area,
        line,
        class_="spark",
        viewBox="0 0 100 24",
        preserveAspectRatio="none",
        role="img",
        aria_label=label or "the last minutes",
    )


def chart(title: str, lines: Sequence[Line], form: Format, zone: tzinfo, span: int = 0) -> Html:
    """Lines over time. `form` gives a value its unit, `span` is how many seconds are asked for."""
    lines = lines[:SERIES_MAX]
    times = [at for line in lines for at, _ in line.points]
    known = [value for line in lines for _, value in line.points if value is not None]
    last = [next((value for _, value in reversed(line.points) if value is not None), None) for line in lines]
    keys = [
        h("span", h("i", class_=f"k{place + 1}"), f"{line.name} {form(now)}" if line.name else form(now), class_="key")
        for place, (line, now) in enumerate(zip(lines, last, strict=True))
    ]
    header = h("header", h("h3", title), keys)
    if not known:
        nothing = h(
            "div",
            "No figures yet: the first come within ten seconds.",
            class_="muted small",
            style="padding:44px 0;text-align:center",
        )
        return h("div", header, nothing, class_="card chart")
    begin, end = min(times), max(max(times), min(times) + 1)
    if span:
        begin = min(begin, end - span)
    # A console that has just begun to look shows that, and not an hour of nothing.
    first = min(at for line in lines for at, value in line.points if value is not None)
    begin = max(begin, min(first, end - max(span // 12, 60)))
    top = nice_top(max(known), 1024.0 if form in (size, byte_rate) else 10.0)

    def x_of(at: float) -> float:
        return LEFT + (at - begin) / (end - begin) * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)

    drawn: list[Html] = []
    for part in (0.0, 0.5, 1.0):
        y = y_of(top * part)
        drawn.append(h("line", x1=LEFT, x2=WIDTH - RIGHT, y1=_n(y), y2=_n(y), class_="rule"))
        drawn.append(h("text", form(top * part), x=LEFT - 6, y=_n(y + 3.5), text_anchor="end"))
    for at, words in time_marks(begin, end, zone):
        drawn.append(h("text", words, x=_n(x_of(at)), y=HEIGHT - 5, text_anchor="middle"))
    for place, line in enumerate(lines):
        for piece in pieces(line.points):
            path = " ".join(f"{_n(x_of(at))},{_n(y_of(value))}" for at, value in piece)
            if len(piece) == 1:
                path = f"{path} {_n(x_of(piece[0][0]) + 1.5)},{_n(y_of(piece[0][1]))}"
            elif len(lines) == 1:
                floor = _n(y_of(0))
                area = f"{_n(x_of(piece[0][0]))},{floor} {path} {_n(x_of(piece[-1][0]))},{floor}"
                drawn.append(h("polygon", points=area, class_="area a1"))
            drawn.append(h("polyline", points=path, class_=f"line s{place + 1}"))
    drawn.append(h("line", x1=0, x2=0, y1=TOP, y2=HEIGHT - BOTTOM, class_="cursor"))
    said = "; ".join(f"{line.name or title} now {form(now)}" for line, now in zip(lines, last, strict=True))
    svg = h("svg", drawn, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=f"{title}: {said}")
    tips = json.dumps(_tips(lines, form, zone, x_of))
    plot = h("div", svg, h("div", class_="tip"), class_="plot", data_points=tips, data_width=WIDTH)
    return h("div", header, plot, class_="card chart")


def _tips(lines: Sequence[Line], form: Format, zone: tzinfo, x_of: Callable[[float], float]) -> list[tuple[float, str]]:
    """What stands beside the pointer, by its place."""
    values = [dict(line.points) for line in lines]
    found = []
    for at in sorted({at for each in values for at in each}):
        when = datetime.fromtimestamp(at, zone)
        shown = [
            f"{line.name} {form(each.get(at))}" if line.name and len(lines) > 1 else form(each.get(at))
            for line, each in zip(lines, values, strict=True)
        ]
        found.append((round(x_of(at), 1), f"{when:%H:%M:%S} {offset(when)} · {' · '.join(shown)}" if shown else DASH))
    return found


def pieces(points: Points) -> list[list[tuple[int, float]]]:
    """The runs of points that are known."""
    found: list[list[tuple[int, float]]] = []
    run: list[tuple[int, float]] = []
    for at, value in points:
        if value is None:
            if run:
                found.append(run)
            run = []
        else:
            run.append((at, value))
    return [*found, run] if run else found


def nice_top(value: float, step: float = 10.0) -> float:
    """The top of an axis: 1, 2, 2.5 or 5 times a power of ten; of bytes, 1, 2, 4, ... times a power of 1,024."""
    if value <= 0:
        return 1.0
    if step == 1024.0:
        return 2.0 ** math.ceil(math.log2(value)) if value > 1 else 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= value)


def time_marks(begin: int, end: int, zone: tzinfo) -> list[tuple[int, str]]:
    """Round times between, at most six, in the viewer's zone."""
    step = next((each for each in STEPS if (end - begin) / each <= 6), STEPS[-1])
    shift = datetime.fromtimestamp(begin, zone).utcoffset()
    seconds = int(shift.total_seconds()) if shift else 0
    first = begin + -(begin + seconds) % step
    form = "%d %b" if step >= 86_400 else "%H:%M"
    margin = (end - begin) * 0.03
    times = [at for at in range(first, end + 1, step) if begin + margin <= at <= end - margin]
    return [(at, datetime.fromtimestamp(at, zone).strftime(form)) for at in times]


def _n(value: float) -> float:
    return round(value, 1)
