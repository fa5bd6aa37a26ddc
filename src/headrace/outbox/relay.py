"""The relay: from an outbox to the log, in order, each message once.

The idea: there is one way to begin, and every trouble ends in it. To begin is to shut out whatever relay was there
before, at the broker and in the database, then to ask the broker how far the log has come, and so to learn what became
of the one batch that was claimed. A relay that was killed, a database or a broker that went away in the middle of a
commit: all of it is settled there and nowhere else.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Protocol

import structlog

from headrace.outbox.errors import InDoubt, MessageRefused, OutboxError, RelayFenced, Unavailable
from headrace.outbox.store import Claim, Message, State, Store
from headrace.outbox.tables import NAME_MAX

log = structlog.get_logger("headrace.outbox")

BACKOFF_FIRST = 0.05
BACKOFF_MAX = 5.0
STANDBY_SECONDS = 0.5
POLL_FIRST = 0.002
LOG_SECONDS = 30.0
# An error that lasts is logged again when the pauses have become long.
LOG_AGAIN_SECONDS = 2.0
REMIND_SECONDS = 3_600.0
# How long the open batch may take once the relay is to stop.
GRACE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a relay works."""

    messages_max: int = 1_000
    """Messages in a transaction."""
    bytes_max: int = 4 << 20
    """Bytes in a transaction, as far as it has more than one message."""
    poll: float = 0.1
    """Seconds between two looks at an outbox in which nothing happens."""
    park: bool = False
    """Put aside what the broker refuses, instead of ending."""
    begin_anew: bool = False
    """Publish everything in the table, whatever the broker has already."""


class Publisher(Protocol):
    """The way to the log. Raises Unavailable where it is not known, or not now, what became of something."""

    async def start(self) -> None:
        """Shut out every other publisher of the same name, for good, and end what it had under way."""

    async def position(self, identity: str) -> int | None:
        """How far the log has come; None where it does not say. Raises InDoubt if that was another outbox's word."""

    async def publish(self, messages: list[Message], position: int, identity: str) -> None:
        """Write messages (perhaps none) and position to the log: all or nothing. Raises MessageRefused where one of the
        messages cannot be written, and RelayFenced where another publisher has begun."""

    async def close(self) -> None: ...


class Relay:
    """Drains one outbox. `run` until `stop`."""

    def __init__(self, store: Store, publisher: Publisher, name: str, settings: Settings | None = None) -> None:
        if not 0 < len(name) <= NAME_MAX:
            raise OutboxError(f"the name of an outbox must have 1 to {NAME_MAX} characters (got {len(name)})")
        self._store = store
        self._publisher = publisher
        self._name = name
        self._settings = settings or Settings()
        self._anew = self._settings.begin_anew
        self._stopping = asyncio.Event()
        self._messages_max = self._settings.messages_max
        self._troubles = 0
        self._trouble = ""
        self._identity = ""
        self._log = log.bind(outbox=name)
        self._committed_at = self._logged_at = asyncio.get_running_loop().time()
        self._logged = 0
        self.published = 0
        """Messages that this relay has seen into the log."""

    def stop(self) -> None:
        """End `run` after the batch that is under way."""
        self._stopping.set()

    async def run(self) -> None:
        """Relay until `stop`; raises where a person must decide."""
        work = asyncio.create_task(self._work())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait((work,), timeout=GRACE_SECONDS)
            if work.done():
                work.result()
        finally:
            for task in (work, stopping):
                task.cancel()
            await asyncio.gather(work, stopping, return_exceptions=True)
            self._store.close()
            await self._publisher.close()

    async def _work(self) -> None:
        standing_by = False
        while not self._stopping.is_set():
            try:
                if not await asyncio.to_thread(self._store.acquire):
                    if not standing_by:
                        self._log.info("another relay is at work: this one stands by")
                    standing_by = True
                    await self._pause(STANDBY_SECONDS)
                    continue
                standing_by = False
                await self._drain(await self._begin())
            except Unavailable as error:
                delay = min(BACKOFF_MAX, BACKOFF_FIRST * 2**self._troubles) * random.uniform(0.5, 1.0)
                self._troubles = min(self._troubles + 1, 10)
                if str(error) != self._trouble or delay > LOG_AGAIN_SECONDS:
                    self._trouble = str(error)
                    self._log.warning("it will be tried again until the relay stops", why=str(error))
                await self._pause(delay)
            except RelayFenced as error:
                await self._shut_out(error)

    async def _shut_out(self, error: RelayFenced) -> None:
        """Decide whether to begin again. The row in the database shows whether another relay exists at all: a broker
        also fences a producer that was silent for too long."""
        try:
            if not self._store.takes_turns and not await asyncio.to_thread(self._store.owns):
                raise error
        except Unavailable:
            pass
        self._log.warning("this relay was shut out", why=str(error))
        await self._pause(STANDBY_SECONDS)

    # --- beginning ---

    async def _begin(self) -> Claim:
        """Shut out all others, and find out what became of what was claimed. A claim that is out."""
        await asyncio.to_thread(self._store.check)
        await self._publisher.start()
        state = await asyncio.to_thread(self._store.take, self._name)
        self._identity = state.identity
        # Only now: what the others had under way has ended, and they can begin nothing more.
        position = await self._publisher.position("" if self._anew else state.identity)
        if self._anew:
            state = await asyncio.to_thread(self._store.begin_anew, self._name, position or 0)
            self._anew = False
            self._log.warning("everything in the outbox is taken for not published", position=position or 0)
            return state.claim
        claim = self._settle(state, position)
        if position is None:
            await self._remind(claim)
        self._log.info("relaying", position=claim.position)
        return claim

    async def _remind(self, out: Claim) -> None:
        """Commit the position again: a broker expires offsets that were not committed for days."""
        await self._publisher.publish([], out.position, self._identity)
        self._committed_at = asyncio.get_running_loop().time()

    def _settle(self, state: State, position: int | None) -> Claim:
        """What is out, by the broker's word; raises InDoubt where its word fits nothing in the database."""
        claim = state.claim
        if state.name != self._name:
            raise InDoubt(
                f"this outbox was relayed as {state.name!r}, with {claim.position} messages so far, and not as "
                f"{self._name!r}: use that name, or begin anew"
            )
        if position == claim.position:
            return claim
        if position == claim.before or (position is None and claim.before == 0):
            return Claim((), claim.before, claim.before)
        if position is None and not claim.ids:
            self._log.warning(
                "the broker has lost the position of the outbox; nothing was under way, so the database's holds",
                position=claim.position,
            )
            return claim
        published = "nothing of this outbox" if position is None else f"{position} messages"
        raise InDoubt(
            f"the broker has {published}, the database {claim.before} published, or {claim.position} with the "
            f"{len(claim.ids)} that were under way: one of the two was lost or restored from a backup, or the name "
            f"{self._name!r} is used twice. Delete the rows that are in the log, then begin anew"
        )

    # --- relaying ---

    async def _drain(self, out: Claim) -> None:
        idle = POLL_FIRST
        while not self._stopping.is_set():
            if not out.ids and not await asyncio.to_thread(self._store.is_waiting):
                self._log_progress()
                if asyncio.get_running_loop().time() - self._committed_at > REMIND_SECONDS:
                    await self._remind(out)
                await self._pause(idle)
                idle = min(idle * 2, self._settings.poll)
                continue
            claim = await asyncio.to_thread(self._store.advance, out, self._messages_max, self._settings.bytes_max)
            out = await self._publish(claim) if claim.ids else claim
            self._troubles, self._trouble = 0, ""
            idle = POLL_FIRST
        if out.ids:
            # Not needed, since the broker has the position; but the next relay need not compare the two.
            await asyncio.to_thread(self._store.advance, out, 0, 0)

    async def _publish(self, claim: Claim) -> Claim:
        """See a claim into the log, or as much of it as the broker takes at once. What is out."""
        messages = await asyncio.to_thread(self._store.messages, claim)
        while messages:
            try:
                await self._publisher.publish(messages, claim.position, self._identity)
            except MessageRefused as error:
                if len(error.suspects) == 1:
                    return await self._refused(claim, messages, error)
                # Which one it is shows when there are fewer of them.
                last = error.suspects[len(error.suspects) // 2 - 1]
                claim = await asyncio.to_thread(self._store.shorten, claim, claim.ids.index(last) + 1)
                messages = [each for each in messages if each.id <= last]
                self._messages_max = len(claim.ids)
            else:
                self.published += len(messages)
                # Slowly: where a topic takes small batches only, the next larger one is refused again.
                self._messages_max = min(self._messages_max * 9 // 8 + 1, self._settings.messages_max)
                self._log_progress()
                return claim
        # All of them were deleted meanwhile.
        return await asyncio.to_thread(self._store.shorten, claim, 0)

    async def _refused(self, claim: Claim, messages: list[Message], error: MessageRefused) -> Claim:
        [message] = [each for each in messages if each.id == error.suspects[0]]
        if not self._settings.park:
            raise OutboxError(
                f"message {message.id} of the outbox, for topic {message.topic}, was refused: {error}. Nothing behind "
                "it is published. Put the cause right, delete the row, or let the relay park what is refused"
            ) from error
        self._log.error("a message was refused and put aside", id=message.id, topic=message.topic, why=str(error))
        return await asyncio.to_thread(self._store.park, claim, message.id, str(error))

    def _log_progress(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.published > self._logged and now - self._logged_at >= LOG_SECONDS:
            self._log.info("messages are out", messages=self.published - self._logged)
            self._logged, self._logged_at = self.published, now

    # --- waiting ---

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            pass
