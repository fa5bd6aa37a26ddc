"""A picture of what `logs` found: traffic, error rates, slow calls, and the errors that were seen most."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from headrace.errors import HeadraceError
from headrace.targets import local_path

if TYPE_CHECKING:
    from headrace.pipeline.jobs.logs.job import Logs

SERVICES = 8
MESSAGES = 8
TEXT = 80


class PlotsMissing(HeadraceError):
    """There is no matplotlib."""


class NothingToDraw(HeadraceError):
    """There are no windows."""


def check_plot(target: str | Path) -> Path:
    """The file. Raises where nothing could be drawn to it."""
    path = Path(local_path(target, "the plot"))
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise PlotsMissing(f"plots are drawn by matplotlib: pip install 'headrace[plots]' ({error})") from None
    kinds = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:].lower() not in kinds:
        raise HeadraceError(f"a plot cannot be drawn to {path}: its name ends in one of .{', .'.join(kinds)}")
    if not path.absolute().parent.is_dir():
        raise HeadraceError(f"a plot cannot be drawn to {path}: there is no such folder")
    return path


def plot(done: Logs | str | Path, path: str | Path) -> Path:
    """Draw the windows in a folder of results (or of a finished job) to a file, by its name PNG, SVG or PDF."""
    file = check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder = Path(local_path(done if isinstance(done, str | Path) else done.to, "the results")) / "windows"
    if not folder.exists():
        raise NothingToDraw(f"there is nothing to draw: no window has ended in {folder.parent}")
    rows = sorted(pq.read_table(folder).to_pylist(), key=lambda row: (row["window"], row["service"]))
    figure = Figure(figsize=(13, 8), layout="constrained")
    FigureCanvasAgg(figure)
    _draw(figure, rows)
    figure.savefig(file, dpi=110)
    return file


def _draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    from matplotlib import dates

    lines: Counter[str] = Counter()
    for row in rows:
        lines[row["service"]] += row["lines"]
    services = [service for service, _ in lines.most_common(SERVICES)]
    times = sorted({row["window"] for row in rows})
    series: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [float("nan")] * len(times)))
    place = {time: index for index, time in enumerate(times)}
    for row in rows:
        for name in ("lines", "error_rate", "p95"):
            value = row[name]
            series[name][row["service"]][place[row["window"]]] = float("nan") if value is None else value
    total, errors = sum(lines.values()), sum(row["errors"] for row in rows)
    figure.suptitle(
        f"{total:,} lines of {len(lines)} services in {len(times)} windows, {errors:,} errors", fontweight="bold"
    )
    (traffic, rates), (slow, top) = figure.subplots(2, 2)
    seconds = (rows[0]["until"] - rows[0]["window"]).total_seconds()
    for service in services:
        traffic.plot(times, [value / seconds for value in series["lines"][service]], label=service)
        rates.plot(times, [100 * value for value in series["error_rate"][service]], label=service)
        slow.plot(times, series["p95"][service], label=service)
    for axes, title, unit in (
        (traffic, "Traffic", "lines/s"),
        (rates, "Error rate", "% of lines"),
        (slow, "Slow calls, 95th percentile", "ms"),
    ):
        axes.set_title(title, loc="left")
        axes.set_ylabel(unit)
        axes.set_ylim(0, 1.08 * max(axes.get_ylim()[1], 1e-9))
        axes.grid(alpha=0.3)
        locator: Any = dates.AutoDateLocator(maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    figure.legend(*traffic.get_legend_handles_labels(), loc="outside lower center", ncols=len(services), frameon=False)
    _top_errors(top, rows)
    for axes in (traffic, rates, slow, top):
        axes.spines[["top", "right"]].set_visible(False)


def _top_errors(axes: Any, rows: list[dict[str, Any]]) -> None:
    messages: Counter[str] = Counter()
    for row in rows:
        for each in row["top_errors"]:
            messages[f"{row['service']}: {each['message']}"] += each["lines"]
    found = messages.most_common(MESSAGES)[::-1]
    axes.set_title("Top errors", loc="left")
    axes.set_xlabel("lines")
    axes.barh(range(len(found)), [count for _, count in found], color="tab:red", alpha=0.3)
    axes.set_yticks([])
    for index, (message, count) in enumerate(found):
        text = f"{count:,}  {message}"
        text = text if len(text) <= TEXT else text[: TEXT - 1] + "…"
        axes.text(0.01, index, text, va="center", fontsize="small", transform=axes.get_yaxis_transform())
