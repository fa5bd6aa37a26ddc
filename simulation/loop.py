"""An asyncio event loop with virtual time, which runs one step at a time.

There is no selector and no thread: when nothing is ready, time jumps to the next timer. Callbacks that are ready at
the same instant run in the order in which they were scheduled. A world steps the loops of several machines, always the
one whose next event is earliest; a loop that runs alone steps itself. When nothing is ready and nothing is scheduled,
nothing can ever happen again, and `Deadlock` is raised instead of hanging.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import sys
import threading
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from math import inf
from typing import TYPE_CHECKING, Any

from simulation.clock import MachineClock

if TYPE_CHECKING:
    from simulation.connection import Connection
    from simulation.network import Host, SimulatedServer

# Timers that lie closer together than floating point can tell are of one instant.
RESOLUTION_S = 1e-9
# Timers that were cancelled stay where they are until there are this many, and as many as others.
CANCELLED_MAX = 100


class Deadlock(Exception):
    """Nothing is ready and nothing is scheduled, but the work is not done: some task waits for what cannot come."""

    def __init__(self, time: float) -> None:
        super().__init__(
            f"nothing is ready and nothing is scheduled at {time:.6f} s, yet the work is not done: "
            "some task waits for an event that no task will set"
        )


class _Timer(asyncio.TimerHandle):
    """A timer that keeps its place among those of the same instant."""

    __slots__ = ("_order",)
    _scheduled: bool
    _when: float

    def __init__(
        self,
        when: float,
        order: int,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._order = order

    def __lt__(self, other: Any) -> bool:
        return (self._when, self._order) < (other._when, other._order)


class SimulatorLoop(asyncio.BaseEventLoop):
    """A loop that waits for nothing."""

    # BaseEventLoop's own, which its type stubs leave out.
    _scheduled: list[_Timer]
    _ready: deque[asyncio.Handle]
    _check_closed: Callable[[], None]
    _thread_id: int | None
    _asyncgen_firstiter_hook: Callable[[Any], None]
    _asyncgen_finalizer_hook: Callable[[Any], None]

    def __init__(self, start: float = 0.0, clock: MachineClock | None = None) -> None:
        super().__init__()
        self.clock = clock or MachineClock()
        self._now = self.clock.local(start)
        self._timers = 0
        self._cancelled = 0
        self.host: Host | None = None
        """Its place in the network, if it has one."""
        self.unhandled: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.unhandled.append(context))

    def time(self) -> float:
        return self._now

    # Steps.

    def enter(self) -> None:
        """Be the running loop, whose steps come next."""
        self._thread_id = threading.get_ident()
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)

    def leave(self) -> None:
        """Run no more; nor does any other loop for now."""
        self._thread_id = None
        events._set_running_loop(None)
        sys.set_asyncgen_hooks(None, None)

    def next_event(self) -> float:
        """The time of the world at which there is something to run: any time at all, or never."""
        if self._ready:
            return -inf
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._forget(heapq.heappop(scheduled))
        if not scheduled:
            return inf
        when = scheduled[0]._when
        return self.clock.world(when) if self.clock.drifts else when

    def step(self, time: float) -> None:
        """Run everything that is due at a time of the world."""
        ready, scheduled = self._ready, self._scheduled
        now = self.clock.local(time) if self.clock.drifts else time
        if not ready and scheduled and scheduled[0]._when > now:
            now = scheduled[0]._when  # they differ by a rounding
        if now > self._now:
            self._now = now
        end = self._now + RESOLUTION_S
        while scheduled and scheduled[0]._when < end:
            timer = heapq.heappop(scheduled)
            if timer._cancelled:
                self._forget(timer)
            else:
                timer._scheduled = False
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _run_once(self) -> None:
        when = self.next_event()
        if when == inf:
            raise Deadlock(self._now)
        self.step(when)

    def _timer_handle_cancelled(self, handle: _Timer) -> None:
        if handle._scheduled:
            self._cancelled += 1
            if self._cancelled > CANCELLED_MAX and self._cancelled * 2 > len(self._scheduled):
                # In place: a step may be going through it.
                self._scheduled[:] = [timer for timer in self._scheduled if not timer._cancelled]
                heapq.heapify(self._scheduled)
                # This one is marked when this has returned.
                self._cancelled = 1

    def _forget(self, timer: _Timer) -> None:
        timer._scheduled = False
        self._cancelled -= 1

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_closed()
        self._timers += 1
        timer = _Timer(when, self._timers, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def abandon(self) -> None:
        """Drop every task where it stands, as the end of a process does. Their `finally` blocks run, against a dead
        runtime."""
        dropped: set[asyncio.Task[Any]] = set()
        with warnings.catch_warnings():
            # What a dying task still wants to wait for, no loop runs any more.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            # A `finally` block may start another task.
            while left := asyncio.all_tasks(self) - dropped:
                for task in left:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
                dropped |= left
        self._ready.clear()
        self._scheduled.clear()
        self.unhandled = []

    # What BaseEventLoop leaves to its heirs.

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError(
            f"{func!r} was handed to an executor inside the simulator: use the runtime's Offload, which is seeded here"
        )

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **options: Any
    ) -> SimulatedServer:
        return self._host().listen(protocol_factory, host or "127.0.0.1", port or 0)

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **options: Any
    ) -> tuple[Connection, Any]:
        return await self._host().connect(protocol_factory, host or "127.0.0.1", port)

    def _host(self) -> Host:
        if self.host is None:
            raise RuntimeError("this loop has no network: run the work in a process on a machine of a World")
        return self.host


def _close(coroutine: Any) -> None:
    """End a coroutine where it stands."""
    frame = coroutine.cr_frame
    # One that never began would leave those that it was given to wait for.
    given = list(frame.f_locals.values()) if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED else []
    # One that awaits in its `finally` blocks stands there then, and must be closed again.
    for _ in range(100):
        try:
            coroutine.close()
            break
        except RuntimeError:
            continue
        except BaseException:
            break  # the errors of a dying task have no reader
    for each in given:
        if inspect.iscoroutine(each):
            _close(each)
