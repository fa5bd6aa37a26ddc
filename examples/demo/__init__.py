"""`make demo`: what Headrace is for, seen with one's own eyes.

A broker, and four scenarios through it by the framework: events in order, a burst, timers and retries, service logs
through Spark. Every number is checked against what was sent.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.cli.options import parse_path
from headrace.errors import HeadraceError

SCENARIOS = ("questions", "push", "tickets", "logs")
MARK = ".headrace-demo"


def command(
    only: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Some of {', '.join(SCENARIOS)}, several with commas. [default: all]")
    ] = "",
    to: Annotated[
        Path,
        typer.Option(parser=parse_path, metavar="DIR", help="Where the broker's data, the plot and the report go."),
    ] = Path("demo"),
    scale: Annotated[float, typer.Option(min=0.001, max=100, help="How much: 1 is about a minute.")] = 1.0,
    durability: Annotated[str, typer.Option(help="sync, async or memory.")] = "sync",
    console: Annotated[
        bool, typer.Option("--console", help="Open the console beside the broker, and keep both until Ctrl-C.")
    ] = False,
) -> None:
    """Runs a broker and four scenarios through it, and checks every number: about a minute."""
    names = [each.strip() for each in only.split(",") if each.strip()] or list(SCENARIOS)
    if unknown := [each for each in names if each not in SCENARIOS]:
        raise HeadraceError(f"there is no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    try:
        import headrace.sdk  # noqa: F401
    except ImportError as error:
        raise HeadraceError(f"the demo needs the framework: pip install 'headrace[sdk]' ({error})") from None
    demo(names, prepare(to), scale, durability, shown=console)


def prepare(folder: Path) -> Path:
    """An empty folder; one that an earlier demo made is emptied."""
    if folder.exists():
        if not (folder / MARK).exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise HeadraceError(f"{folder} has something in it that no demo made; choose another with --to")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    return folder


def demo(names: list[str], folder: Path, scale: float, durability: str, *, shown: bool = False) -> None:
    """Play them; raises HeadraceError if any number is not what it must be."""
    from examples.demo import lines, push, questions, report, tickets
    from examples.demo.stage import CONSOLE, Stage, broker
    from headrace.logs import log_like_a_server

    plays: dict[str, Callable[[Stage], Coroutine[Any, Any, report.Report]]] = {
        "questions": questions.play,
        "push": push.play,
        "tickets": tickets.play,
        "logs": lines.play,
    }
    # The handlers fail on purpose.
    log_like_a_server("error", "auto")
    console = Console()
    begun = time.perf_counter()
    reports: list[report.Report] = []
    missing = lines.missing() if "logs" in names else ""
    if missing:
        names = [each for each in names if each != "logs"]
    with broker(console, folder / "data", durability, shown=shown) as doors:
        if shown:
            console.print(f"The console: http://{doors['console']}", highlight=False)
        url = f"headrace://{doors['kafka']}?nsq={doors['nsq']}&http={doors['http']}"
        stage = Stage(console, url, doors["kafka"], doors["http"], folder, scale)
        for number, name in enumerate(names, 1):
            console.rule(f"{number}. {name}", align="left", style="dim")
            began = time.perf_counter()
            played = asyncio.run(plays[name](stage))
            played.seconds = time.perf_counter() - began
            reports.append(played)
        if shown:
            report.show(console, reports)
            console.print(f"[bold]Look at it: http://{doors['console']}[/bold]. Ctrl-C ends it.", highlight=False)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    if not shown:
        report.show(console, reports)
    if missing:
        console.print(f"[yellow]Service logs were left out: {missing}.[/yellow]")
    (folder / "report.json").write_text(json.dumps(report.as_json(reports), indent=2) + "\n")
    look = f"headrace serve --data {folder / 'data'} --console {CONSOLE}"
    console.print(f"Look again: {look}, then open http://{CONSOLE} or", highlight=False)
    for each in reports:
        for place in each.look:
            console.print(f"  {place}", highlight=False)
    faults = [f"{each.title}: {fault.what}" for each in reports for fault in each.faults]
    if faults:
        raise HeadraceError(f"{len(faults)} of the numbers are wrong: {'; '.join(faults)}")
    count = sum(len(each.checks) for each in reports)
    console.print(f"[green]All {count} checks hold[/green], in {time.perf_counter() - begun:.0f} s.")
