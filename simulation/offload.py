"""Off the loop, in the simulator: the same loop, later.

A job runs whole at one instant of virtual time that the seed draws, and its result arrives at a later one. Between
the hand-over, the run and the answer the loop goes on, which is where the races are. Jobs of `run` overtake each
other; those of a serial executor never do.
"""

from __future__ import annotations

import asyncio
import pickle
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from headrace.runtime.disk import Disk, File
from headrace.runtime.offload import SerialDone, SerialExecutor
from simulation.device import Device
from simulation.faults import Crash
from simulation.loop import SimulatorLoop

T = TypeVar("T")


class SimulatedSerialExecutor:
    """Jobs one after the other."""

    def __init__(self, loop: SimulatorLoop, rng: random.Random, device: Device) -> None:
        self._loop = loop
        self._rng = rng
        self._device = device
        self._waiting: deque[tuple[Callable[[], None], SerialDone]] = deque()
        self._finished: deque[tuple[SerialDone, BaseException | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def submit(self, job: Callable[[], None], done: SerialDone) -> None:
        if self._closed:
            raise RuntimeError("a job was submitted to a serial executor that is closed")
        self._waiting.append((job, done))
        if self._timer is None:
            self._timer = self._loop.call_later(self._device.delay(self._rng), self._work)

    def write(self, file: File, position: int, data: bytes, done: SerialDone) -> None:
        self.submit(partial(file.write_durably, position, [data]), done)

    def _work(self) -> None:
        if self._closed:
            return
        if self._device.hangs:
            self._device.wait(self._loop, self._work)
            return
        self._run_one()
        # Results are handed over in order too, so a serial executor needs only one timer for both.
        self._loop.call_later(self._device.delay(self._rng) / 4, self._deliver)

    def _run_one(self) -> None:
        job, done = self._waiting.popleft()
        try:
            job()
        except Crash:
            raise
        except BaseException as error:
            self._finished.append((done, error))
        else:
            self._finished.append((done, None))

    def _deliver(self) -> None:
        if self._closed:
            return
        if self._device.hangs:
            self._device.wait(self._loop, self._deliver)
            return
        self._timer = self._loop.call_later(self._device.delay(self._rng), self._work) if self._waiting else None
        self._hand_over()

    def _hand_over(self) -> None:
        while self._finished:
            done, error = self._finished.popleft()
            done(error)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self._run_one()
        self._hand_over()


class SimulatedOffload:
    """Ways off the loop that lead back to it."""

    def __init__(self, loop: SimulatorLoop, rng: random.Random, disk: Disk, device: Device) -> None:
        self._loop = loop
        self._rng = rng
        self._disk = disk
        self._device = device
        self._executors: list[SimulatedSerialExecutor] = []

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._loop.call_later(self._device.delay(self._rng), self._execute, future, function, args)
        return future

    def work(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        # A worker is another process: what does not survive pickling must fail here too.
        function, args = pickle.loads(pickle.dumps((function, args)))
        delay = self._device.delay(self._rng) + self._rng.expovariate(1 / 0.01)
        self._loop.call_later(delay, self._execute, future, function, (self._disk, *args))
        return future

    def _execute(self, future: asyncio.Future[T], function: Callable[..., T], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        if self._device.hangs:
            self._device.wait(self._loop, self._execute, future, function, args)
            return
        result: T | None = None
        failed: BaseException | None = None
        try:
            result = function(*args)
        except Crash:
            raise
        except BaseException as error:
            failed = error
        self._loop.call_later(self._device.delay(self._rng), self._settle, future, result, failed)

    def _settle(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if self._device.hangs:
            self._device.wait(self._loop, self._settle, future, result, error)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def serial_executor(self, name: str) -> SerialExecutor:
        executor = SimulatedSerialExecutor(self._loop, self._rng, self._device)
        self._executors.append(executor)
        return executor

    def close(self) -> None:
        for executor in self._executors:
            executor.close()
