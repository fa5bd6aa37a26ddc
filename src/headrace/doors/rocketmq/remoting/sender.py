"""Sends over remoting: their answers carry physical offsets, so a queue must have its number before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from headrace.broker.publish import Admission
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.frames import ONE_WAY, Command
from headrace.doors.rocketmq.messages import offset_id
from headrace.doors.rocketmq.remoting import send_wire
from headrace.doors.rocketmq.remoting.send_wire import WireSend
from headrace.doors.rocketmq.sender import BatchingSender, Send, build_rows, finish_rows
from headrace.log.interface import Partition

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

_NONE: Mapping[str, str] = {}


class RemotingSender(BatchingSender[Send | WireSend]):
    """Appends what producers send, and answers them."""

    def __init__(self, remoting: Remoting) -> None:
        super().__init__(remoting.broker, remoting.soon)
        self._remoting = remoting

    def can_append(self, admission: Admission, partition: Partition) -> bool:
        """Whether a send needs nothing but an append."""
        encode = self._broker.rocketmq.offsets.encode
        return (
            super().can_append(admission, partition)
            and encode(partition.topic.id, partition.index, partition.end) is not None
        )

    def _build(self, sends: Sequence[Send | WireSend], now_ms: int) -> bytearray:
        if isinstance(sends[0], WireSend):
            return send_wire.build(cast(Sequence[WireSend], sends), now_ms)
        return build_rows(cast(Sequence[Send], sends), now_ms)

    def _finish(
        self, partition: Partition, sends: Sequence[Send | WireSend], error: Exception | None, base: int
    ) -> None:
        if isinstance(sends[0], WireSend):
            self._answer_wire(partition, cast(Sequence[WireSend], sends), error, base)
        else:
            finish_rows(cast(Sequence[Send], sends), error, base)

    def _answer_wire(
        self, partition: Partition, sends: Sequence[WireSend], error: Exception | None, offset: int
    ) -> None:
        """Answer sends that came as bytes as bytes."""
        encode = self._broker.rocketmq.offsets.encode
        topic_id, index = partition.topic.id, partition.index
        queue = b"%d" % index
        last = offset + sum([len(send.tails) for send in sends]) - 1
        first = encode(topic_id, index, offset)
        # Between an offset and its physical one, where that is the same for all.
        shift = None if first is None or encode(topic_id, index, last) != first + last - offset else first - offset
        for send in sends:
            connection, count = send.connection, len(send.tails)
            connection.let_go(send.body_bytes)
            if error is not None or shift is None:
                flag = ONE_WAY if send.is_one_way else 0
                call = Call(connection, Command(send.code, send.opaque, flag))
                if error is not None:
                    call.refuse(error)
                else:
                    key = None if send.unique_key is None else send.unique_key.decode()
                    self.answer(call, partition, range(offset, offset + count), key)
            elif not send.is_one_way:
                connection.send_frame(send_wire.answer(send, send.host, queue, offset, offset + shift))
            offset += count

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
