"""Running things off the loop.

Three ways, by what they cost: `run` for short blocking work (a cold read, a directory sync) on a small thread pool;
`serial_executor` for the one stream of blocking work that every acknowledged message waits on (the journal), a
dedicated thread with an eventfd each way, about half the hand-over time of an executor, and for plain durable writes
not even in need of the interpreter (`writer.py`); `work` for computation that would hold the interpreter (compaction),
in a separate process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from headrace.runtime import writer
from headrace.runtime.disk import File, SystemFile

T = TypeVar("T")

# What a serial executor passes to the callback: None, or the error that the job raised.
SerialDone = Callable[[BaseException | None], None]


class SerialExecutor(Protocol):
    """One thread that does jobs in the order in which they were submitted."""

    def submit(self, job: Callable[[], None], done: SerialDone) -> None:
        """Run `job` off the loop, then `done` on the loop."""
        ...

    def write(self, file: File, position: int, data: bytes, done: SerialDone) -> None:
        """The same for `file.write_durably(position, [data])`."""
        ...

    def close(self) -> None:
        """Finish what was submitted and stop. Blocks."""
        ...


class Offload(Protocol):
    """Ways off the loop."""

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run a function that blocks on the operating system."""
        ...

    def serial_executor(self, name: str) -> SerialExecutor:
        """Open a serial executor."""
        ...

    def work(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run a function that computes. Its first parameter is a `Disk`, which the worker opens; the function (a
        module's top-level one), its other arguments and its result are pickled. Cancelling the future ends the
        worker."""
        ...

    def close(self) -> None: ...


# Which thread this is: the loop's own, or one that the loop handed work to.
thread_id = threading.get_ident


class ThreadSerialExecutor:
    """A serial executor on a dedicated thread."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[tuple[Callable[[], None], SerialDone] | None] = deque()
        self._results: deque[tuple[SerialDone, BaseException | None]] = deque()
        self._wake_thread = os.eventfd(0, os.EFD_CLOEXEC)
        self._wake_loop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Jobs that were submitted and not reported yet, how many of these are done, and the writer's own callback.
        self._under_way = 0
        self._finished = 0
        self._written: SerialDone | None = None
        self._writer = writer.Writer(self._wake_thread, self._wake_loop) if writer.COMPILED else None
        loop.add_reader(self._wake_loop, self._deliver)
        self._thread = threading.Thread(target=self._serve, name=f"headrace-{name}", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None], done: SerialDone) -> None:
        if self._wake_thread < 0:
            raise RuntimeError("a job was submitted to a serial executor that is closed")
        self._under_way += 1
        self._jobs.append((job, done))
        os.eventfd_write(self._wake_thread, 1)

    def write(self, file: File, position: int, data: bytes, done: SerialDone) -> None:
        # The writer knows one write and no order, so it gets only what has nothing before it; and only descriptors, so
        # a file of any other kind writes itself.
        if self._writer is None or self._under_way or not isinstance(file, SystemFile):
            self.submit(partial(file.write_durably, position, [data]), done)
            return
        self._under_way = 1
        self._written = done
        self._writer.submit(file.fileno(), position, data)

    def _serve(self) -> None:
        jobs, results, wake_loop = self._jobs, self._results, self._wake_loop
        wait = partial(os.eventfd_read, self._wake_thread) if self._writer is None else self._writer.serve
        while True:
            # No more than were counted, here and on the loop: whatever else is there has a wake-up of its own under
            # way, which must not be taken for a write's.
            for _ in range(wait()):
                entry = jobs.popleft()
                if entry is None:
                    return
                job, done = entry
                try:
                    job()
                except BaseException as error:
                    results.append((done, error))
                else:
                    results.append((done, None))
                os.eventfd_write(wake_loop, 1)

    def _deliver(self) -> None:
        with suppress(BlockingIOError):
            self._finished += os.eventfd_read(self._wake_loop)
        while self._finished:
            self._finished -= 1
            self._under_way -= 1
            if self._written is not None:
                assert self._writer is not None
                done, self._written = self._written, None
                error: BaseException | None = self._writer.result()
            else:
                done, error = self._results.popleft()
            try:
                done(error)
            except Exception as raised:
                # What waits behind it has no wake-up of its own any more.
                self._loop.call_exception_handler(
                    {"message": "a callback of a serial executor has raised", "exception": raised}
                )

    def close(self) -> None:
        if self._wake_thread < 0:
            return
        self._jobs.append(None)
        os.eventfd_write(self._wake_thread, 1)
        self._thread.join()
        self._loop.remove_reader(self._wake_loop)
        self._deliver()
        os.close(self._wake_thread)
        os.close(self._wake_loop)
        self._wake_thread = -1
        # It knows these descriptors by their numbers, which will soon be another file's.
        self._writer = None


class SystemOffload:
    """Threads and worker processes of the operating system."""

    def __init__(self, loop: asyncio.AbstractEventLoop, root: str) -> None:
        self._loop = loop
        self._root = root
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="headrace-offload")
        self._executors: list[ThreadSerialExecutor] = []

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._pool, function, *args)

    def serial_executor(self, name: str) -> SerialExecutor:
        executor = ThreadSerialExecutor(name, self._loop)
        self._executors.append(executor)
        return executor

    def work(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        # Imported here: a broker that never compacts never pays for it.
        from headrace.worker import Call

        call = Call(self._root, function, args)
        future: asyncio.Future[T] = self._loop.run_in_executor(self._pool, call.wait)
        future.add_done_callback(lambda done: call.give_up() if done.cancelled() else None)
        return future

    def close(self) -> None:
        for executor in self._executors:
            executor.close()
        self._pool.shutdown(wait=True)
