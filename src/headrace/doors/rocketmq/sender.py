"""The sends of one turn of the loop, over all connections: those to one queue become one batch.

A batch costs one append, one flush and one wake-up of readers, however many producers are in it. Each send is answered
alone; where a batch is refused, each of its sends is tried alone, so that one producer's fault is not another's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.broker.broker import Broker
from headrace.broker.publish import Admission, Headers
from headrace.errors import HeadraceError
from headrace.format import records
from headrace.log.interface import Partition

# Sends are put together up to about this size, and to half of what the topic takes.
BATCH_BYTES = 262_144

Row = tuple[bytes | None, bytes | None, Headers]


@dataclass(frozen=True, slots=True)
class Send:
    """A request to append: one message, or those of a producer's batch."""

    admission: Admission
    partition: Partition
    rows: Sequence[Row]
    size: int
    on_done: Callable[[Exception | None, int], None]
    """Called once they are durable, with the offset of the first."""


class Sender:
    """Appends what producers send."""

    def __init__(self, broker: Broker, soon: Callable[[Callable[[], None]], None]) -> None:
        self._broker = broker
        self._soon = soon
        self._waiting: dict[Partition, list[Send]] = {}

    def can_append(self, admission: Admission, partition: Partition) -> bool:
        """Whether a send needs nothing but an append."""
        return admission.valid and admission.is_plain and partition.loaded and not partition.offline

    def add(self, send: Send) -> None:
        """Append when this turn of the loop ends."""
        if not self._waiting:
            self._soon(self._flush)
        self._waiting.setdefault(send.partition, []).append(send)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for partition, sends in waiting.items():
            bound = min(BATCH_BYTES, partition.topic.settings.max_batch_bytes // 2)
            part: list[Send] = []
            size = 0
            for send in sends:
                if part and size + send.size > bound:
                    self._append(part)
                    part, size = [], 0
                part.append(send)
                size += send.size
            self._append(part)

    def _append(self, sends: Sequence[Send]) -> None:
        first = sends[0]
        now = self._broker.runtime.clock.now_ms()
        base = -1

        def done(error: Exception | None) -> None:
            offset = base
            for send in sends:
                send.on_done(error, offset)
                offset += len(send.rows)

        try:
            batch = records.build([(now, *row) for send in sends for row in send.rows])
            appended = self._broker.publisher.append(first.admission, first.partition, batch, done)
        except (HeadraceError, OSError) as error:
            if len(sends) == 1:
                first.on_done(error, -1)
                return
            for send in sends:
                self._append([send])
            return
        base = appended.base_offset
        appended.complete(done)
