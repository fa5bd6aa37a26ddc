"""Messages by their physical offset: to be shown (33), or to be consumed again (36).

A consumer that could not process a message sends it back. It comes again through the retry topic of its group, after a
delay that grows with each time, and after so many times it goes to the group's dead letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.internal import is_protected
from headrace.broker.publish import Message
from headrace.broker.security import OWN, Operation, Resource
from headrace.doors.rocketmq import messages
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.messages import StoredMessage, read_properties
from headrace.doors.rocketmq.names import dead_letter_topic, retry_topic, rocketmq_name
from headrace.doors.rocketmq.records import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    REAL_QUEUE,
    REAL_TOPIC,
    RETRY_TOPIC,
    headers_of,
    key_of,
)
from headrace.doors.rocketmq.remoting.reader import QueueReader
from headrace.errors import NotAuthorized, OffsetOutOfRange
from headrace.log.interface import Topic

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

# The level of the first time, where the consumer leaves it to the broker.
FIRST_LEVEL = 3


class LookupHandlers:
    """Finds messages again."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting
        self._broker = remoting.broker
        self._reader = QueueReader(remoting)

    async def view(self, call: Call) -> None:
        """VIEW_MESSAGE_BY_ID."""
        call.answer(body=messages.encode(await self.find(call, call.number("offset"))))

    async def send_back(self, call: Call) -> None:
        """CONSUMER_SEND_MSG_BACK."""
        group, level = call.text("group"), call.number("delayLevel", 0)
        await self._broker.rocketmq.load()
        settings = self._remoting.existing_group(group)
        if settings.retry_queues <= 0:
            call.answer()
            return
        found = await self.find(call, call.number("offset"))
        most = call.number("maxReconsumeTimes", -1)
        is_dead = level < 0 or found.reconsume_times >= (settings.retries_max if most < 0 else most)
        name = dead_letter_topic(group) if is_dead else retry_topic(group)
        topic = await self._remoting.topics.open(name, 1, call.connection.session)
        queue = 0 if is_dead else found.physical_offset % len(topic.partitions)
        properties = read_properties(found.properties)
        properties.setdefault(RETRY_TOPIC, found.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, messages.offset_id(found.store_host, found.physical_offset))
        level = 0 if is_dead else level or FIRST_LEVEL + found.reconsume_times
        properties[DELAY] = str(level)
        due_ms = 0
        if not is_dead:
            due_ms = self._broker.runtime.clock.now_ms() + self._remoting.delay_ms(level)
            properties |= {REAL_TOPIC: name, REAL_QUEUE: str(queue)}
        headers = headers_of(
            properties,
            born_ms=found.born_ms,
            born_host=found.born_host,
            flag=found.flag,
            sys_flag=found.sys_flag,
            reconsume_times=found.reconsume_times + 1,
        )
        message = Message(key_of(properties), found.body, headers, queue, due_ms)
        await self._broker.publisher.publish(OWN, topic.name, [message])
        call.answer()

    async def find(self, call: Call, physical: int) -> StoredMessage:
        """The message at a physical offset. Raises ResponseError."""
        await self._broker.rocketmq.load()
        place = self._broker.rocketmq.offsets.decode(physical)
        topic = None if place is None else self._broker.log.topics.by_id.get(place[0])
        if place is not None and topic is not None and not is_protected(topic.name) and _may_read(call, topic):
            partition = topic.partitions[place[1]]
            if not partition.loaded:
                await partition.load()
            try:
                record = await self._reader.at(partition, place[2])
            except OffsetOutOfRange:
                record = None
            if record is not None:
                return await self._reader.message(partition, record, self._remoting.store_host(call.connection))
        raise ResponseError(Code.SYSTEM_ERROR, f"can not find message by the offset, {physical}")


def _may_read(call: Call, topic: Topic) -> bool:
    """Whether a client may see the messages of a topic; to those that may not there are none."""
    name = rocketmq_name(topic.name)
    try:
        if name is None:
            call.check(Operation.READ, Resource.TOPIC, topic.name)
        else:
            call.check_topic(Operation.READ, name)
    except NotAuthorized:
        return False
    return True
