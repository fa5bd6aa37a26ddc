"""A machine that can be switched off: its disk, its clocks, and the lives of the process on it.

`Machine.start` begins a life: a coroutine on a fresh loop and runtime. It goes on until the coroutine is done, or until
a crash that its plan brings or that `kill` and `power_cut` bring from outside. The storage then holds what survived,
and the next `start` is the next life. A machine that is not started again never returns.

What else goes wrong comes and goes by itself: `pause` and `resume`, the `device` that hangs or is slow, the clocks, a
full disk, a disk that is wiped or put back to an earlier copy. Each is counted in `World.counts` under its name.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import events
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.runtime import Runtime
from simulation.clock import Calendar, MachineClock
from simulation.device import Device
from simulation.disk import SimulatedDisk
from simulation.faults import Crash, Killed, Plan, PowerCut
from simulation.loop import SimulatorLoop
from simulation.network import Host
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
        self.paused = False
        self.finished = False
        """Whether its coroutine is done, and the process ends after this step."""
        self._machine = machine
        self._waiters: list[asyncio.Future[Ending]] = []
        world = machine.world
        life = world.lives
        loop = self.loop = SimulatorLoop(world.time, machine.clock)
        self._host = loop.host = Host(world.network, machine.name, loop)
        disk = self.disk = machine.new_disk(plan)
        runtime = Runtime(
            Calendar(loop, machine.clock),
            disk,
            SeededRandom(world.stream(f"identifiers {life}")),
            SimulatedOffload(loop, world.stream(f"offload {life}"), disk, machine.device),
            machine.name,
            machine.boot_id,
        )
        if plan.crash_after is not None:
            loop.call_later(plan.crash_after, disk.die, Killed("timer") if plan.kill else PowerCut("timer"))
        self._task = loop.create_task(main(runtime))
        self._task.add_done_callback(self._on_done)

    async def wait(self) -> Ending:
        """Wait for its end; how it ended."""
        if self.ending is None:
            waiter: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            return await waiter
        return self.ending

    def _on_done(self, _: object) -> None:
        self.finished = True

    def end(self, crash: Crash | None = None) -> None:
        """The process is gone. Raises what its coroutine, or a task that no other awaited, has raised."""
        loop, disk, machine = self.loop, self.disk, self._machine
        error = self._task.exception() if self._task.done() and crash is None else None
        unhandled = loop.unhandled
        # From here on nothing that is left of this life may touch the storage.
        disk.crash = disk.crash or crash or Killed("end")
        self._host.end(silently=isinstance(crash, PowerCut))
        running = events._get_running_loop()
        loop.leave()
        loop.abandon()
        loop.close()
        if isinstance(running, SimulatorLoop) and running is not loop:
            running.enter()
        self.crash_point = crash.point if crash else None
        self.ending = _ending(crash)
        self.paused = False
        machine.on_ended(self)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(self.ending)
        if crash is not None:
            return
        if error is not None:
            if unhandled:
                # It came first, and is most often the cause.
                error.add_note(f"before it: {UnhandledError(unhandled[0])}")
            raise error
        if unhandled:
            raise UnhandledError(unhandled[0])


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
        self.boot_id = self._new_boot_id()
        """Another one after each power cut."""
        self.storage = Storage()
        self.device = Device(world.counts)
        self.disk = self.new_disk(Plan())
        """The disk of this life, or of the last one."""
        self.process: Process | None = None
        """This life, or the last one."""

    def note(self, event: str) -> None:
        """Add to the trace."""
        self.world.trace.add(self.world.time, f"{self.name} {event}")

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
        if self.process is not None and self.process.ending is None:
            raise RuntimeError(f"a process runs on {self.name}")
        self.world.lives += 1
        process = self.process = Process(self, main, plan or Plan())
        self.disk = process.disk
        self.note(f"life {self.world.lives}")
        self.world.add(process)
        self.world.network.switch_on(self.name)
        return process

    def _new_boot_id(self) -> str:
        return str(UUID(bytes=self.world.stream(f"boot {self.name} {self.world.lives}").randbytes(16), version=4))

    # What goes wrong with the process.

    def kill(self) -> None:
        """SIGKILL: the operating system still has everything that was written, and closes the sockets."""
        self._end(Killed("kill"))

    def power_cut(self) -> None:
        """The machine goes dark: what was not synced may be lost, and the network hears nothing of it."""
        self._end(PowerCut("power cut"))

    def _end(self, crash: Crash) -> None:
        process = self._living()
        if process.loop.unhandled:
            raise UnhandledError(process.loop.unhandled[0])
        self.count(crash.point)
        if asyncio._get_running_loop() is process.loop:
            self.disk.die(crash)
        process.end(crash)

    def pause(self) -> None:
        """SIGSTOP: nothing of the process runs. Its sockets stay open, and what is sent to it waits."""
        process = self._living()
        if not process.paused:
            process.paused = True
            self.world.remove(process)
            self.count("pause")

    def resume(self) -> None:
        """SIGCONT: everything that is due by now runs at once."""
        process = self._living()
        if process.paused:
            process.paused = False
            self.world.add(process)
            self.note("resume")

    def _living(self) -> Process:
        if self.process is None or self.process.ending is not None:
            raise RuntimeError(f"no process runs on {self.name}")
        return self.process

    def count(self, fault: str) -> None:
        """A fault happens here."""
        self.world.counts[fault] += 1
        self.note(fault)

    # What goes wrong with clocks.

    def jump_clock(self, seconds: float) -> None:
        """Put the calendar forward, or back. Timers do not notice."""
        self.clock.jumped += seconds
        self.count("clock jump")

    def drift_clock(self, rate: float) -> None:
        """Let the machine's time, calendar and timers alike, run at another rate from now on."""
        self.clock.drift(self.world.time, rate)
        self.count("clock drift")

    # What goes wrong with the disk.

    def hang_disk(self) -> None:
        """Let nothing that a process asks of the device end, until `repair_disk`."""
        self.device.hang()
        self.count("hung disk")

    def slow_disk(self, slowness: float) -> None:
        """Let everything that a process asks of the device take so many times longer."""
        self.device.slowness = slowness
        self.count("slow disk")

    def fill_disk(self, room: int) -> None:
        """Let the disk have so many bytes left."""
        self.storage.capacity = self.storage.used + room
        self.count("full disk")

    def fail_syncs(self, chance: float) -> None:
        """Let syncs of this life answer EIO."""
        self.disk.plan.sync_error_chance = chance
        self.count("failing disk")

    def repair_disk(self) -> None:
        """Let the disk answer again, as fast as ever, and have room."""
        self.disk.plan.sync_error_chance = 0.0
        self.device.slowness = 1.0
        self.device.go_on()
        self.storage.capacity = None
        self.note("disk repaired")

    def wipe_disk(self) -> None:
        """Begin the next life with an empty disk."""
        self._change_disk(Storage(), "wiped disk")

    def restore_disk(self, backup: Storage) -> None:
        """Begin the next life with an earlier `Storage.copy` of the disk."""
        self._change_disk(backup.copy(), "restored disk")

    def _change_disk(self, storage: Storage, fault: str) -> None:
        if self.process is not None and self.process.ending is None:
            raise RuntimeError(f"a process runs on {self.name}, and has its disk open: end it first")
        self.storage = storage
        self.count(fault)

    def on_ended(self, process: Process) -> None:
        """A life is over."""
        assert process.ending is not None
        self.world.remove(process)
        self.note(f"ending {process.ending.value} {process.disk.operations}")
        if process.ending is Ending.POWER_CUT:
            self.world.network.switch_off(self.name)
            self.storage = self.storage.after_power_cut(self.world.stream(f"power cut {self.world.lives}"))
            self.boot_id = self._new_boot_id()

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
