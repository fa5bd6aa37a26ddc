"""`__audit`: who did what, from where, and whether it was allowed.

What is recorded: logins and failed ones, refusals, changes of topics, queues, users, rights and settings, redrives and
purges; with `audit_reads` what was read, too. What is the same within one flush is one entry with a count, so that a
client that is refused in a loop makes no flood. Entries go to the topic, which any consumer with the right to read it
reads, and to the log (`headrace.audit`). Watching must not slow down what it watches: the memory for what waits is
bounded, and what finds no room there is dropped and counted.

A record's key is the user, its value a JSON object: `t` (milliseconds), `user`, `host`, `door`, `client`, `action`,
`resource`, `name`, `result`, and where there is any `detail` and `count`. What the broker does by itself has the door
`broker`.
"""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

import structlog

from headrace.broker.delayed_flush import DelayedFlush
from headrace.broker.durable import durable
from headrace.broker.internal import AUDIT
from headrace.broker.security.rights import Operation, Resource
from headrace.broker.security.session import ANONYMOUS, Session
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics import Topics
from headrace.errors import HeadraceError
from headrace.format import records
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.audit")

TOPIC_CONFIG = {
    "durability": "sync",
    "retention.ms": str(30 * 24 * 3600 * 1000),
    "segment.ms": str(24 * 3600 * 1000),
    "segment.bytes": str(64 << 20),
}
FLUSH_SECONDS = 0.2
# Entries that become text between two turns of the loop: about half a millisecond.
STEP_ENTRIES = 32
TEXT_MAX = 512
OK, REFUSED, REPORTED, FAILED = "ok", "refused", "would be refused", "failed"
BROKER = "broker"


class Entry(NamedTuple):
    """What one record says, but for its time and count."""

    user: str
    host: str
    door: str
    client: str
    action: str
    resource: str
    name: str
    result: str
    detail: str


class Audit:
    """Gathers entries, and writes them."""

    def __init__(self, runtime: Runtime, topics: Topics, config: BrokerSettings) -> None:
        self.is_on = config.audit == "on" or (config.audit == "auto" and config.authorization != "off")
        self.has_reads = self.is_on and config.audit_reads
        self.written = 0
        """Records appended."""
        self.dropped = 0
        """Entries that found no room, or could not be written."""
        self._runtime = runtime
        self._topics = topics
        self._entries_max = config.audit_entries_max
        # Whether this node writes to the topic, or logs alone since it follows.
        self._writes = False
        # Entries that wait: when the first one was, and how many.
        self._waiting: dict[Entry, tuple[int, int]] = {}
        # Those that are being written: they take memory, too.
        self._writing = 0
        self._turn = asyncio.Lock()
        self._flush_later = DelayedFlush(FLUSH_SECONDS, self.flush, lambda: bool(self._waiting))

    async def start(self) -> None:
        """Write to the topic from now on."""
        self._writes = True

    async def stop(self) -> None:
        """Write what waits."""
        await self._flush_later.stop()

    def record(
        self,
        session: Session | None,
        action: str,
        resource: Resource | None = None,
        name: str = "",
        result: str = OK,
        detail: str = "",
        *,
        user: str = "",
    ) -> None:
        """Record what a session (None: the broker by itself) has done, or wanted to do. `user` is whom it wanted to be,
        where it is not. Nothing secret may be in it. A plain call."""
        if not self.is_on:
            return
        if session is None or session.is_own:
            who = ("", "", BROKER, "")
        else:
            who = (user or session.user or ANONYMOUS, session.host, session.door, session.client_id[:TEXT_MAX])
        kind = "" if resource is None else resource.name.lower()
        entry = Entry(*who, action, kind, name[:TEXT_MAX], result, detail[:TEXT_MAX])
        known = self._waiting.get(entry)
        if known is not None:
            self._waiting[entry] = known[0], known[1] + 1
            return
        # Refusals leave room: a client that makes a flood of them must not hide what else it does.
        room = self._entries_max if result == OK else self._entries_max // 2
        if len(self._waiting) + self._writing >= room:
            self.dropped += 1
            return
        self._waiting[entry] = self._runtime.clock.now_ms(), 1
        self._flush_later.request()

    # --- what parts of the broker say ---------------------------------------------------------------------------------

    def record_topic(self, session: Session | None, action: str, name: str, detail: str) -> None:
        """What was done to a topic."""
        self.record(session, f"topic.{action}", Resource.TOPIC, name, detail=detail)

    def record_queue(self, session: Session | None, action: str, name: str, detail: str) -> None:
        """What was done to a queue."""
        self.record(session, f"queue.{action}", Resource.QUEUE, name, detail=detail)

    def record_settings(self, session: Session | None, scope: str, name: str, detail: str) -> None:
        """What was set of a broker or a group."""
        resource = Resource.GROUP if scope == "group" else Resource.CLUSTER
        self.record(session, "settings.alter", resource, name, detail=detail)

    def record_failed_login(self, session: Session, user: str, how: str, why: str) -> None:
        """A client is not who it says."""
        self.record(session, "login", result=FAILED, detail=f"{how}: {why}", user=user[:TEXT_MAX])

    def record_refusal(
        self, session: Session, operation: Operation, resource: Resource, name: str, *, log_only: bool
    ) -> None:
        """What a session may not do."""
        self.record(session, operation.name.lower(), resource, name, REPORTED if log_only else REFUSED)

    # --- writing ------------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Write what waits now; it is durable then. What cannot be written is dropped and counted; the log has it."""
        async with self._turn:
            waiting, self._waiting = list(self._waiting.items()), {}
            self._writing = len(waiting)
            try:
                for first in range(0, len(waiting), STEP_ENTRIES):
                    await self._write(waiting[first : first + STEP_ENTRIES])
            finally:
                self._writing = 0

    async def _write(self, step: list[tuple[Entry, tuple[int, int]]]) -> None:
        rows: list[tuple[int, bytes, bytes, list[tuple[str, bytes]]]] = []
        for entry, (at, count) in step:
            value: dict[str, object] = {"t": at, **entry._asdict()}
            if not entry.detail:
                del value["detail"]
            if count > 1:
                value["count"] = count
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            rows.append((at, entry.user.encode("utf-8", "replace"), text.encode("utf-8", "replace"), []))
            shown = {key: each for key, each in value.items() if each != "" and key != "t"}
            logger.info("audit", **shown)
        if not self._writes:
            await asyncio.sleep(0)
            return
        try:
            topic = await self._topics.open(AUDIT, 1, TOPIC_CONFIG, internal=True)
            partition = topic.partitions[0]
            await partition.load()
            waiter, done = durable(None)
            partition.append(records.build(rows), done).complete(done)
            await waiter
        except (HeadraceError, OSError) as error:
            logger.warning("could not write to the audit topic", topic=AUDIT, error=str(error), entries=len(step))
            self.dropped += len(step)
            return
        self.written += len(step)
