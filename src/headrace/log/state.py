"""What follows from a partition's batches: producers, leader epochs, and which transactions are open or aborted.

A start could fold all of it from the log again. Three kinds of files spare it that, and are written from here: the
producer snapshot and the leader epochs when a segment begins or the log stops, and an aborted transaction in the index
of the segment that has its marker.
"""

from __future__ import annotations

from functools import partial

from headrace.format.batch import BatchHeader
from headrace.log.epochs import FILE_NAME
from headrace.log.interface import AbortedTransaction
from headrace.log.loading import learn, stable_after
from headrace.log.segments import Loaded, Segments
from headrace.runtime.disk import NO_SPACE


class PartitionState:
    """The state that a partition's batches have left."""

    __slots__ = ("_epochs_written", "_snapshot_at", "epoch", "epochs", "producers", "unindexed", "unstable")

    def __init__(self, found: Loaded) -> None:
        # Aborted transactions whose markers are in no segment yet.
        self.unindexed: list[tuple[int, int, int, int]] = []
        self.adopt(found)

    def adopt(self, found: Loaded) -> None:
        """Take what the log says, up to its end."""
        self.producers = found.producers
        self.epochs = found.epochs
        # The epoch that `epochs` is known to have: of every batch so far, where there was one.
        self.epoch = found.epochs.latest
        # The first offset of the oldest open transaction.
        self.unstable = found.producers.first_unstable(found.end)
        self._snapshot_at = found.snapshot
        self._epochs_written = found.epochs_written

    def begin_epoch(self, epoch: int, base: int) -> None:
        """The first batch of an epoch is about to stand at `base`."""
        if self.epochs.assign(epoch, base):
            self._epochs_written = False
        self.epoch = epoch

    def end_epochs(self, end: int) -> None:
        """No batch stands at or above `end`."""
        if self.epochs.truncate_end(end):
            self._epochs_written = False
        self.epoch = self.epochs.latest

    def learn(
        self,
        header: BatchHeader,
        base: int,
        batch: bytes | bytearray | memoryview,
        high_watermark: int,
        segments: Segments,
    ) -> None:
        """Take a numbered batch, or a marker, into the state of its producer."""
        header = header._replace(base_offset=base)
        producers = self.producers
        producers.remember(header.producer_id, base, high_watermark)
        aborted = learn(producers, header, partial(bytes, batch), None)
        self.unstable = producers.first_unstable(high_watermark)
        if aborted is not None:
            self.unindexed.append((*aborted, stable_after(producers, header)))
            self.write_aborted(segments)

    def write_aborted(self, segments: Segments) -> None:
        """Aborted transactions go into the index of the segment that holds their marker, once that is stored."""
        while self.unindexed and segments.all and self.unindexed[0][2] < segments.end:
            segments.add_aborted(*self.unindexed.pop(0))

    def aborted(self, first: int, last: int) -> list[AbortedTransaction]:
        """Those that overlap [first, last) and are in no index yet."""
        return [
            AbortedTransaction(producer, begun, ended)
            for producer, begun, ended, _ in self.unindexed
            if begun < last and ended >= first
        ]

    def forget_aborted(self, start: int) -> None:
        """A `memory` topic has no index: its aborted transactions go with their markers."""
        while self.unindexed and self.unindexed[0][2] < start:
            self.unindexed.pop(0)

    def write(self, segments: Segments, end: int) -> None:
        """Write the producer snapshot and the leader epochs, where they changed."""
        try:
            if self._snapshot_at != end or not end:
                segments.write_snapshot(end, self.producers.dump())
                self._snapshot_at = end
            if not self._epochs_written:
                segments.write_small(FILE_NAME, self.epochs.dump())
                self._epochs_written = True
        except OSError as error:
            # Both can be read from the log again: a full disk need not stop what this is written for.
            if error.errno not in NO_SPACE:
                raise

    def write_final(self, segments: Segments, end: int) -> None:
        """The same before a clean stop: the batches that the state comes from may have been trimmed away."""
        if self._snapshot_at != end or not self._epochs_written:
            self.write(segments, end)

    def roll_back(self, segments: Segments, end: int) -> None:
        """The batches from `end` on never came."""
        if self._snapshot_at >= end:
            # One at that very offset is true, but went with a segment that began there.
            segments.drop_snapshots(end)
            self._snapshot_at = -1
        self.producers.truncate(end)
        self.end_epochs(end)
        self.unstable = self.producers.first_unstable(end)
        self.unindexed = [each for each in self.unindexed if each[2] < end]


# Of a partition of which nothing was read from disk.
UNREAD = PartitionState(Loaded())
