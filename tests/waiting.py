"""Waiting for what nothing announces: one deadline, and a failure that says what did not come.

`await until(condition)` turns the loop that the test runs on; `wait_until(condition)` sleeps, for what other threads
and processes do. Both return what the condition returned when it was true. A test that can await an event awaits that.
"""

from __future__ import annotations

import asyncio
import inspect
import linecache
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

Found = TypeVar("Found")
What = str | Callable[[], object]

SECONDS = 40.0
"""No measure of anything: a busy machine must not fail a test, and a test that passes never waits for it."""


async def until(
    condition: Callable[[], Any], what: What = "", *, seconds: float = SECONDS, pause: float = 0.001
) -> Any:
    """Turn the loop until the condition holds, which may be a coroutine function.

    `what` says what is waited for, or is a function that says what there is instead. The source of the condition is
    reported in any case.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not (found := await _value_of(condition)):
        assert loop.time() < end, _describe(condition, what, seconds)
        await asyncio.sleep(pause)
    return found


async def _value_of(condition: Callable[[], Any]) -> Any:
    found = condition()
    return await found if isinstance(found, Awaitable) else found


def wait_until(
    condition: Callable[[], Found],
    what: What = "",
    *,
    seconds: float = SECONDS,
    turn: Callable[[], object] = lambda: time.sleep(0.02),
) -> Found:
    """Wait until the condition holds; `turn` does a little of the test's own work in between."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, _describe(condition, what, seconds)
        turn()
    return found


def _describe(condition: Callable[[], object], what: What, seconds: float) -> str:
    parts = [f"still not after {seconds} s"]
    code = getattr(inspect.unwrap(condition), "__code__", None)
    if code is None:
        parts.append(repr(condition))
    else:
        line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
        parts.append(f"{line} ({code.co_filename}:{code.co_firstlineno})")
    if what:
        parts.append(str(what() if callable(what) else what))
    return ": ".join(parts)
