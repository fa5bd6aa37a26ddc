"""Sync facades: an application, or a harness, whose loop runs in a thread while the caller waits for each call.

A facade lists the coroutine methods that it offers. Their signatures, and their documentation, are those of the target.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from headrace.sdk.app import App

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Target = TypeVar("Target", bound=AbstractAsyncContextManager[Any])


class Facade(Generic[Target]):
    """Runs `target` on a loop in a thread of its own, from `with` until its end."""

    def __init__(self, target: Target, thread_name: str) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=thread_name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._wait(self._target.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._wait(self._target.__aexit__(None, None, None))
        finally:
            self._end()

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def blocking(
    method: Callable[Concatenate[Target, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Facade[Target], Parameters], Result]:
    """A method of a facade that waits for a coroutine method of its target."""

    @wraps(method)
    def call(facade: Facade[Target], /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return facade._wait(method(facade._target, *args, **kwargs))

    return call


class Blocking(Facade[App]):
    """`with app.blocking() as shop: shop.publish(...)`. Its handlers run meanwhile."""

    publish = blocking(App.publish)
    publish_batch = blocking(App.publish_batch)
    cancel = blocking(App.cancel)
    flush = blocking(App.flush)
