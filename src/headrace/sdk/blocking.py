"""The sync face of an application: its loop runs in a thread, and calls wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from headrace.sdk.app import App

Result = TypeVar("Result")


class Blocking:
    """`with app.blocking() as shop: shop.publish(...)`. Its handlers run meanwhile."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=app.name, daemon=True)

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        partition: int | None = None,
        delay: float = 0.0,
    ) -> None:
        """Send a message; returns when it is durable. Raises PublishFailed."""
        self._wait(self._app.publish(topic, payload, key=key, headers=headers, partition=partition, delay=delay))

    def flush(self) -> None:
        """Wait until all that was sent is out."""
        self._wait(self._app.flush())

    def __enter__(self) -> Blocking:
        self._thread.start()
        try:
            self._wait(self._app.start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._wait(self._app.stop())
        finally:
            self._end()

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
