"""INVOKE_BROKER_TO_RESET_OFFSET (222): a group goes on from another place.

As in RocketMQ 5, the broker stores the new positions at once. Members are told by the answer to their next pull, and
pulls that wait are answered; what members commit before that is ignored (`resets.py`). With
`rocketmq_server_side_reset` off, as in RocketMQ 4, members are sent the new positions (RESET_CONSUMER_CLIENT_OFFSET,
220) and commit them; a group without members is then refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.groups.rocketmq_coordinator import BY_TOOL
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.group_queues import GroupQueues
from headrace.doors.rocketmq.remoting.queues import Queue, dump_table, dump_with
from headrace.doors.rocketmq.topics import shape_of
from headrace.log.interface import Partition

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

NOW = -1


class ResetHandler:
    """Moves the positions of groups."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting
        self._groups = remoting.broker.groups.rocketmq
        self._queues = GroupQueues(remoting.broker)

    async def handle(self, call: Call) -> None:
        topic, group = call.text("topic"), call.text("group")
        await self._remoting.broker.rocketmq.load()
        partitions = await self._partitions(call)
        if self._remoting.group_settings(group) is None or not await self._is_known(group):
            raise ResponseError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        offsets = {each: await self._target(call, group, each) for each in partitions}
        name = self._remoting.settings.rocketmq_broker_name
        body = dump_with(
            {"offsetTable": dump_table({Queue(name, topic, each.index): at for each, at in offsets.items()})}
        )
        members = self._remoting.members(group)
        if not self._remoting.settings.rocketmq_server_side_reset:
            if not members:
                raise ResponseError(
                    Code.CONSUMER_NOT_ONLINE, f"no consumer of the group {group} is online, and they reset"
                )
            told = {field: call.text(field, "") for field in ("topic", "group", "timestamp", "isForce")}
            for member in members:
                member.request(Request.RESET_CONSUMER_CLIENT_OFFSET, told, body)
            call.answer(body=body)
            return
        resets = self._remoting.resets
        for each in resets.groups():
            if not self._remoting.members(each):
                resets.drop_group(each)
        for partition, offset in offsets.items():
            self._groups.move(group, partition.topic, partition.index, offset, BY_TOOL)
            if members:
                resets.put(group, partition, offset)
        await self._groups.settle(group)
        await self._queues.settle_position(topic, group)
        for member in members:
            member.wake_pulls()
        call.answer(body=body)

    async def _is_known(self, group: str) -> bool:
        return group in self._remoting.broker.rocketmq.groups or await self._groups.exists(group)

    async def _partitions(self, call: Call) -> Sequence[Partition]:
        """The queues whose position moves, loaded. Raises ResponseError."""
        name, queue_id = call.text("topic"), call.number("queueId", -1)
        topic = self._remoting.topics.existing(name)
        found = [self._remoting.topics.queue(name, queue_id)] if queue_id >= 0 else topic.partitions
        found = found[: max(shape_of(topic).read_queues, 1)]
        for partition in found:
            if not partition.loaded:
                await partition.load()
        return found

    async def _target(self, call: Call, group: str, partition: Partition) -> int:
        """Where a group shall go on in a queue. Raises ResponseError."""
        end = partition.last_stable
        offset, timestamp = call.number("offset", -1), call.number("timestamp", NOW)
        if offset >= 0:
            if not partition.start <= offset <= end:
                raise ResponseError(
                    Code.SYSTEM_ERROR,
                    f"Target offset {offset} not in consume queue range [{partition.start}-{end}]",
                )
            return offset
        if timestamp < 0:
            found = end
        else:
            at = await partition.offset_at(timestamp)
            found = end if at.offset < 0 else min(at.offset, end)
        if not call.flag("isForce"):
            # Only back, as by RocketMQ.
            position = await self._groups.position(group, partition.topic, partition.index)
            found = found if position is None else min(found, position)
        return found
