"""An asyncio event loop with virtual time.

There is no selector and no thread: when nothing is ready, time jumps to the next timer. Callbacks that are ready at
the same instant run in the order in which they were scheduled. When nothing is ready and nothing is scheduled,
nothing can ever happen again, and the loop raises `Deadlock` instead of hanging.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import warnings
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.network import Connection, Network, SimulatedServer


# 2027-01-01T00:00:00Z. Any fixed day does; a real one makes traces readable.
DAY_ONE_MS = 1_798_761_600_000


class VirtualClock:
    """The calendar of a simulated machine: the loop's virtual time, counted from a fixed day."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return DAY_ONE_MS + int(self._loop.time() * 1000)


class Deadlock(Exception):
    """Nothing is ready and nothing is scheduled, but the work is not done: some task waits for what cannot come."""


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


class _Selector:
    """What BaseEventLoop asks to wait: waiting is moving the clock."""

    def __init__(self, loop: SimulatorLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock(
                f"nothing is ready and nothing is scheduled at {self._loop.time():.6f} s, yet the work is not done: "
                "some task waits for an event that no task will set"
            )
        if timeout > 0:
            self._loop.jump()
        return []

    def close(self) -> None:
        pass


class SimulatorLoop(asyncio.BaseEventLoop):
    """A loop that waits for nothing."""

    # BaseEventLoop's own, which its type stubs leave out.
    _scheduled: list[_Timer]
    _ready: deque[asyncio.Handle]
    _check_closed: Callable[[], None]

    def __init__(self, start: float = 0.0, network: Network | None = None) -> None:
        super().__init__()
        self._now = start
        self._timers = 0
        self._selector = _Selector(self)
        # BaseEventLoop runs the timers that lie strictly before now plus the resolution: without one, none is ever due.
        self._clock_resolution = 1e-9
        self.network = network
        self.unhandled: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.unhandled.append(context))

    def time(self) -> float:
        return self._now

    def jump(self) -> None:
        """Move the clock to the next timer."""
        timer = self._scheduled[0]
        if timer._when > self._now:
            self._now = timer._when

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

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError(
            f"{func!r} was handed to an executor inside the simulator: use the runtime's Offload, which is seeded here"
        )

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **options: Any
    ) -> SimulatedServer:
        return self._network().listen(protocol_factory, host or "127.0.0.1", port or 0)

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **options: Any
    ) -> tuple[Connection, Any]:
        return await self._network().connect(self, protocol_factory, host or "127.0.0.1", port)

    def _network(self) -> Network:
        if self.network is None:
            raise RuntimeError("this simulated machine has no network: give its World one")
        return self.network


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
