"""A consumer of Kafka's own library in a thread of its own, because the library blocks. One that breaks is replaced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaException

log = structlog.get_logger("headrace.sdk")

POLL_SECONDS = 0.1
# The partitions of an instance that was killed wait so long for another. Threads of the library keep an instance alive
# however long handlers take, so it need not be long.
SESSION_SECONDS = 10
# A member learns by a heartbeat that others have come or gone. All have to, before partitions are assigned.
HEARTBEAT_MS = 1_000


class ConsumerThread:
    again_seconds = 1.0
    """Before a consumer that broke is replaced."""

    def __init__(self, settings: dict[str, Any], topic: str, name: str) -> None:
        self._settings = {
            **settings,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": SESSION_SECONDS * 1_000,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._closing = threading.Event()
        self._consumer = Consumer(self._settings)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    async def close(self) -> None:
        """Leave the group, with what is settled committed."""
        self._closing.set()
        await asyncio.to_thread(self._thread.join)

    # --- the thread ---

    def _run(self) -> None:
        while True:
            try:
                self._consume()
            except (KafkaException, RuntimeError) as error:
                log.error("a consumer broke, and is replaced", topic=self._topic, error=str(error))
            finally:
                self._leave()
                self._consumer.close()
            # A closed loop will never close this, and another consumer should have the partitions.
            if self._closing.wait(self.again_seconds) or self._loop.is_closed():
                return
            self._recover()
            self._consumer = Consumer(self._settings)

    def _consume(self) -> None:
        """Read until this is closed; raises what breaks the consumer."""
        raise NotImplementedError

    def _leave(self) -> None:
        """The consumer is about to be closed."""

    def _recover(self) -> None:
        """Another consumer is about to begin."""

    def _messages(self, found: Sequence[Any]) -> list[Any]:
        """The messages of what the library gave; its errors are logged."""
        good = [each for each in found if each.error() is None]
        if len(good) < len(found):
            errors = [str(each.error()) for each in found if each.error() is not None]
            log.warning("a consumer reports errors", topic=self._topic, errors=errors)
        return good
