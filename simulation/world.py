"""Machines under one time, all of it from one seed.

`World.run` is for one machine: it runs a coroutine there to the end of its life. The next `run` is the next start of
the process. Whatever else runs in the world goes on beside it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import inf

from simulation.faults import Crash, CrashPoints, Killed, Plan
from simulation.loop import Deadlock, SimulatorLoop
from simulation.machine import Ending, Machine, Main, Process, UnhandledError
from simulation.network import Network

__all__ = ["Ending", "World"]


class Trace:
    """What happened in a run: a hash of every event, and the newest events as text.

    Two runs of one seed must give the same hash: that is what "replays exactly" means. The lines are for the person who
    reads a failure.
    """

    def __init__(self, keep: int) -> None:
        self._hash = blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=keep)

    def add(self, time: float, event: str) -> None:
        line = f"{time:.6f} {event}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.lines.append(line)

    def digest(self) -> str:
        return self._hash.hexdigest()


class World:
    """Machines, from one seed."""

    def __init__(self, seed: int, trace_lines: int = 200, names: Sequence[str] = ("localhost",)) -> None:
        self.seed = seed
        self.time = 0.0
        self.lives = 0
        """How many processes have been started."""
        self.points = CrashPoints()
        self.trace = Trace(trace_lines)
        self.machines = {name: Machine(self, name) for name in names}
        self.machine = self.machines[names[0]]
        """The first of them, and often the only one."""
        self.network: Network
        """Of the newest process."""
        self._running: list[Process] = []
        self._loop: SimulatorLoop | None = None

    def stream(self, purpose: str) -> random.Random:
        """Random numbers for one purpose, the same in every run of this seed and on every machine. Streams are apart so
        that one more draw in one place (a network delay, say) does not change what happens in another."""
        return random.Random(f"headrace/{self.seed}/{purpose}")

    def note(self, event: str) -> None:
        """Add to the trace."""
        self.trace.add(self.time, event)

    def add(self, process: Process) -> None:
        """Step a process from now on."""
        self._running.append(process)

    def remove(self, process: Process) -> None:
        """Step a process no more."""
        self._running.remove(process)

    def run(self, main: Main, plan: Plan | None = None) -> Ending:
        """One life of the first machine's process. The next begins a second later at the earliest."""
        process = self.machine.start(main, plan)
        try:
            self._run_until(lambda: process.ending is not None)
        finally:
            if process.ending is None:
                process.end(Killed("error"))
            self.time += 1.0
        assert process.ending is not None
        return process.ending

    def _run_until(self, is_over: Callable[[], bool]) -> None:
        try:
            while not is_over():
                self._step()
        except Deadlock:
            for process in self._running:
                if process.loop.unhandled:
                    raise UnhandledError(process.loop.unhandled[0]) from None
            raise
        finally:
            if self._loop is not None:
                self._loop.leave()
                self._loop = None

    def _step(self) -> None:
        """Go to the next event, wherever it is, and run what is due there."""
        chosen, when = None, inf
        for process in self._running:
            at = process.loop.next_event()
            if at < when:
                chosen, when = process, at
        if chosen is None:
            raise Deadlock(self.time)
        if when > self.time:
            self.time = when
        loop = chosen.loop
        if loop is not self._loop:
            self._loop = loop
            loop.enter()
        try:
            loop.step(self.time)
        except Crash as crash:
            chosen.end(crash)
        else:
            if chosen.finished:
                chosen.end()
