"""Where the scenarios play: a broker in a process of its own, as `headrace serve` starts it, and bars for progress."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from headrace.errors import HeadraceError

READY_SECONDS = 30.0
# A scenario in which nothing moves for so long has lost something.
STALLED_SECONDS = 30.0
CONSOLE = "127.0.0.1:9070"


@dataclass(frozen=True, slots=True)
class Stage:
    """What a scenario is given."""

    console: Console
    url: str
    """Of the broker, for the framework."""
    kafka: str
    http: str
    folder: Path
    """For what remains."""
    scale: float
    """1 for the whole; less makes everything smaller."""

    def count(self, whole: int) -> int:
        return max(round(whole * self.scale), 1)


class Bars:
    """Progress, one bar for each thing that moves."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("  {task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console)
        self._watched: list[tuple[TaskID, Callable[[], int], int]] = []

    def watch(self, name: str, total: int, done: Callable[[], int]) -> None:
        """Show what `done` says."""
        self._watched.append((self._progress.add_task(name, total=total), done, total))

    async def until_full(self, working: asyncio.Task[None] | None = None) -> None:
        """Wait until every bar is full, or nothing moves any more: the checks say then what is missing. What is
        `working` may take as long as it wants, and ends the wait when it fails."""
        last, moved = -1, time.monotonic()
        with self._progress:
            while True:
                counts = [min(done(), total) for _, done, total in self._watched]
                for (bar, _, _), count in zip(self._watched, counts, strict=True):
                    self._progress.update(bar, completed=count)
                if all(count >= total for count, (_, _, total) in zip(counts, self._watched, strict=True)):
                    return
                if working is not None:
                    if working.done():
                        return
                    moved = time.monotonic()
                if sum(counts) != last:
                    last, moved = sum(counts), time.monotonic()
                elif time.monotonic() - moved > STALLED_SECONDS:
                    return
                await asyncio.sleep(0.05)


@contextmanager
def broker(console: Console, data: Path, durability: str, *, shown: bool = False) -> Iterator[dict[str, str]]:
    """A broker, and the addresses of its doors by name; of its web console, too, if that is to be `shown`."""
    command = [sys.executable, "-P", "-m", "headrace.cli", "serve", "--data", str(data), "--durability", durability]
    command += ["--log-level", "warning"]
    for door in ("kafka", "nsq", "http"):
        command += [f"--{door}", "127.0.0.1:0"]
    for door in ("nsq-http", "lookup", "lookup-http", "rocketmq", "rocketmq-namesrv", "rocketmq-grpc"):
        command += [f"--{door}", "off"]
    command += ["--console", CONSOLE] if shown else []
    begin = time.perf_counter()
    # Ctrl-C is for the demo, which then tells the broker.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            if not ready.startswith("ready "):
                raise HeadraceError("the broker did not start. Its log above has the reason.")
            doors = dict(each.split("=", 1) for each in ready.split()[1:])
            console.print(
                f"broker ready in {time.perf_counter() - begin:.2f} s: kafka {doors['kafka']}, nsq {doors['nsq']}, "
                f"http {doors['http']}, {durability}, data in {data}",
                highlight=False,
            )
            yield doors
            console.print(f"the broker used {_memory(process.pid):.0f} MB and {_cpu(process.pid):.1f} s of CPU")
        finally:
            process.terminate()
            status = process.wait(READY_SECONDS)
    if status != 0:
        raise HeadraceError(f"the broker ended with status {status}, not 0")


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """Resident MB of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
