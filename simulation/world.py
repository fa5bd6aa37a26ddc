"""Machines under one time, all of it from one seed.

With one machine, `World(seed).run(main, plan)` runs a coroutine there to the end of its life; the next `run` is the
next start of the process.

With several, a scenario decides what happens:

    world = World(seed, names=("a", "b", "c", "etcd", "client"))

    async def scenario():
        a = world.machines["a"]
        process = a.start(main)            # `main` takes a Runtime, and reaches others by their machines' names
        await asyncio.sleep(3)
        world.network.cut("a", "b", both=False)
        a.power_cut()                      # also kill, pause, hang_disk, jump_clock: see machine.py
        await asyncio.sleep(1)
        a.start(main)
        world.end_faults()
        await world.machines["client"].process.wait()

    world.play(scenario())
    world.machines["a"].storage.files()    # what is on the disks
    world.counts                           # what has happened

There is one time. The world always steps the loop whose next event is earliest, so the same seed gives the same trace.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from math import inf
from typing import Any, TypeVar

from simulation.faults import Crash, CrashPoints, Killed, Plan
from simulation.loop import Deadlock, SimulatorLoop
from simulation.machine import Ending, Machine, Main, Process, UnhandledError
from simulation.network import Network

__all__ = ["Ending", "World"]

T = TypeVar("T")


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
        self.counts: Counter[str] = Counter()
        """What has happened, and how often."""
        self.network = Network(self)
        self.machines = {name: Machine(self, name) for name in names}
        self.machine = self.machines[names[0]]
        """The first of them, and often the only one."""
        # Of each process that is not paused, and of the scenario, which is none.
        self._loops: dict[SimulatorLoop, Process | None] = {}
        self._running: SimulatorLoop | None = None

    def stream(self, purpose: str) -> random.Random:
        """Random numbers for one purpose, the same in every run of this seed and on every machine. Streams are apart so
        that one more draw in one place (a network delay, say) does not change what happens in another."""
        return random.Random(f"headrace/{self.seed}/{purpose}")

    def note(self, event: str) -> None:
        """Add to the trace."""
        self.trace.add(self.time, event)

    def add(self, process: Process) -> None:
        """Step a process from now on."""
        self._loops[process.loop] = process

    def remove(self, process: Process) -> None:
        """Step a process no more."""
        self._loops.pop(process.loop, None)

    def run(self, main: Main, plan: Plan | None = None) -> Ending:
        """One life of the first machine's process. The next begins a second later at the earliest."""
        process = self.machine.start(main, plan)
        try:
            with self._stepping():
                while process.ending is None:
                    self._step()
        finally:
            if process.ending is None:
                process.end(Killed("error"))
            self.time += 1.0
        return process.ending

    def play(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that is outside of every machine: it starts processes, lets things go wrong, and waits.
        Raises what any process raises. At its end every process is killed."""
        loop = SimulatorLoop(self.time)
        self._loops[loop] = None
        task = loop.create_task(scenario)
        try:
            with self._stepping():
                while not task.done():
                    self._step()
            self._check_unhandled()
            return task.result()
        finally:
            del self._loops[loop]
            for machine in self.machines.values():
                if machine.process is not None and machine.process.ending is None:
                    machine.process.end(Killed("end"))
            loop.leave()
            loop.abandon()
            loop.close()

    def end_faults(self) -> None:
        """Let every link, every disk, every clock and every process go on as if nothing had happened. Which processes
        are started again is the scenario's."""
        self.network.heal_all()
        for machine in self.machines.values():
            machine.repair_disk()
            machine.clock.drift(self.time, 1.0)
            if machine.process is not None and machine.process.paused:
                machine.resume()

    def _check_unhandled(self) -> None:
        """Errors that no task awaited came first, and are most often the cause of others."""
        for loop in self._loops:
            if loop.unhandled:
                raise UnhandledError(loop.unhandled[0])

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        try:
            yield
        except Deadlock:
            self._check_unhandled()
            raise
        finally:
            if self._running is not None:
                self._running.leave()
                self._running = None

    def _step(self) -> None:
        """Go to the next event, wherever it is, and run what is due there."""
        chosen, when = None, inf
        for loop in self._loops:
            at = loop.next_event()
            if at < when:
                chosen, when = loop, at
        if chosen is None:
            raise Deadlock(self.time)
        if when > self.time:
            self.time = when
        if chosen is not self._running:
            self._running = chosen
            chosen.enter()
        process = self._loops[chosen]
        try:
            chosen.step(self.time)
        except Crash as crash:
            if process is None:
                raise
            process.end(crash)
        else:
            if process is not None and process.finished:
                process.end()
