"""What an application has sent, by its own count: the first of the numbers that `headrace pipeline audit` compares.

A log cannot say what never reached it. So the producer counts, by topic and minute, what the broker has confirmed and
what it has not, and writes that to a topic of its own. Each message carries its time, by which it is counted, and an id
that names the instance, so that the audit compares instance by instance, and what others send hides nothing.

A report holds what came since the one before it, and has the next number. One that could not be written is written
again as it was: a reader counts each number once, and sees which one is missing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from headrace.sdk.message import Outgoing

log = structlog.get_logger("headrace.sdk")

TOPIC = "headrace-audit"
ID = "headrace-id"
"""The header with a message's id: the instance, a dash, a number."""
TIME = "headrace-time"
"""The header with a message's time in milliseconds: when it was sent, or when it is due if it was delayed."""

MINUTE_MS = 60_000
EVERY_SECONDS = 5.0
# An instance without messages reports this often: one that is silent for longer is gone.
WITHIN_SECONDS = 30.0
# How often, and how far apart, the last report is tried.
LAST_TRIES = 3
LAST_TRY_SECONDS = 1.0

Send = Callable[[Outgoing], Awaitable[None]]


@dataclass(slots=True)
class Count:
    """Messages of one topic and minute."""

    sent: int = 0
    failed: int = 0


class Audit:
    """One instance of an application, counting. Its reports begin with the first message."""

    def __init__(self, app: str, send: Send, *, every: float = EVERY_SECONDS, within: float = WITHIN_SECONDS) -> None:
        self.instance = f"{app}-{os.urandom(6).hex()}"
        self._app = app
        self._send = send
        self._every = every
        self._within = within
        self._numbered = 0
        self._sequence = 0
        self._counts: dict[tuple[str, int], Count] = {}
        # The report that could not be written yet.
        self._unwritten: bytes | None = None
        self._written_at = 0.0
        self._ended = False
        self._stopping = asyncio.Event()
        self._reporting: asyncio.Task[None] | None = None

    def stamp(self, message: Outgoing) -> Outgoing:
        """The message with its id and its time."""
        self._numbered += 1
        moment = time.time_ns() // 1_000_000 + round(message.delay * 1_000)
        # A message that is passed on with the headers that it came with is a new one all the same.
        own = {ID: f"{self.instance}-{self._numbered}".encode(), TIME: b"%d" % moment}
        return msgspec.structs.replace(message, headers={**message.headers, **own})

    def watch(self, message: Outgoing, done: asyncio.Future[Any]) -> None:
        """Count a message that was buffered, once it is sent or has failed."""
        place = (message.topic, int(message.headers[TIME]) // MINUTE_MS * MINUTE_MS)
        done.add_done_callback(lambda done: self._note(place, done))
        if self._reporting is None:
            self._written_at = time.monotonic()
            self._reporting = asyncio.get_running_loop().create_task(self._report_from_time_to_time())

    async def stop(self) -> None:
        """Write the last report. Everything that was sent must be out."""
        if self._reporting is None:
            return
        self._stopping.set()
        await self._reporting
        for attempt in range(LAST_TRIES):
            if attempt:
                await asyncio.sleep(LAST_TRY_SECONDS)
            # First what could not be written before, which may be the last one already.
            if self._unwritten is not None and not await self._write():
                continue
            if self._ended or await self._write(last=True):
                return
        log.warning("the last report for the audit could not be written", app=self._app, instance=self.instance)

    def _note(self, place: tuple[str, int], done: asyncio.Future[Any]) -> None:
        count = self._counts.setdefault(place, Count())
        if done.cancelled() or done.exception() is not None:
            count.failed += 1
        else:
            count.sent += 1

    async def _report_from_time_to_time(self) -> None:
        while not self._stopping.is_set():
            try:
                await asyncio.wait_for(self._stopping.wait(), self._every)
            except TimeoutError:
                await self._write()

    async def _write(self, *, last: bool = False) -> bool:
        """Write what there is to report; whether nothing is left."""
        report = self._unwritten
        if report is None:
            due = time.monotonic() - self._written_at >= self._within
            if not self._counts and not due and not last:
                return True
            counts, self._counts = self._counts, {}
            report = msgspec.json.encode(self._report(counts, last))
            self._sequence += 1
            self._ended = last
        try:
            await self._send(Outgoing(TOPIC, report, self.instance.encode()))
        except Exception as error:
            self._unwritten = report
            log.warning("a report for the audit could not be written", app=self._app, error=str(error))
            return False
        self._unwritten = None
        self._written_at = time.monotonic()
        return True

    def _report(self, counts: dict[tuple[str, int], Count], last: bool) -> dict[str, Any]:
        return {
            "instance": self.instance,
            "app": self._app,
            "sequence": self._sequence,
            "t": time.time_ns() // 1_000_000,
            "within": self._within,
            "ids": True,
            "last": last,
            "counts": [
                {"topic": topic, "minute": minute, "sent": count.sent, "failed": count.failed}
                for (topic, minute), count in sorted(counts.items())
            ],
        }
