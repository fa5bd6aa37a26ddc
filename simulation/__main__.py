"""`python -m simulation`: a campaign over a range of seeds.

It prints the crash points that were reached and, for each failing seed, the command that replays it. The exit code is
1 if any failed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import structlog
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headrace.log.interface import Durability
from simulation.broker.campaign import BrokerCampaign
from simulation.campaign import Campaign, Run
from simulation.faults import AFTER, BEFORE, MIDDLE, CrashPoints
from simulation.group.campaign import GroupCampaign
from simulation.log.campaign import LogCampaign
from simulation.queues.campaign import QueueCampaign
from simulation.replicas.campaign import ReplicasCampaign
from simulation.transactions.campaign import TransactionCampaign

CAMPAIGNS: dict[str, Callable[..., Campaign]] = {
    "": LogCampaign,
    "--whole-broker": BrokerCampaign,
    "--queues": QueueCampaign,
    "--transactions": TransactionCampaign,
    "--group": GroupCampaign,
    "--replicas": ReplicasCampaign,
}


def crash_table(points: CrashPoints) -> Table:
    """The crash points of a campaign: how often each was reached, and how often a life ended there."""
    table = Table("crash point", "reached", BEFORE, MIDDLE, AFTER, "errors", title="Crash points")
    for point, reached in sorted(points.reached.items()):
        ended = [points.crashed[f"{point} ({phase})"] for phase in (BEFORE, MIDDLE, AFTER)]
        failed = points.failed[point] + points.failed[f"{point} (full)"]
        table.add_row(point, *(str(number or "-") for number in (reached, *ended, failed)))
    return table


def replay_command(
    seed: int, part: str, durability: str, steps: int | None, lives: int | None, broken: list[str]
) -> str:
    """The command that runs one seed again, with its trace."""
    words = [f"python -m simulation --seeds {seed}"]
    words.append(part or f"--durability {durability}")
    words += [f"--steps {steps}"] if steps is not None else []
    words += [f"--lives {lives}"] if lives is not None else []
    words += [f"--break '{point}'" for point in broken]
    return " ".join([*words, "--trace"])


def main(
    seeds: Annotated[str, typer.Option(help="One seed, or a range FIRST:LAST without LAST.")] = "0:1000",
    whole_broker: Annotated[
        bool, typer.Option("--whole-broker", help="The log behind a broker and its Kafka door, with clients.")
    ] = False,
    queues: Annotated[
        bool, typer.Option("--queues", help="The log behind a broker, with queues and consumers.")
    ] = False,
    transactions: Annotated[
        bool, typer.Option("--transactions", help="The whole broker, with clients that write in transactions.")
    ] = False,
    group: Annotated[bool, typer.Option("--group", help="Three nodes that copy one journal, and an etcd.")] = False,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Three replicas of a log with topics, and an etcd.")
    ] = False,
    durability: Annotated[str, typer.Option(help="sync, async, memory, or all of them in one log.")] = "all",
    steps: Annotated[int | None, typer.Option(help="Steps of each task in a life; else the campaign's own.")] = None,
    lives: Annotated[int | None, typer.Option(help="Lives in a run, before the last look; else its own.")] = None,
    broken: Annotated[
        list[str] | None, typer.Option("--break", help="A crash point that shall do nothing: see the checks fail.")
    ] = None,
    trace: Annotated[bool, typer.Option(help="Print the end of the trace of a failing seed.")] = False,
    failures: Annotated[int, typer.Option(help="Stop after this many failing seeds.")] = 20,
) -> None:
    """Run the log through lives that end in power cuts, kills, full and failing disks, and check what it promised."""
    # A seed's broker logs what it recovers from, thousands of lines of it.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    first, _, last = seeds.partition(":")
    begin = int(first)
    end = int(last) if last else begin + 1
    broken = broken or []
    trace_lines = 100_000 if trace else 0
    parts = {"--whole-broker": whole_broker, "--queues": queues, "--transactions": transactions, "--group": group}
    parts["--replicas"] = replicas
    part = next((name for name, is_wanted in parts.items() if is_wanted), "")
    given: dict[str, Any] = {name: value for name, value in (("steps", steps), ("lives", lives)) if value is not None}
    if not part and durability != "all":
        given["durabilities"] = (Durability(durability),)
    campaign = CAMPAIGNS[part](**given, ignored=frozenset(broken), trace_lines=trace_lines)
    console = Console()
    points, endings = CrashPoints(), Counter[str]()
    failed: list[Run] = []
    columns = (
        TextColumn("seed {task.fields[seed]}, {task.fields[failed]} failed"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=end - begin, seed=begin, failed=0)
        for run in campaign.seeds(begin, end):
            points.merge(run.points)
            endings.update("damaged" if at.startswith("damaged") else at.partition(" at ")[0] for at in run.endings)
            if run.failure:
                failed.append(run)
                console.print(f"seed {run.seed}: {run.failure.strip().splitlines()[-1]}", style="red", markup=False)
                command = replay_command(run.seed, part, durability, steps, lives, broken)
                console.print(f"  {command}", markup=False, soft_wrap=True)
            progress.update(task, advance=1, seed=run.seed, failed=len(failed))
            if len(failed) >= failures:
                break
    if points.reached:
        console.print(crash_table(points))
    console.print("  ".join(f"{count} {ending}" for ending, count in sorted(endings.items())))
    missed = campaign.missed(endings, end - begin) if not failed else {}
    for name, what in missed.items():
        console.print(f"too seldom: {name} {what}", style="red", markup=False)
    if trace:
        for run in failed:
            console.print("\n".join([*run.trace, run.failure or ""]), markup=False, soft_wrap=True)
    if end - begin == 1 and not failed:
        console.print(f"trace {run.digest}")
    console.print(
        f"{end - begin} seeds, {len(failed)} failed" + (f" (stopped at {failures})" if len(failed) >= failures else "")
    )
    sys.exit(1 if failed or missed else 0)


if __name__ == "__main__":
    # Sets of strings must have one order in every process, or a seed would not replay.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    typer.run(main)
