"""A machine that can be switched off: its disk, its clock, and the lives of the process on it.

`Machine.start` begins a life: a coroutine on a fresh loop and runtime. It goes on until the coroutine is done, or until
a crash that its plan brings or that `kill` and `power_cut` bring from outside. The storage then holds what survived,
and the next `start` is the next life.
"""

from __future__ import annotations

import random
from asyncio import events
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace.runtime import Runtime
from simulation.clock import Calendar, MachineClock
from simulation.disk import SimulatedDisk
from simulation.faults import Crash, Killed, Plan, PowerCut
from simulation.loop import SimulatorLoop
from simulation.network import Network
from simulation.offload import SimulatedOffload
from simulation.storage import FileNode, Storage

if TYPE_CHECKING:
    from simulation.world import World

Main = Callable[[Runtime], Coroutine[Any, Any, None]]


class Ending(Enum):
    """How a life ended."""

    DONE = "done"
    KILLED = "killed"
    POWER_CUT = "power cut"


class SeededRandom:
    """The `Random` of a simulated runtime."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)


class Process:
    """One life."""

    def __init__(self, machine: Machine, main: Main, plan: Plan) -> None:
        self.ending: Ending | None = None
        """None while it runs."""
        self.crash_point: str | None = None
        """Where it ended, if not on its own."""
        self.finished = False
        """Whether its coroutine is done, and the process ends after this step."""
        self._machine = machine
        world = machine.world
        life = world.lives
        network = world.network = Network(world.stream(f"network {life}"), machine.note)
        loop = self.loop = SimulatorLoop(world.time, network, machine.clock)
        disk = self.disk = machine.new_disk(plan)
        runtime = Runtime(
            Calendar(loop, machine.clock),
            disk,
            SeededRandom(world.stream(f"identifiers {life}")),
            SimulatedOffload(loop, world.stream(f"offload {life}"), disk),
            machine.name,
        )
        if plan.crash_after is not None:
            loop.call_later(plan.crash_after, disk.die, Killed("timer") if plan.kill else PowerCut("timer"))
        self._task = loop.create_task(main(runtime))
        self._task.add_done_callback(self._on_done)

    def _on_done(self, _: object) -> None:
        self.finished = True

    def end(self, crash: Crash | None = None) -> None:
        """The process is gone. Raises what its coroutine, or a task that no other awaited, has raised."""
        loop, disk, machine = self.loop, self.disk, self._machine
        error = self._task.exception() if self._task.done() and crash is None else None
        unhandled = loop.unhandled
        # From here on nothing that is left of this life may touch the storage.
        disk.crash = disk.crash or crash or Killed("end")
        running = events._get_running_loop()
        loop.leave()
        loop.abandon()
        loop.close()
        if isinstance(running, SimulatorLoop) and running is not loop:
            running.enter()
        self.crash_point = crash.point if crash else None
        self.ending = _ending(crash)
        machine.on_ended(self)
        if crash is None and unhandled:
            # An error that no task awaited came first, and is most often the cause.
            raise UnhandledError(unhandled[0])
        if error is not None:
            raise error


def _ending(crash: Crash | None) -> Ending:
    if crash is None:
        return Ending.DONE
    return Ending.KILLED if isinstance(crash, Killed) else Ending.POWER_CUT


class Machine:
    """A storage, a clock and a process, from one life to the next."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = MachineClock()
        self.storage = Storage()
        self.disk = self.new_disk(Plan())
        """The disk of this life, or of the last one."""
        self.process: Process | None = None
        """This life, or the last one."""

    def note(self, event: str) -> None:
        """Add to the trace."""
        self.world.note(f"{self.name} {event}")

    @property
    def alive(self) -> bool:
        """Whether the process of this life still runs: what a dying task reports does not count."""
        return self.disk.crash is None

    @property
    def crash_point(self) -> str | None:
        """Where the last life ended, if not on its own."""
        return self.process.crash_point if self.process else None

    def new_disk(self, plan: Plan) -> SimulatedDisk:
        """The storage as one process sees it."""
        world = self.world
        rng = world.stream(f"disk {world.lives}")
        return SimulatedDisk(self.storage, rng, plan=plan, points=world.points, trace=self.note)

    def start(self, main: Main, plan: Plan | None = None) -> Process:
        """Begin a life."""
        self.world.lives += 1
        process = self.process = Process(self, main, plan or Plan())
        self.disk = process.disk
        self.note(f"life {self.world.lives}")
        self.world.add(process)
        return process

    def on_ended(self, process: Process) -> None:
        """A life is over."""
        assert process.ending is not None
        self.world.remove(process)
        self.note(f"ending {process.ending.value} {process.disk.operations}")
        if process.ending is Ending.POWER_CUT:
            self.storage = self.storage.after_power_cut(self.world.stream(f"power cut {self.world.lives}"))

    def flip_bit(self, wanted: Callable[[str], bool], rng: random.Random) -> tuple[str, int] | None:
        """Flip one bit of a file between two lives; which file, and at which position."""
        files = [(path, node) for path, node in self.storage.files() if wanted(path) and node.volatile]
        if not files:
            return None
        path, node = rng.choice(files)
        position = rng.randrange(len(node.volatile))
        flip_in(node, position, 1 << rng.randrange(8))
        self.note(f"flip {path} {position}")
        return path, position


def flip_in(node: FileNode, position: int, mask: int) -> None:
    """Change bits on the device and in the cache alike."""
    node.volatile[position] ^= mask
    if position < len(node.durable):
        node.durable[position] ^= mask


class UnhandledError(Exception):
    """A callback or a task raised and no task awaited it: in a real process this would be a line in the log."""

    def __init__(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        super().__init__(f"{context.get('message')}: {error!r}")
        self.__cause__ = error if isinstance(error, BaseException) else None
