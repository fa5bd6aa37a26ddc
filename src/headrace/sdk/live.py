"""An application that is seen from outside, and set from there while it runs.

At the start it reads the registry, writes its registration if that has changed, and applies the settings before its
first message comes. From then on one task follows the registry with a long poll and applies what changes; another
writes a heartbeat of this instance, with the offset up to which settings are applied. Neither touches the consumers'
connections or their group: a change is never a rebalance.

The application does not depend on it. Where the registry cannot be read it works by what it knew last, and tries again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import structlog

from headrace.client import Client, ClientError
from headrace.sdk.registry import (
    APP,
    HEARTBEAT_SECONDS,
    INSTANCE,
    LIVE,
    SENDS,
    Instance,
    Key,
    Registration,
    Registry,
    SendEntry,
    SubscriptionEntry,
    TopicEntry,
)
from headrace.sdk.runner import SubscriptionRunner
from headrace.sdk.scenario import Tuning
from headrace.sdk.settings import LOG_LEVEL, LOG_SAMPLE, WHOLE, BadSetting, Effective, Value, check, effective
from headrace.version import VERSION

if TYPE_CHECKING:
    from headrace.sdk.app import App
    from headrace.sdk.declarations import Subscription, TopicPlan
    from headrace.sdk.handler import Handler
    from headrace.sdk.logs import Logs

log = structlog.get_logger("headrace.sdk")

# A start waits so long for the registry before it goes on without.
START_SECONDS = 10.0
STOP_SECONDS = 3.0
BACKOFF_FIRST, BACKOFF_MAX = 0.2, 5.0
# Before a failed change of a queue's retries is tried again.
AGAIN_SECONDS = 1.0
# An application that sends to ever new topics is not worth a record for each.
SENDS_MAX = 100


class Live:
    """One instance's part in the registry."""

    def __init__(self, registration: Registration, client: Client, logs: Logs) -> None:
        self.id = os.urandom(6).hex()
        self._registration = registration
        self._app = registration.app
        self._logs = logs
        self._client = client
        self._registry = Registry(client)
        self._running: Sequence[tuple[SubscriptionRunner, Tuning]] = ()
        self._started_ms = time.time_ns() // 1_000_000
        # By subscription and setting: what holds, and what does not with the reason and the offset of its record.
        self._values: dict[tuple[str, str], Value] = {}
        self._refused: dict[tuple[str, str], tuple[int, str]] = {}
        # What could not be set in the system, and why.
        self._unset: dict[str, str] = {}
        self._read_up_to = self._applied = 0
        self._sent: set[str] = set()
        self._due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._joined = False

    # --- its life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read what was set, and register. Goes on without where that fails."""
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._join()
        except (ClientError, TimeoutError) as error:
            self._log_unreadable(error)

    def begin(self, running: Sequence[tuple[SubscriptionRunner, Tuning]]) -> None:
        """The subscriptions run, each with the values of its code: follow what is set for them."""
        self._running = running
        loop = asyncio.get_running_loop()
        self._apply()
        self._tasks = [loop.create_task(self._follow()), loop.create_task(self._report())]

    async def stop(self) -> None:
        """Stop following the registry."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Take this instance out of the registry."""
        await self.stop()
        # Should it start again, the code is asked anew.
        before, self._values = self._values, {}
        self._set_logs(before)
        try:
            if self._joined:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._registry.write({self._key: None})
        except (ClientError, TimeoutError) as error:
            log.debug("the stop could not be registered", app=self._app, error=str(error))
        finally:
            await self._registry.close()
            await self._client.close()

    def effective(self, subscription: str, code: Tuning) -> Effective:
        """How a subscription is to be served."""
        merged = {name: value for (scope, name), value in self._values.items() if not scope}
        merged |= {name: value for (scope, name), value in self._values.items() if scope == subscription}
        return effective(code, merged)

    def sends(self, topic: str) -> None:
        """The application sends to a topic."""
        if topic not in self._sent and len(self._sent) < SENDS_MAX:
            self._sent.add(topic)
            self._due.set()

    @property
    def _key(self) -> Key:
        return INSTANCE, self._app, self.id

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Read everything, and write what is missing of this application."""
        await self._registry.open()
        directory = self._registry.directory
        values: dict[Key, msgspec.Struct | None] = {}
        if not _same(directory.apps.get(self._app), self._registration):
            values[APP, self._app] = self._registration
        now_ms = time.time_ns() // 1_000_000
        # Instances that were killed are still registered.
        lost = [each for each in directory.instances.get(self._app, {}).values() if not each.alive(now_ms)]
        values |= {(INSTANCE, self._app, each.id): None for each in lost}
        if values:
            await self._registry.write(values)
        self._joined = True
        self._apply()

    async def _follow(self) -> None:
        delay = BACKOFF_FIRST
        while True:
            try:
                if not self._joined:
                    await self._join()
                    log.info("the registry is followed again", app=self._app)
                    self._due.set()
                delay = BACKOFF_FIRST
                while True:
                    keys = await self._registry.next()
                    if any(key[:2] == (LIVE, self._app) for key in keys):
                        self._apply()
            except Exception as error:
                # Whatever the error is, the application and this task go on.
                if self._joined:
                    self._log_unreadable(error)
                self._joined = False
                await asyncio.sleep(delay)
                delay = min(2 * delay, BACKOFF_MAX)

    def _log_unreadable(self, error: BaseException) -> None:
        log.warning(
            "the registry cannot be read: settings stay as they are until it can",
            app=self._app,
            error=str(error) or type(error).__name__,
        )

    # --- applying ----------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        """Apply the settings to this instance."""
        before = self._values
        self._values = self._understood()
        self._set_logs(before)
        for running, code in self._running:
            wanted = self.effective(running.name, code)
            if (running.tuning, running.paused) != (wanted.tuning, wanted.paused):
                running.change(wanted.tuning, paused=wanted.paused)
        if before != self._values:
            settings = {f"{scope or '*'} {name}": value for (scope, name), value in self._values.items()}
            log.info("settings were applied", app=self._app, settings=settings)
        self._read_up_to = self._registry.position
        self._due.set()

    def _set_logs(self, before: Mapping[tuple[str, str], Value]) -> None:
        """Only what has changed: the code may have set it too."""
        for name, attribute in ((LOG_LEVEL, "level"), (LOG_SAMPLE, "sample")):
            place = ("", name)
            if before.get(place) != self._values.get(place):
                setattr(self._logs, attribute, self._values.get(place, self._registration.settings[name]))

    def _understood(self) -> dict[tuple[str, str], Value]:
        """The values that were set; of what is not understood, those that held before."""
        known = {each.name for each in self._registration.subscriptions}
        values: dict[tuple[str, str], Value] = {}
        refused: dict[tuple[str, str], tuple[int, str]] = {}
        for place, setting in self._registry.directory.settings.get(self._app, {}).items():
            scope, name = place
            if scope and scope not in known:
                continue  # of an instance with other code
            try:
                if scope and name in WHOLE:
                    raise BadSetting(f"{name} is set for the application, and not for a subscription")
                values[place] = check(name, setting.value)
            except BadSetting as error:
                refused[place] = (setting.offset, str(error))
                if self._refused.get(place) != refused[place]:
                    log.warning(
                        "a setting is not understood, the old value stays",
                        app=self._app,
                        subscription=scope,
                        setting=name,
                        by=setting.by,
                        error=str(error),
                    )
                if place in self._values:
                    values[place] = self._values[place]
        self._refused = refused
        return values

    # --- reporting ----------------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        while True:
            self._due.clear()
            read_up_to = self._read_up_to
            await self._set_retries()
            if not self._unset:
                self._applied = read_up_to
            if self._joined:
                await self._write()
            wait = HEARTBEAT_SECONDS if not self._unset else AGAIN_SECONDS
            try:
                async with asyncio.timeout(wait):
                    await self._due.wait()
            except TimeoutError:
                pass

    async def _set_retries(self) -> None:
        """A queue retries by settings of its own."""
        unset: dict[str, str] = {}
        for running, _ in self._running:
            try:
                await running.match_retries()
            except Exception as error:
                what = f"{running.name} retries"
                unset[what] = str(error)
                if what not in self._unset:
                    log.warning("other retries cannot be set yet", subscription=running.name, error=str(error))
        self._unset = unset

    async def _write(self) -> None:
        refused = {f"{scope or '*'} {name}": why for (scope, name), (_, why) in self._refused.items()} | self._unset
        me = Instance(self._app, self.id, socket.gethostname(), os.getpid(), self._started_ms, self._applied, refused)
        values: dict[Key, msgspec.Struct | None] = {self._key: me}
        known = self._registry.directory.sends.get(self._app, set())
        values |= {
            (SENDS, self._app, topic): SendEntry(time.time_ns() // 1_000_000) for topic in sorted(self._sent - known)
        }
        try:
            await self._registry.write(values)
        except ClientError as error:
            log.debug("the registry could not be written to", app=self._app, error=str(error))


def make_registration(
    app: App, topics: Mapping[str, TopicPlan], subscriptions: Iterable[tuple[Subscription, str, Handler]]
) -> Registration:
    """An application as its code declares it: the topics that it sends to, and what reads by which wire."""
    reads = [
        SubscriptionEntry(
            each.topic, each.group, each.scenario, wire, handler.name, each.tuning, each.ordered_by, each.description
        )
        for each, wire, handler in subscriptions
    ]
    declared = [
        TopicEntry(name, plan.key, plan.owner, plan.description, plan.contacts) for name, plan in topics.items()
    ]
    return Registration(
        app.name,
        app.owner,
        app.description,
        app.contacts,
        tuple(reads),
        tuple(declared),
        {LOG_LEVEL: app.logs.level, LOG_SAMPLE: app.logs.sample},
        VERSION,
        time.time_ns() // 1_000_000,
    )


def _same(there: Registration | None, mine: Registration) -> bool:
    """Whether two registrations are the same but for their time."""
    return there is not None and msgspec.structs.replace(there, at_ms=mine.at_ms) == mine
