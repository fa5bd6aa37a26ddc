"""What a broker bears of those who watch it, and what a browser bears of watching.

    python -m bench.console                # five minutes; 10,000 topics, 2,000 queues, 500 groups, 50 watchers
    python -m bench.console --quick        # a look, not figures to keep

A broker and a real console process. At rest: the broker's CPU time alone, with a console that nobody looks at, and with
50 pages on the overview. In a real Chromium: what a page that stays open takes, and how long a click takes. Under load
(a producer as fast as it goes and a consumer that follows): how long a message of a probe takes from its producer to
its consumer, in turns unwatched and watched.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from tests.console.browser.conftest import Running
from tests.serve_process import ServeProcess

from bench import report
from bench.console import probe
from bench.console.fill import fill
from bench.console.watchers import chromium, watching
from bench.peers import cpu_between, cpu_seconds

MARK = "measured: console"
NAME = "local"
# After so long no round under load begins, so that all of it ends within six minutes.
ROUNDS_UNTIL_SECONDS = 270
# Until a console has read all figures once.
SETTLE_SECONDS = 6


class Lines:
    """The table, line by line as it is measured."""

    def __init__(self, conditions: str) -> None:
        self._lines: list[tuple[str, str]] = []
        self._conditions = conditions

    def add(self, what: str, figure: str) -> None:
        """One more."""
        self._lines.append((what, figure))
        print(f"{what:<78} {figure:>22}", flush=True)

    def notes(self) -> list[str]:
        return [*report.notes([]), self._conditions]

    def markdown(self) -> str:
        return "".join(f"| {what} | {figure} |\n" for what, figure in [("", ""), ("---", "--:"), *self._lines])


def share(pid: int, seconds: float) -> float:
    """How much of a core a process takes."""
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return cpu_between(before, cpu_seconds(pid)) / (time.monotonic() - began)


def percent(value: float) -> str:
    return f"{value * 100:.2f}% of a core"


def at_rest(lines: Lines, broker: ServeProcess, console: Running, watchers: int, seconds: float, alone: float) -> None:
    time.sleep(SETTLE_SECONDS)
    idle = share(broker.pid, seconds)
    lines.add("at rest: the broker with a console that nobody looks at", percent(idle))
    with watching(console.url, f"/{NAME}", watchers) as sockets:
        time.sleep(SETTLE_SECONDS)
        before, updates = cpu_seconds(console.pid), sockets.updates
        watched = share(broker.pid, seconds)
        of_console = cpu_between(before, cpu_seconds(console.pid)) / seconds
        lines.add(f"at rest: the broker with {watchers} watchers", percent(watched))
        lines.add(f"at rest: what {watchers} watchers cost it", percent(watched - alone))
        lines.add(f"the console itself, with {watchers} watchers", percent(of_console))
        lines.add("updates that a page is pushed, a second", f"{(sockets.updates - updates) / watchers / seconds:.2f}")


@contextmanager
def loaded(kafka: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.console.probe", probe.LOAD, kafka],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_so_far(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("count\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def under_load(
    lines: Lines, broker: ServeProcess, console: Running, watchers: int, rounds: int, seconds: float, deadline: float
) -> None:
    found: dict[str, list[tuple[float, float, float]]] = {"unwatched": [], "watched": []}

    def look(name: str, process: subprocess.Popen[str]) -> None:
        command = [sys.executable, "-m", "bench.console.probe", probe.PROBE, broker.kafka, str(seconds)]
        before, began = read_so_far(process), time.monotonic()
        made = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=seconds + 60)
        rate = (read_so_far(process) - before) / (time.monotonic() - began)
        taken = sorted(json.loads(made.stdout))
        found[name].append((median(taken), taken[len(taken) * 99 // 100], rate))

    with loaded(broker.kafka) as process:
        look("unwatched", process)
        found["unwatched"].clear()
        for number in range(rounds):
            if number and time.monotonic() > deadline:
                break
            look("unwatched", process)
            with watching(console.url, f"/{NAME}", watchers):
                time.sleep(2)
                look("watched", process)
    for name, each in found.items():
        p50, p99, rate = (median(column) for column in zip(*each, strict=True))
        least, most = min(row[1] for row in each), max(row[1] for row in each)
        words = f"under load, {name if name == 'unwatched' else f'with {watchers} watchers'}"
        lines.add(f"{words}: produce to consume, p50", f"{p50:.2f} ms")
        lines.add(f"{words}: produce to consume, p99 (least and most of {len(each)} rounds)",
                  f"{p99:.2f} ms ({least:.2f} to {most:.2f})")  # fmt: skip
        lines.add(f"{words}: messages consumed a second", f"{rate:,.0f}")


def in_a_browser(lines: Lines, console: Running, seconds: float, rounds: int) -> None:
    with chromium(f"{console.url}/{NAME}") as browser:
        nodes, heap = browser.nodes, browser.heap_mb
        lines.add("a page of Chromium on the overview: CPU", percent(browser.cpu(seconds)))
        lines.add(f"its DOM nodes, at first and after {seconds:g} s", f"{nodes:,} and {browser.nodes:,}")
        lines.add(f"its JavaScript heap, at first and after {seconds:g} s", f"{heap:.0f} and {browser.heap_mb:.0f} MB")
        lines.add("resident memory of all of Chromium's processes", f"{browser.memory_mb:.0f} MB")
        for heading, (typical, most) in browser.navigate(NAME, rounds).items():
            lines.add(f"from a click to the page {heading} (and the slowest of {rounds})",
                      f"{typical:.0f} ms ({most:.0f})")  # fmt: skip


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__, allow_abbrev=False)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--queues", type=int, default=2_000)
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--watchers", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, not figures to keep")
    parser.add_argument("--write", action="store_true", help="put the table into bench/README.md")
    return parser.parse_args(arguments)


def main() -> None:
    given = parse(sys.argv[1:])
    if given.quick:
        given.topics, given.queues, given.groups = given.topics // 10, given.queues // 10, given.groups // 10
    seconds, rounds = (4.0, 1) if given.quick else (20.0, 3)
    # On a slow machine, or one that does other work, there are fewer rounds.
    deadline = time.monotonic() + ROUNDS_UNTIL_SECONDS
    if not shutil.which("chromium"):
        raise SystemExit("there is no Chromium: install Debian's package chromium")
    lines = Lines(
        f"{given.topics:,} topics, {given.queues:,} queues, {given.groups:,} groups, {given.watchers} watchers on the "
        f"overview; CPU over {seconds:g} s; durability async."
    )
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    try:
        with ServeProcess(folder / "data", "--http", "127.0.0.1:0", "--durability", "async") as broker:
            fill(broker.kafka, broker.addresses["http"], given.topics, given.queues, given.groups)
            time.sleep(SETTLE_SECONDS)
            alone = share(broker.pid, seconds)
            lines.add("at rest: the broker alone", percent(alone))
            console = Running(folder / "console", f"{NAME}={broker.addresses['http']}")
            try:
                at_rest(lines, broker, console, given.watchers, seconds, alone)
                in_a_browser(lines, console, seconds, rounds + 2)
                under_load(lines, broker, console, given.watchers, rounds, 3 if given.quick else 10, deadline)
            finally:
                console.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.write:
        report.write(lines, MARK)


if __name__ == "__main__":
    main()
