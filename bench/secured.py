"""`python -m bench.secured`: what rights cost: SCRAM, rules and quotas on, beside off, and beside Apache Kafka's.

Requests of one record, over real sockets, on servers that take turns; a server without rights is measured twice, which
shows how far two measurements of the same are apart. In front of that stands the fast way of the Kafka door by itself,
in one process (`fast_path`). The best of five rounds counts. It ends within eight minutes: where rounds take too long,
there are fewer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import rich.table
from rich.console import Console

from bench import fast_path, report
from bench.measure import measure
from bench.peers import Missing
from bench.peers.secured import Compared, Open, OpenKafka, Secured, SecuredKafka
from bench.rows import QUICK, Figure, Scale, Topic, small_figures, small_spec

MARK = "measured: secured"
ROUNDS = 5
FULL = Scale(bulk_bytes=0, seconds=1.5, warm_up=20.0, rounds=ROUNDS)
# For all rounds; what comes before and after takes less than two minutes.
BUDGET_SECONDS = 330.0
OFF, SAME, ON = "Headrace", "itself", "Headrace, secured"
THEIRS, THEIRS_ON = "Apache Kafka", "Apache Kafka, secured"


@dataclass(frozen=True)
class Work:
    """Requests of one record."""

    title: str
    run: Callable[[Compared, Scale], list[Figure]]


def produce(connections: int, in_flight: int = 1) -> Callable[[Compared, Scale], list[Figure]]:
    def run(peer: Compared, scale: Scale) -> list[Figure]:
        with Topic(peer, 6) as topic:
            measured = measure(peer, small_spec(topic.names, 6, scale, connections, in_flight, False) | peer.way_in)
            topic.check(measured)
        return small_figures(measured)

    return run


def fetch(connections: int) -> Callable[[Compared, Scale], list[Figure]]:
    def run(peer: Compared, scale: Scale) -> list[Figure]:
        with Topic(peer, 1) as topic:
            measure(peer, small_spec(topic.names, 1, scale, 1, 1, False) | {"kind": "touch"} | peer.way_in)
            spec = {"kind": "small_fetch", "topic": topic.name, "connections": connections, "seconds": scale.seconds}
            measured = measure(peer, spec | peer.way_in)
        return small_figures(measured)

    return run


WORK = [
    Work("produce, 64 connections, 16 in flight on each", produce(64, 16)),
    Work("produce, 64 connections", produce(64)),
    Work("fetch, 64 connections", fetch(64)),
    Work("fetch, 1 connection", fetch(1)),
]


class Costs:
    """Figures by work and server, as they come in."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = servers
        self._figures: dict[tuple[str, str], dict[str, list[Figure]]] = {}

    def add(self, title: str, server: str, figure: Figure) -> None:
        self._figures.setdefault((title, figure.what), {}).setdefault(server, []).append(figure)

    def headings(self) -> list[str]:
        versions = {OFF: Open.version, THEIRS: OpenKafka.version}
        names = [f"{name} {versions[name]}" if name in versions else name for name in self._servers]
        ratios = ["rights cost Headrace", "itself against itself"]
        if THEIRS in self._servers:
            ratios += ["rights cost Kafka", "secured, Headrace is better by"]
        return ["work", "", *names, *ratios]

    def lines(self) -> list[list[str]]:
        made = []
        for (title, what), by_server in self._figures.items():
            cells = [report.cell(by_server.get(name, [])) for name in self._servers]
            ratios = [_difference(by_server, OFF, ON), _difference(by_server, OFF, SAME)]
            if THEIRS in self._servers:
                ratios += [_difference(by_server, THEIRS, THEIRS_ON), _times(by_server)]
            made.append([title, what, *cells, *ratios])
        return made

    def notes(self) -> list[str]:
        taken = min(len(each) for by_server in self._figures.values() for each in by_server.values())
        figures = (figure for by_server in self._figures.values() for each in by_server.values() for figure in each)
        return [*report.notes(figures), f"Rounds: {taken}. More than 0% is more CPU, or a lower rate."]

    def markdown(self) -> str:
        headings = self.headings()
        lines = [headings, ["---", "---", *["--:"] * (len(headings) - 2)], *self.lines()]
        return "".join("| " + " | ".join(line) + " |\n" for line in lines)

    def rich(self) -> rich.table.Table:
        made = rich.table.Table(*self.headings())
        for line in self.lines():
            made.add_row(*line)
        return made


def _best(by_server: dict[str, list[Figure]], name: str) -> float | None:
    figures = by_server.get(name)
    return report.best(figures).value if figures else None


def _difference(by_server: dict[str, list[Figure]], one: str, other: str) -> str:
    """By how much the other is worse."""
    before, after = _best(by_server, one), _best(by_server, other)
    if before is None or after is None:
        return ""
    more_is_better = by_server[one][0].more_is_better
    return f"{(before / after if more_is_better else after / before) - 1:+.1%}"


def _times(by_server: dict[str, list[Figure]]) -> str:
    ours, theirs = _best(by_server, ON), _best(by_server, THEIRS_ON)
    if ours is None or theirs is None:
        return ""
    return f"{ours / theirs if by_server[ON][0].more_is_better else theirs / ours:.2f}x"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.secured", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, not figures to keep")
    parser.add_argument("--rounds", type=int, help="how often each work is measured (default: 5; 2 with --quick)")
    parser.add_argument("--alone", action="store_true", help="measure Headrace without Kafka")
    parser.add_argument("--write", action="store_true", help="put the table into bench/README.md")
    return parser.parse_args(arguments)


def measure_all(servers: Sequence[Compared], scale: Scale, costs: Costs, console: Console) -> None:
    """Round by round, all work on all servers, for as long as there is time."""
    try:
        for server in servers:
            console.print(f"{server.name}: start", style="dim")
            server.start()
        for server in servers:
            if isinstance(server, OpenKafka | SecuredKafka):
                console.print(f"{server.name}: warm up", style="dim")
                warm_up(server, scale)
        began = before = time.monotonic()
        for number in range(scale.rounds):
            console.print(f"round {number + 1}", style="dim")
            for work in WORK:
                for server in servers:
                    for figure in work.run(server, scale):
                        costs.add(work.title, server.name, figure)
            now = time.monotonic()
            if now + (now - before) > began + BUDGET_SECONDS:
                break
            before = now
    finally:
        for server in servers:
            server.stop()


def warm_up(server: Compared, scale: Scale) -> None:
    """Load until the server's compiler has seen everything that is measured."""
    until = time.monotonic() + scale.warm_up
    while time.monotonic() < until:
        for work in WORK:
            work.run(server, replace(scale, seconds=1.0))


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    base = replace(QUICK, warm_up=5.0) if options.quick else FULL
    scale = replace(base, rounds=options.rounds or base.rounds)
    console = Console()
    if not console.is_terminal:
        console.width = 200
    servers: list[Compared] = [Open(OFF), Open(SAME), Secured()]
    if not options.alone:
        try:
            servers += [OpenKafka(), SecuredKafka()]
        except Missing as reason:
            console.print(f"Headrace is measured alone: {reason}", style="yellow")
    costs = Costs([server.name for server in servers])
    console.print("in one process", style="dim")
    names = {fast_path.OFF: OFF, fast_path.SAME: SAME, fast_path.ON: ON}
    for kind, by_scene in asyncio.run(fast_path.measured(scale.rounds)).items():
        for scene, taken in by_scene.items():
            for each in taken:
                costs.add(f"{kind}, in one process", names[scene], Figure("CPU µs/request", each))
    measure_all(servers, scale, costs, console)
    console.print(costs.rich())
    for line in costs.notes():
        console.print(line, style="dim")
    if options.write:
        report.write(costs, MARK)


if __name__ == "__main__":
    main()
