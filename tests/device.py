"""A device that a test holds, fails or fills, under a broker that is real in everything else.

The native log runs on the simulator's disk, and its flushes pass through a serial executor that a test controls; loop,
sockets and clock are the machine's. A device outlives its broker: the next one starts on what the last has left.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.errors import StorageFailed
from headrace.format import records
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from headrace.runtime.clock import SystemClock
from headrace.runtime.offload import SerialDone
from headrace.runtime.random import SystemRandom
from simulation.device import Device as SimulatedDevice
from simulation.disk import SimulatedDisk, SimulatedFile
from simulation.faults import Plan, kind_of
from simulation.offload import SimulatedOffload, SimulatedSerialExecutor
from simulation.storage import Storage

T = TypeVar("T")


class Device:
    """What a data directory lies on."""

    def __init__(self) -> None:
        self.storage = Storage()
        self.waiting: deque[Callable[[], None]] = deque()
        """Flushes that are held, the oldest first."""
        self.failing = frozenset[str]()
        self.broken: tuple[str, int] | None = None
        self.is_holding = False
        self.is_holding_loads = False

    def runtime(self) -> Runtime:
        """A runtime for one life of a broker."""
        disk = Disk(self)
        offload = Offload(self, asyncio.get_running_loop(), disk)
        return Runtime(SystemClock(), disk, SystemRandom(), offload)

    def hold(self) -> None:
        """Hold every flush from now on."""
        self.is_holding = True

    def hold_loads(self) -> None:
        """Hold everything else, too, that goes off the loop, such as the load of a partition."""
        self.is_holding = self.is_holding_loads = True

    def release(self, count: int | None = None) -> None:
        """Let so many flushes go; None: all, and those to come."""
        self.is_holding = count is not None
        self.is_holding_loads = self.is_holding_loads and self.is_holding
        for _ in range(len(self.waiting) if count is None else count):
            self.waiting.popleft()()

    @contextmanager
    def fail(self, *kinds: str) -> Iterator[None]:
        """Every flush of such files (all of them: the journal's) answers EIO, and leaves what it may have written."""
        self.failing = frozenset(kinds or ("journal",))
        try:
            yield
        finally:
            self.failing = frozenset()

    @contextmanager
    def fail_at(self, path: str, error: int = errno.EIO) -> Iterator[None]:
        """Every use of a file whose path begins so answers with an error."""
        self.broken = (path, error)
        try:
            yield
        finally:
            self.broken = None

    def check(self, path: str) -> None:
        if self.broken is not None and path.startswith(self.broken[0]):
            raise OSError(self.broken[1], os.strerror(self.broken[1]), path)

    @asynccontextmanager
    async def full(self, broker: Broker) -> AsyncIterator[None]:
        """There is no room, and the broker has noticed; at the end there is, and it has noticed that."""
        log = broker.log
        assert isinstance(log, NativeLog)
        filler = await broker.topics.create("filler", 1, {"durability": "async"})
        await filler.partitions[0].load()
        self.storage.capacity = self.storage.used
        try:
            while not log.full:
                filler.partitions[0].append(records.build([(0, None, bytes(100_000), [])]))
        except StorageFailed:
            pass
        try:
            yield
        finally:
            self.storage.capacity = None
            await until(lambda: not log.full)


class Disk(SimulatedDisk):
    """The simulator's disk, which fails where the test wants it."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.storage, random.Random(0), plan=Plan())
        self._device = device

    def open(self, path: str, *, write: bool = False, create: bool = False) -> SimulatedFile:
        self._device.check(path)
        opened = super().open(path, write=write, create=create)
        return File(self._device, self, path, opened._node, write)

    def sync_fails(self, operation: str, path: str) -> bool:
        return kind_of(path) in self._device.failing


class File(SimulatedFile):
    """A file of that disk."""

    __slots__ = ("_device",)

    def __init__(self, device: Device, *given: Any) -> None:
        super().__init__(*given)
        self._device = device

    def _check_open(self, to_write: bool = False) -> None:
        self._device.check(self.path)
        super()._check_open(to_write)


class Offload(SimulatedOffload):
    """The simulator's, whose jobs can be held."""

    def __init__(self, device: Device, loop: asyncio.AbstractEventLoop, disk: Disk) -> None:
        super().__init__(loop, random.Random(0), disk, SimulatedDevice(Counter()))
        self._held_by = device

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        if not self._held_by.is_holding_loads:
            return super().run(function, *args)
        future: asyncio.Future[T] = self._loop.create_future()
        self._held_by.waiting.append(lambda: self._execute(future, function, args))
        return future

    def serial_executor(self, name: str) -> HeldExecutor:
        executor = HeldExecutor(self._held_by, self._loop)
        self._executors.append(executor)
        return executor


class HeldExecutor(SimulatedSerialExecutor):
    """Jobs one after the other, unless they are held."""

    def __init__(self, device: Device, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, random.Random(0), SimulatedDevice(Counter()))
        self._held_by = device

    def submit(self, job: Callable[[], None], done: SerialDone) -> None:
        if self._held_by.is_holding:
            self._held_by.waiting.append(lambda: SimulatedSerialExecutor.submit(self, job, done))
        else:
            super().submit(job, done)
