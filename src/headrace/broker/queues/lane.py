"""A queue on one partition: its ledger, and the chunks of log that it reads from.

Two feeds walk over the log: `fresh` from the cursor on, and `again` over what was handed out before and has come back.
Each holds one chunk of batches; when that is used up the next one is read, at once where it is in memory, off the loop
where it is not, and the queue is kicked when it is there. The lane holds nothing else of a message: not its bytes, not
its place in the chunk, so a backlog of any length costs one chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import structlog

from headrace.broker.queues.delivery import Claimed, Feed, Keys, Rules, claim
from headrace.broker.queues.ledger import DONE, Ledger
from headrace.broker.reading import POISON, batches, bytes_now, bytes_of
from headrace.broker.unpacking import INLINE_BYTES, packed_of
from headrace.errors import AppendRefused, HeadraceError, OffsetOutOfRange, PartitionOffline, UnpacksTooLarge
from headrace.format import records
from headrace.format.compression import AHEAD
from headrace.log.interface import Chunk, Durability, Partition

if TYPE_CHECKING:
    from headrace.broker.queues.queue import Queue

READ_BYTES = 262_144
# A chunk for a few messages that come again need not be long.
READ_FEW_BYTES = 16_384
FEW = 16
# About how many bytes of messages one claim takes: a turn of the loop stays short.
CLAIM_BYTES = 131_072
# Keys that a lane can have parked, and their bytes in all lanes, since they are stored with the queue; those of further
# dead messages are released.
PARKED_MAX = 10_000
PARKED_BYTES = 262_144

log = structlog.get_logger("headrace.queues")


class Claimer(Protocol):
    """What takes messages from a lane."""

    @property
    def id(self) -> int:
        """By which the ledger knows it."""

    @property
    def sample(self) -> int:
        """How many of a hundred new messages it takes."""


class QueueLane:
    """One partition of a queue."""

    def __init__(self, queue: Queue, partition: Partition, number: int, ledger: Ledger, epoch: int) -> None:
        self.queue = queue
        self.partition = partition
        self.index = number
        self.ledger = ledger
        self.began = ledger.floor
        """The first offset that it has to do with in this life of the broker."""
        # The log's epoch in which the state was written: offsets from a later one are not those it speaks of.
        self.epoch = epoch
        self.rewinds = 0
        """How often it went back, in this life of the broker."""
        self.open = False
        self.lost = 0
        """Messages that were gone from the log before they were settled."""
        self.poisoned = 0
        """Messages in batches that cannot be read."""
        # The last writing of the state failed: it must be written whole.
        self.unsaved = False
        # Settlements that are being written together with something else, and that the ledger has not heard of yet: its
        # state must not be written behind theirs, or they would be undone.
        self.settling = 0
        # Messages that are being moved here: nothing is handed out before their attempts and times are known, or the
        # first turn after the append would hand them out as new ones.
        self.arriving = 0
        self.keys: Keys | None = None
        self._fresh = Feed(INLINE_BYTES)
        self._again = Feed(INLINE_BYTES)
        self._reading: asyncio.Task[None] | None = None
        self._waiting = False
        self._fresh_first = True
        self.rules = Rules(queue.name, [], None, 1)

    @property
    def settled_below(self) -> int:
        """Everything below this offset is settled. After an unclean start that is not known until the lane is open: the
        log may have lost its end, and given the offsets to other messages."""
        return self.ledger.floor if self.is_known else 0

    @property
    def is_known(self) -> bool:
        """Whether what the ledger has is of the messages that the log has."""
        return self.open or self.epoch == self.partition.epoch

    # --- coming and going ---

    async def activate(self) -> None:
        """Load the partition, and fit the state to what the log still has. Raises PartitionOffline."""
        partition = self.partition
        await partition.load()
        if self.open:
            return
        end = partition.end
        if partition.topic.settings.durability is not Durability.MEMORY:
            _, known = partition.epoch_end(self.epoch)
            if 0 <= known < end:
                end = known
        if self.ledger.cursor > end:
            log.warning(
                "the log was cut back: a queue's state above its end is void",
                topic=partition.topic.name, queue=self.queue.name, partition=self.index,
                cursor=self.ledger.cursor, end=end,
            )  # fmt: skip
            self.ledger.cut(end)
            # A change alone could not say that offsets which were done are not any more.
            self.unsaved = True
        self.skip_lost()
        self.epoch = partition.epoch
        await self.use_rules()
        self.open = True

    async def use_rules(self) -> None:
        """Take the queue's filter and its order by key, as they are set now."""
        settings = self.queue.settings
        self.ledger.attempts_max = settings.max_attempts
        self.ledger.condemn_spent()
        if settings.order_by_key and self.keys is None:
            # Nothing is handed out meanwhile: it would hold no key.
            open_before, self.open = self.open, False
            try:
                self.keys = await self._keys_of_unsettled()
            finally:
                self.open = open_before
        elif not settings.order_by_key and self.keys is not None:
            for waiting in self.keys.waiting.values():
                for offset in waiting:
                    self.ledger.unblock(offset)
            self.keys = None
        if self.keys is not None:
            self.keys.parked = self.queue.parked.setdefault(self.index, {})
        self.rules = Rules(self.queue.name, self.queue.conditions, self.keys, settings.lookahead_max)

    async def _keys_of_unsettled(self) -> Keys:
        """Which message holds which key: the first unsettled one of each; the others wait. Those of a parked key follow
        the dead one: that they do may not have been written down before a crash, and that their key is parked has."""
        keys = Keys()
        ledger = self.ledger
        parked = self.queue.parked.get(self.index, {})
        offset = ledger.next_unsettled(0)
        while offset >= 0:
            after = offset + 1
            for header, batch in await batches(self.queue.runtime, self.partition, offset, READ_BYTES):
                after = max(after, header.last_offset + 1)
                if batch is None or header.last_offset < offset:
                    continue
                try:
                    known = await self.queue.unpacking.read(records.keys, batch)
                except POISON:
                    # It is passed over when its messages come to be handed out.
                    continue
                for found, key, _ in known:
                    if key is None or not ledger.floor <= found < ledger.cursor or ledger.state_of(found)[0] == DONE:
                        continue
                    if key in parked:
                        ledger.condemn(found)
                    elif not keys.hold(key, found):
                        ledger.block(found)
            await asyncio.sleep(0)
            offset = ledger.next_unsettled(after)
        # Some were settled while the log was read.
        for known_offset in [*keys.key_of, *keys.waiter_of]:
            if ledger.state_of(known_offset)[0] == DONE:
                following = keys.release(known_offset)
                if following is not None:
                    ledger.unblock(following)
        return keys

    def close(self) -> None:
        self.open = False
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._waiting:
            self._waiting = False
            self.partition.unwait(self._woken)

    # --- handing out ---

    @property
    def available(self) -> int:
        """About how many messages could be handed out now."""
        return self.ledger.ready + max(0, self.partition.last_stable - self.ledger.cursor) if self.open else 0

    @property
    def has_outstanding(self) -> bool:
        """Whether messages are handed out, or wait for their time, and not settled."""
        ledger = self.ledger
        return bool(ledger.leased or ledger.in_flight or ledger.deferred)

    @property
    def is_reading(self) -> bool:
        """Whether messages are being read off the loop."""
        return self._reading is not None

    def watch(self) -> None:
        """Have the queue kicked when a message comes."""
        if self.open and self.ledger.cursor >= self.partition.last_stable:
            self._wait()

    def claim(self, consumer: Claimer, limit: int, deadline: int, in_order: bool = False) -> Claimed | None:
        """Messages for a consumer; None where there is none now. The queue is kicked when that changes. `in_order`:
        what has come back goes before everything that follows it."""
        if not self.open or self.arriving:
            return None
        if in_order:
            take = self._claim_again if self.ledger.ready else self._claim_fresh
            return take(consumer, limit, deadline)
        # In turn, or a message that always comes back would keep everything behind it from a consumer of one at a time.
        self._fresh_first = not self._fresh_first
        if self._fresh_first:
            claimed = self._claim_fresh(consumer, limit, deadline)
            if claimed is not None or not self.ledger.ready:
                return claimed
            return self._claim_again(consumer, limit, deadline)
        if self.ledger.ready:
            claimed = self._claim_again(consumer, limit, deadline)
            if claimed is not None:
                return claimed
        return self._claim_fresh(consumer, limit, deadline)

    def _claim_again(self, consumer: Claimer, limit: int, deadline: int) -> Claimed | None:
        feed, ledger = self._again, self.ledger
        filled = -1
        while True:
            try:
                claimed = claim(
                    feed, ledger, self.rules, self.index, consumer.id, deadline, limit, CLAIM_BYTES, True
                )  # fmt: skip
            except POISON as error:
                if self._is_unpacked_later(feed, error, max(0, ledger.next_ready(feed.base))):
                    return None
                self._poison(feed, error)
                continue
            if claimed.count:
                return claimed
            offset = ledger.next_ready(feed.after)
            if offset < 0:
                offset = ledger.next_ready(0)
            if offset < 0:
                return None
            if offset == filled:
                # The chunk that should hold it was walked through: compaction has taken the message.
                self._give_up(offset)
                self.lost += 1
                self.queue.moved_up(self)
                continue
            few = ledger.ready < FEW
            if not self._fill(feed, offset, READ_FEW_BYTES if few else READ_BYTES):
                return None
            filled = offset

    def _claim_fresh(self, consumer: Claimer, limit: int, deadline: int) -> Claimed | None:
        feed, ledger = self._fresh, self.ledger
        while ledger.cursor < self.partition.last_stable:
            before = ledger.cursor
            try:
                claimed = claim(
                    feed, ledger, self.rules, self.index, consumer.id, deadline, limit, CLAIM_BYTES, False,
                    consumer.sample,
                )  # fmt: skip
            except POISON as error:
                if self._is_unpacked_later(feed, error, ledger.cursor):
                    return None
                self._poison(feed, error)
                continue
            if claimed.count:
                return claimed
            if ledger.cursor > before:
                # Passed over without a delivery: what was settled on the way may let the floor go up.
                self.queue.moved_up(self)
            elif feed.stands:
                # Too many wait for others of their key.
                self.queue.lookahead_hits += 1
                return None
            if ledger.cursor < self.partition.last_stable and not self._fill(feed, ledger.cursor, READ_BYTES):
                return None
        self._wait()
        return None

    def is_free(self, offset: int, key: bytes | None, seen: set[bytes]) -> bool:
        """Whether no order of keys keeps a message that is ready from being handed out. `seen` has the keys of those
        before it, and gets its own."""
        if self.keys is None or key is None:
            return True
        if offset >= self.ledger.cursor and (key in self.keys.parked or key in seen or self.keys.held(key, offset)):
            return False
        seen.add(key)
        return True

    # --- order by key ---

    def release_key(self, offset: int) -> None:
        """A message is settled: the next one of its key may go."""
        if self.keys is not None:
            following = self.keys.release(offset)
            if following is not None:
                self.ledger.unblock(following)

    def block_followers(self, offsets: Iterable[int]) -> None:
        """Messages have come back: those whose key another one holds wait for it."""
        if self.keys is not None:
            for offset in offsets:
                if offset in self.keys.waiter_of:
                    self.ledger.block(offset)

    def park_keys(self, offsets: list[int]) -> bool:
        """Park the keys of dead messages, if the queue does that, as far as there is room; whether it does."""
        if self.keys is None or self.queue.settings.dead_key != "park":
            return False
        parked = self.queue.parked.setdefault(self.index, {})
        room = PARKED_BYTES - sum(len(key) for keys in self.queue.parked.values() for key in keys)
        for key in [self.keys.key_of[offset] for offset in offsets if offset in self.keys.key_of]:
            if key not in parked and len(parked) < PARKED_MAX and len(key) <= room:
                parked[key] = None
                room -= len(key)
        return True

    def end_key(self, offset: int) -> None:
        """A message is dead: those that waited for it follow if its key is parked, and may go if it is not."""
        if self.keys is not None and self.keys.key_of.get(offset) in self.queue.parked.get(self.index, {}):
            for following in self.keys.park(offset):
                self.ledger.condemn(following)
        else:
            self.release_key(offset)

    # --- what cannot be handed out ---

    def _give_up(self, offset: int) -> None:
        """A message cannot be handed out any more."""
        self.ledger.settle(offset)
        self.release_key(offset)

    def _poison(self, feed: Feed, error: AppendRefused) -> None:
        """A batch cannot be read, and never will be: its messages are passed over, counted and named. Those before the
        place where it breaks were handed out, and can be again."""
        ledger = self.ledger
        after = feed.after
        first = feed.offset + 1 if feed.base <= feed.offset < after else feed.base
        feed.drop_batch()
        count = max(0, after - ledger.cursor)
        ledger.pass_to(after)
        while 0 <= (offset := ledger.next_ready(first)) < after:
            self._give_up(offset)
            count += 1
        if not count:
            return
        self.poisoned += count
        self.queue.moved_up(self)
        log.error(
            "a batch cannot be read: its messages are passed over",
            topic=self.queue.topic.name, queue=self.queue.name, partition=self.index, up_to=after - 1, why=str(error),
        )  # fmt: skip

    # --- reading ---

    def _fill(self, feed: Feed, offset: int, size: int) -> bool:
        """Read the chunk at `offset`; False if that takes a while, or there is none."""
        if self._reading is not None:
            return False
        try:
            chunk = self.partition.read(offset, size, committed=True)
            raw = bytes_now(chunk) if chunk.cold is None else None
            if raw is not None:
                feed.fill(raw, offset, chunk.aborted)
                return bool(raw)
        except OffsetOutOfRange:
            if self.skip_lost():
                self.queue.kick()
            else:
                self._wait()
            return False
        except HeadraceError as error:
            self.stall(error)
            return False
        self._reading = asyncio.get_running_loop().create_task(self._read(feed, offset, chunk))
        return False

    async def _read(self, feed: Feed, offset: int, chunk: Chunk) -> None:
        try:
            runtime = self.queue.runtime
            if chunk.cold is not None:
                await runtime.offload.run(chunk.cold)
            else:
                raw = await bytes_of(runtime, chunk)
                # If it has gone meanwhile, so has what is known of it.
                if offset >= self.partition.start:
                    feed.fill(raw, offset, chunk.aborted)
        except (HeadraceError, OSError) as error:
            self.stall(error)
            return
        finally:
            self._reading = None
        self.queue.kick()

    def _is_unpacked_later(self, feed: Feed, error: AppendRefused, offset: int) -> bool:
        """Whether a batch is only too large to be unpacked on the loop; the queue is then kicked once it is."""
        if not isinstance(error, UnpacksTooLarge) or any(error is each for each in AHEAD.values()):
            # It was tried off the loop, and is too large for that too.
            return False
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_large(feed, offset))
        return True

    async def _read_large(self, feed: Feed, offset: int) -> None:
        """Read the batch at `offset` anew, unpack it off the loop, and let the pump have it."""
        queue, partition = self.queue, self.partition
        try:
            found = await batches(queue.runtime, partition, max(offset, partition.start), READ_BYTES)
            batch = next((each for header, each in found if each is not None and header.last_offset >= offset), b"")
            packed = packed_of(batch)
            async with queue.unpacking.ahead([packed] if packed else []):
                feed.fill(batch, offset)
                self._reading = None
                queue.kick()
                # The pump is in front of this.
                await asyncio.sleep(0)
        except OffsetOutOfRange:
            # It went meanwhile.
            self.skip_lost()
        except (HeadraceError, OSError) as error:
            self.stall(error)
            return
        finally:
            self._reading = None
        queue.kick()

    def skip_lost(self) -> bool:
        """Pass over what the log has given up; whether there was any."""
        start, ledger = self.partition.start, self.ledger
        if start <= ledger.floor:
            return False
        fresh = max(0, start - ledger.cursor)
        in_flight = ledger.in_flight
        self.lost += ledger.skip_below(start) + fresh
        if self.keys is not None:
            for offset in self.keys.drop_below(start):
                ledger.unblock(offset)
        if ledger.in_flight != in_flight:
            self.queue.recount()
        self.queue.moved_up(self)
        if self.lost:
            log.warning(
                "messages were dropped from the log before this queue had settled them",
                topic=self.queue.topic.name, queue=self.queue.name, partition=self.index, start=start, lost=self.lost,
            )  # fmt: skip
        return True

    def move_to(self, offset: int) -> None:
        """Go on from an offset, whatever was settled: all before it is done, and nothing from it on, where that is
        back."""
        ledger = self.ledger
        if offset >= ledger.floor:
            ledger.skip_below(offset)
            if self.keys is not None:
                for following in self.keys.drop_below(offset):
                    ledger.unblock(following)
        else:
            self.rewinds += 1
            self.ledger = Ledger(offset, ledger.attempts_max)
            self._fresh = Feed(INLINE_BYTES)
            self._again = Feed(INLINE_BYTES)
            if self._reading is not None:
                self._reading.cancel()
            if self.keys is not None:
                self.keys.clear()
            # A change alone could not say that offsets which were done are not any more.
            self.unsaved = True
        self.queue.recount()
        self.queue.moved_up(self)

    def stall(self, error: Exception) -> None:
        """The partition cannot be read: the lane stands still, and that is logged."""
        if self.open:
            self.open = False
            log.error(
                "a queue cannot read its partition",
                topic=self.queue.topic.name, queue=self.queue.name, partition=self.index,
                error=str(error), offline=isinstance(error, PartitionOffline),
            )  # fmt: skip

    def _wait(self) -> None:
        if not self._waiting:
            self._waiting = True
            self.partition.wait(self._woken)

    def _woken(self) -> None:
        self._waiting = False
        self.queue.kick()
