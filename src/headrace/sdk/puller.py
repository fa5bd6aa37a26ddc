"""A consumer of Kafka's own library in a thread of its own, and how far its group is.

A group's offset means "everything before it". So what is settled out of order is remembered, and the offset moves when
nothing before it is open. Messages that were fetched together may be open, and settled, as one.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from headrace.sdk.consumer_thread import POLL_SECONDS, ConsumerThread

POLL_MESSAGES = 1_000
# No more are fetched while so many wait for workers, unless a handler takes more at once.
AHEAD_MESSAGES = 500


class Track:
    """What is open of one partition, from its assignment to this consumer until it is revoked."""

    __slots__ = ("_done", "_open", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        # A heap of where each thing that is open begins; those in `_done` are settled, up to there.
        self._open: list[int] = []
        self._done: dict[int, int] = {}

    def begin(self, offset: int) -> None:
        """What begins here is open."""
        heapq.heappush(self._open, offset)

    def settle(self, offset: int, end: int) -> int | None:
        """What begins here is through, up to `end`. The next offset to read, if that has moved."""
        self._done[offset] = end
        position = None
        while self._open and self._open[0] in self._done:
            position = self._done.pop(heapq.heappop(self._open))
        return position


class Puller(ConsumerThread):
    """Delivers what its consumer fetches to the loop, as far as there is room."""

    def __init__(
        self,
        settings: dict[str, Any],
        topic: str,
        came: Callable[[Puller, list[Any]], None],
        assigned: Sequence[TopicPartition] = (),
    ) -> None:
        """With partitions `assigned`, and from where, it is no member of its group."""
        super().__init__(settings, topic, f"kafka {topic}")
        self._assigned = list(assigned)
        self._came = came
        self._credit = 0
        self._most = POLL_MESSAGES
        self._enough = 0
        # Counted apart, each in one thread: what came, what of it has reached the loop, what is settled.
        self._fetched = 0
        self._arrived = 0
        self._through = 0
        self._full = False
        self._room = threading.Event()
        self._paused = False
        self._tracks: dict[int, Track] = {}
        # Positions for the thread to note: the library does not take them while it waits for messages elsewhere.
        self._moved: dict[int, int] = {}
        self.on_revoked: Callable[[], None] = lambda: None
        """Called on the loop when partitions were revoked."""
        self.backlog: Callable[[], int] = lambda: 0
        """How many messages wait for a worker; called in the thread as well."""

    def start(self, credit: int, most: int) -> None:
        """Fetch until so many are unsettled, and hand over up to `most` at once."""
        self._most = min(most, POLL_MESSAGES)
        self._allow(credit)
        self._thread.start()

    def limit(self, credit: int) -> None:
        self._allow(credit)
        self._room.set()

    def _allow(self, credit: int) -> None:
        self._credit = credit
        self._enough = min(max(self._most, AHEAD_MESSAGES), credit)

    async def close(self) -> None:
        self._closing.set()
        self._room.set()
        await super().close()

    # --- on the loop --------------------------------------------------------------------------------------------------

    def begin(self, partition: int, offset: int) -> Track:
        """Messages of a partition are open from here."""
        track = self._tracks.get(partition)
        if track is None:
            track = self._tracks[partition] = Track(partition)
        track.begin(offset)
        return track

    def settle(self, track: Track, offset: int, end: int, count: int) -> None:
        """So many messages are through: what began there, up to the end."""
        self._through += count
        self.check_room()
        position = track.settle(offset, end)
        # A partition that was revoked meanwhile is read again from what was committed.
        if position is not None and self.holds(track):
            self._moved[track.partition] = position

    def check_room(self) -> None:
        """There may be room now."""
        if self._full and not self._is_full():
            self._room.set()

    def _hand_over(self, found: list[Any]) -> None:
        try:
            self._came(self, found)
        finally:
            self._arrived += len(found)
            self.check_room()

    def holds(self, track: Track) -> bool:
        """Whether the partition was not revoked since."""
        return self._tracks.get(track.partition) is track

    def _forget(self, partitions: list[int]) -> None:
        for each in partitions:
            self._tracks.pop(each, None)
            self._moved.pop(each, None)
        self.on_revoked()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        if not self._assigned:
            self._loop.call_soon_threadsafe(self._forget, list(self._tracks))
        self._paused = False

    def _consume(self) -> None:
        if self._assigned:
            self._consumer.assign(self._assigned)
        else:
            self._consumer.subscribe(
                [self._topic], on_assign=self._on_assigned, on_revoke=self._on_revoked, on_lost=self._on_revoked
            )
        while not self._closing.is_set():
            self._note()
            room = self._wait_for_room()
            if (room <= 0) != self._paused:
                self._paused = room <= 0
                act = self._consumer.pause if self._paused else self._consumer.resume
                act(self._consumer.assignment())
            # Also where there is no room: a member that does not poll is taken for dead.
            self._pass_on(self._poll(max(min(room, self._most), 1), 0 if self._paused else POLL_SECONDS))

    def _leave(self) -> None:
        self._note()
        self._assigned = self._reached()

    def _reached(self) -> list[TopicPartition]:
        """Where the next consumer goes on: no other member gets partitions that were assigned by hand."""
        try:
            positions = self._consumer.position(self._assigned) if self._assigned else []
        except (KafkaException, RuntimeError):
            return self._assigned
        return [new if new.offset >= 0 else old for new, old in zip(positions, self._assigned, strict=True)]

    def _poll(self, count: int, seconds: float) -> list[Any]:
        # The library waits for all that are asked for: one message would wait for others that do not come.
        found = self._consumer.consume(1, seconds)
        if found and count > 1:
            try:
                found += self._consumer.consume(count - 1, 0)
            except KafkaException:
                pass  # what came is kept, and the next call raises it again
        return found

    def _pass_on(self, found: list[Any]) -> None:
        if good := self._messages(found):
            self._fetched += len(good)
            self._loop.call_soon_threadsafe(self._hand_over, good)

    def _wait_for_room(self) -> int:
        """How many messages may come. A moment without room is waited for: a pause costs what the library has fetched
        ahead. So is one in which enough wait already: where they lie in the library, they are not in the way of the
        garbage collector, which would walk over them again and again, and they are at hand when they are used."""
        if self._is_full():
            self._full = True
            # Checked again, because `check_room` does nothing before `_full` is set.
            if self._is_full():
                self._room.wait(POLL_SECONDS)
            self._full = False
            self._room.clear()
        return self._credit - (self._fetched - self._through)

    def _is_full(self) -> bool:
        if self._fetched - self._through >= self._credit:
            return True
        # It goes on when half of the backlog is gone, and not for each message.
        enough = (self._enough + 1) // 2 if self._full else self._enough
        return self._fetched - self._arrived + self.backlog() >= enough

    def _note(self) -> None:
        """Let the library commit what is settled, with its next commit."""
        while self._moved:
            partition, position = self._moved.popitem()
            try:
                self._consumer.store_offsets(offsets=[TopicPartition(self._topic, partition, position)])
            except KafkaException:
                pass  # the partition was revoked: its new owner reads from what was committed

    def _on_assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        # New partitions are not paused, even if the others are.
        self._paused = False

    def _on_revoked(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        # What is settled by now is committed with the revocation.
        self._note()
        self._loop.call_soon_threadsafe(self._forget, [each.partition for each in partitions])
