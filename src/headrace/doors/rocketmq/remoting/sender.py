"""The sends of one turn of the loop, over all connections: those to one queue become one batch.

A batch costs one append, one flush and one wake-up of readers, however many producers are in it. Each send is answered
alone; where a batch is refused, each of its sends is tried alone, so that one producer's fault is not another's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.publish import Admission, Headers
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.messages import offset_id
from headrace.errors import HeadraceError
from headrace.format import records
from headrace.log.interface import Partition

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

# Sends are put together up to about this size, and to half of what the topic takes.
BATCH_BYTES = 262_144

_NONE: Mapping[str, str] = {}

Row = tuple[bytes | None, bytes | None, Headers]


@dataclass(frozen=True, slots=True)
class Send:
    """A request to append: one message, or those of a producer's batch."""

    call: Call
    admission: Admission
    partition: Partition
    rows: Sequence[Row]
    size: int
    unique_key: str | None
    """The id that its producer gave to a single message."""


class Sender:
    """Appends what producers send."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting
        self._broker = remoting.broker
        self._waiting: dict[Partition, list[Send]] = {}

    def can_append(self, admission: Admission, partition: Partition) -> bool:
        """Whether a send needs nothing but an append."""
        return (
            admission.valid
            and admission.is_plain
            and partition.loaded
            and not partition.offline
            and self._broker.rocketmq.offsets.encode(partition.topic.id, partition.index, partition.end) is not None
        )

    def add(self, send: Send) -> None:
        """Append when this turn of the loop ends."""
        if not self._waiting:
            self._remoting.soon(self._flush)
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
                if error is not None:
                    send.call.refuse(error)
                else:
                    offsets = range(offset, offset + len(send.rows))
                    self.answer(send.call, first.partition, offsets, send.unique_key)
                offset += len(send.rows)

        try:
            batch = records.build([(now, *row) for send in sends for row in send.rows])
            appended = self._broker.publisher.append(first.admission, first.partition, batch, done)
        except (HeadraceError, OSError) as error:
            if len(sends) == 1:
                first.call.refuse(error)
                return
            for send in sends:
                self._append([send])
            return
        base = appended.base_offset
        appended.complete(done)

    def answer(
        self,
        call: Call,
        partition: Partition,
        offsets: Sequence[int],
        unique_key: str | None,
        more: Mapping[str, str] = _NONE,
    ) -> None:
        """Answer a send whose messages are durable; an offset of -1: the message appears later."""
        encode = self._broker.rocketmq.offsets.encode
        host = self._remoting.store_host(call.connection)
        topic = partition.topic
        physical = [-1 if each < 0 else encode(topic.id, partition.index, each) for each in offsets]
        fields = {
            "msgId": ",".join(offset_id(host, -1 if each is None else each) for each in physical),
            "queueId": str(partition.index),
            "queueOffset": str(max(offsets[0], 0)),
        }
        if unique_key is not None:
            fields["transactionId"] = unique_key
        fields |= more
        call.answer(fields=fields)
