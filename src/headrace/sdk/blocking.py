"""The sync face of an application: its loop runs in a thread, and calls wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.sdk.message import Receipt
from headrace.sdk.values import Duration, Headers, Key

if TYPE_CHECKING:
    from headrace.sdk.app import App

Result = TypeVar("Result")


class LoopThread:
    """A loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def begin(self, entering: Coroutine[Any, Any, Any]) -> None:
        """Start the thread and do this there first; if it fails, the thread is gone again."""
        self._thread.start()
        try:
            self.wait(entering)
        except BaseException:
            self._end()
            raise

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do something there; what it gives or raises."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def finish(self, leaving: Coroutine[Any, Any, Any]) -> None:
        """Do this there last, and end the thread."""
        try:
            self.wait(leaving)
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """`with app.blocking() as shop: shop.publish(...)`. Its handlers run meanwhile."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._thread = LoopThread(app.name)

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: Key | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        delay: Duration = 0.0,
    ) -> Receipt:
        """Send a message; returns when it is durable, with what is known of it. Raises PublishFailed."""
        sending = self._app.publish(topic, payload, key=key, headers=headers, partition=partition, delay=delay)
        return self._thread.wait(sending)

    def cancel(self, receipt: Receipt) -> bool:
        """Cancel a delayed message; false where it is not waiting any more. Raises Unsuited."""
        return self._thread.wait(self._app.cancel(receipt))

    def publish_batch(
        self,
        topic: str,
        payloads: Sequence[Any],
        *,
        keys: Sequence[Key | None] | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Send messages together; returns when all are durable. Raises PublishFailed."""
        self._thread.wait(self._app.publish_batch(topic, payloads, keys=keys, headers=headers))

    def flush(self) -> None:
        """Wait until all that was sent is out."""
        self._thread.wait(self._app.flush())

    def __enter__(self) -> Blocking:
        self._thread.begin(self._app.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.finish(self._app.stop())
