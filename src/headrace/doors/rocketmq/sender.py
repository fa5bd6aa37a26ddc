"""The sends of one turn of the loop, over all connections: those to one queue become one batch.

A batch costs one append, one flush and one wake-up of readers, however many producers are in it. Each send is answered
alone; where a batch is refused, each of its sends is tried alone, so that one producer's fault is not another's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace.broker.broker import Broker
from headrace.broker.publish import Admission, Headers
from headrace.errors import HeadraceError
from headrace.format import records
from headrace.log.interface import Partition

# Sends are put together up to about this size, and to half of what the topic takes.
BATCH_BYTES = 262_144

Row = tuple[bytes | None, bytes | None, Headers]


class Sent(Protocol):
    """A request to append, in whichever form."""

    @property
    def admission(self) -> Admission: ...

    @property
    def size(self) -> int: ...


AnySend = TypeVar("AnySend", bound=Sent)


@dataclass(frozen=True, slots=True)
class Send:
    """A request to append: one message, or those of a producer's batch."""

    admission: Admission
    rows: Sequence[Row]
    size: int
    on_done: Callable[[Exception | None, int], None]
    """Called once they are durable, with the offset of the first."""


class BatchingSender(ABC, Generic[AnySend]):
    """Appends what producers send."""

    def __init__(self, broker: Broker, soon: Callable[[Callable[[], None]], None]) -> None:
        self._broker = broker
        self._soon = soon
        self.waiting: dict[Partition, list[AnySend]] = {}
        """The batches that have begun in this turn of the loop."""

    def can_append(self, admission: Admission, partition: Partition) -> bool:
        """Whether a send needs nothing but an append."""
        return admission.valid and admission.is_plain and partition.loaded and not partition.offline

    def begin(self, partition: Partition) -> list[AnySend]:
        """What is added to this list is appended when this turn of the loop ends."""
        if not self.waiting:
            self._soon(self._flush)
        sends: list[AnySend] = []
        self.waiting[partition] = sends
        return sends

    def add(self, send: AnySend, partition: Partition) -> None:
        """Append when this turn of the loop ends."""
        sends = self.waiting.get(partition)
        (self.begin(partition) if sends is None else sends).append(send)

    def _flush(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for partition, sends in waiting.items():
            bound = min(BATCH_BYTES, partition.topic.settings.max_batch_bytes // 2)
            part: list[AnySend] = []
            size = 0
            for send in sends:
                # Those of one form are built together, and none overtakes another.
                if part and (size + send.size > bound or type(send) is not type(part[0])):
                    self._append(partition, part)
                    part, size = [], 0
                part.append(send)
                size += send.size
            self._append(partition, part)

    def _append(self, partition: Partition, sends: Sequence[AnySend]) -> None:
        now = self._broker.runtime.clock.now_ms()
        base = -1

        def done(error: Exception | None) -> None:
            self._finish(partition, sends, error, base)

        try:
            batch = self._build(sends, now)
            appended = self._broker.publisher.append(sends[0].admission, partition, batch, done)
        except (HeadraceError, OSError) as error:
            if len(sends) == 1:
                self._finish(partition, sends, error, -1)
                return
            for send in sends:
                self._append(partition, [send])
            return
        base = appended.base_offset
        appended.complete(done)

    @abstractmethod
    def _build(self, sends: Sequence[AnySend], now_ms: int) -> bytearray:
        """The batch of sends of one form."""

    @abstractmethod
    def _finish(self, partition: Partition, sends: Sequence[AnySend], error: Exception | None, base: int) -> None:
        """Answer sends of one form that were appended from an offset on, or refused."""


class Sender(BatchingSender[Send]):
    """Appends rows."""

    def _build(self, sends: Sequence[Send], now_ms: int) -> bytearray:
        return build_rows(sends, now_ms)

    def _finish(self, partition: Partition, sends: Sequence[Send], error: Exception | None, base: int) -> None:
        finish_rows(sends, error, base)


def build_rows(sends: Sequence[Send], now_ms: int) -> bytearray:
    """The batch of sends."""
    return records.build([(now_ms, *row) for send in sends for row in send.rows])


def finish_rows(sends: Sequence[Send], error: Exception | None, base: int) -> None:
    """Tell each of the sends how it went."""
    for send in sends:
        send.on_done(error, base)
        base += len(send.rows)
