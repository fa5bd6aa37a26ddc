"""A machine that can be switched off: its disk, its clock, and the lives of the process on it.

`World.run` runs a coroutine on a fresh loop and runtime until it is done, or until a crash that the plan of this life
brings. The disk then holds what survived, virtual time goes on, and the next `run` is the next start of the process.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum
from hashlib import blake2b
from typing import Any

from headrace.runtime import Runtime
from simulation.disk import SimulatedDisk
from simulation.faults import Crash, CrashPoints, Killed, Plan, PowerCut
from simulation.loop import SimulatorLoop, VirtualClock
from simulation.network import Network
from simulation.offload import SimulatedOffload
from simulation.storage import FileNode, Storage


class Ending(Enum):
    """How a life ended."""

    DONE = "done"
    KILLED = "killed"
    POWER_CUT = "power cut"


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


class SeededRandom:
    """The `Random` of a simulated runtime."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)


class World:
    """One machine, from one seed."""

    def __init__(self, seed: int, trace_lines: int = 200) -> None:
        self.seed = seed
        self.time = 0.0
        self.lives = 0
        self.storage = Storage()
        self.points = CrashPoints()
        self.trace = Trace(trace_lines)
        self.crash_point: str | None = None
        """Where the last life ended, if not on its own."""
        self.disk = self._new_disk(Plan())
        self.loop = SimulatorLoop()
        self.loop.close()

    def stream(self, purpose: str) -> random.Random:
        """Random numbers for one purpose, the same in every run of this seed and on every machine. Streams are apart so
        that one more draw in one place (a network delay, say) does not change what happens in another."""
        return random.Random(f"headrace/{self.seed}/{purpose}")

    def note(self, event: str) -> None:
        """Add to the trace."""
        self.trace.add(self.loop.time(), event)

    @property
    def alive(self) -> bool:
        """Whether the process of this life still runs: what a dying task reports does not count."""
        return self.disk.crash is None

    def _new_disk(self, plan: Plan) -> SimulatedDisk:
        rng = self.stream(f"disk {self.lives}")
        return SimulatedDisk(self.storage, rng, plan=plan, points=self.points, trace=self.note)

    def run(self, main: Callable[[Runtime], Coroutine[Any, Any, None]], plan: Plan | None = None) -> Ending:
        """One life of the process."""
        plan = plan or Plan()
        self.lives += 1
        self.crash_point = None
        network = Network(self.stream(f"network {self.lives}"), self.note)
        loop = self.loop = SimulatorLoop(self.time, network)
        disk = self.disk = self._new_disk(plan)
        runtime = Runtime(
            VirtualClock(loop),
            disk,
            SeededRandom(self.stream(f"identifiers {self.lives}")),
            SimulatedOffload(loop, self.stream(f"offload {self.lives}"), disk),
        )
        if plan.crash_after is not None:
            loop.call_later(plan.crash_after, disk.die, Killed("timer") if plan.kill else PowerCut("timer"))
        self.note(f"life {self.lives}")
        try:
            loop.run_until_complete(main(runtime))
            ending = Ending.DONE
            if loop.unhandled:
                raise UnhandledError(loop.unhandled[0])
        except Exception:
            # An error that no task awaited came first, and is most often the cause.
            if loop.unhandled:
                raise UnhandledError(loop.unhandled[0]) from None
            raise
        except Crash as crash:
            self.crash_point = crash.point
            ending = Ending.KILLED if isinstance(crash, Killed) else Ending.POWER_CUT
        finally:
            # From here on nothing that is left of this life may touch the storage.
            disk.crash = disk.crash or Killed("end")
            loop.abandon()
            loop.close()
            self.time = loop.time() + 1.0
        self.trace.add(self.time, f"ending {ending.value} {disk.operations}")
        if ending is Ending.POWER_CUT:
            self.storage = self.storage.after_power_cut(self.stream(f"power cut {self.lives}"))
        return ending

    def flip_bit(self, wanted: Callable[[str], bool], rng: random.Random) -> tuple[str, int] | None:
        """Flip one bit of a file between two lives; which file, and at which position."""
        files = [(path, node) for path, node in self.storage.files() if wanted(path) and node.volatile]
        if not files:
            return None
        path, node = rng.choice(files)
        position = rng.randrange(len(node.volatile))
        flip_in(node, position, 1 << rng.randrange(8))
        self.trace.add(self.time, f"flip {path} {position}")
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
