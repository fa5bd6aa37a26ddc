"""Sends over remoting: their answers carry physical offsets, so a queue must have its number before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.broker.publish import Admission
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.messages import offset_id
from headrace.doors.rocketmq.sender import Sender
from headrace.log.interface import Partition

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

_NONE: Mapping[str, str] = {}


class RemotingSender(Sender):
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
