"""Administration of topics: UPDATE_AND_CREATE_TOPIC (17) and its list (18), DELETE_TOPIC_IN_BROKER (215),
GET_ALL_TOPIC_CONFIG (21), GET_TOPIC_CONFIG (351), GET_TOPIC_STATS_INFO (202), GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.broker.security import Operation, Resource
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.frames import dump, load
from headrace.doors.rocketmq.names import DEFAULT_TOPIC, log_name
from headrace.doors.rocketmq.remoting.handlers.clients import read_objects, read_text
from headrace.doors.rocketmq.remoting.paging import describe_version, page
from headrace.doors.rocketmq.remoting.queues import Queue, dump_table, dump_with
from headrace.doors.rocketmq.remoting.rates import Rates
from headrace.doors.rocketmq.remoting.reader import QueueReader
from headrace.doors.rocketmq.topics import (
    ANY_TYPE,
    INDEXED,
    MESSAGE_TYPE,
    PERM,
    READ,
    READ_QUEUES,
    RETRY_SHAPE,
    WRITE,
    WRITE_QUEUES,
    TopicShape,
    shape_of,
)
from headrace.log.interface import Partition

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

TYPE_ATTRIBUTE = "message.type"
# Of one request.
TOPICS_MAX = 10_000
_NUMBERS = {"readQueueNums": 16, "writeQueueNums": 16, "perm": READ | WRITE}


class TopicHandlers:
    """Makes, changes, describes and deletes topics."""

    def __init__(self, remoting: Remoting, rates: Rates) -> None:
        self._remoting = remoting
        self._topics = remoting.broker.topics
        self._reader = QueueReader(remoting)
        self._rates = rates

    async def update(self, call: Call) -> None:
        """UPDATE_AND_CREATE_TOPIC."""
        read, write = call.number("readQueueNums"), call.number("writeQueueNums")
        attributes = _read_attributes(call.text("attributes", ""))
        await self._update(call, call.text("topic"), read, write, call.number("perm", READ | WRITE), attributes)
        call.answer()

    async def update_list(self, call: Call) -> None:
        """UPDATE_AND_CREATE_TOPIC_LIST: one after the other, up to one that makes no sense."""
        for each in read_objects(load(call.request.body), "topicConfigList", TOPICS_MAX):
            numbers = [each.get(name, default) for name, default in _NUMBERS.items()]
            if not all(type(number) is int for number in numbers):
                raise ResponseError(
                    Code.INVALID_PARAMETER, f"{', '.join(_NUMBERS)} must be numbers (got {numbers!r:.200})"
                )
            given = each.get("attributes")
            text = ",".join(f"{name}={value}" for name, value in given.items()) if isinstance(given, dict) else ""
            read, write, perm = numbers
            await self._update(call, read_text(each, "topicName"), read, write, perm, _read_attributes(text))
        call.answer()

    async def _update(
        self, call: Call, topic_name: str, read: int, write: int, perm: int, attributes: Mapping[str, str | None]
    ) -> None:
        """Make or change a topic. Partitions never shrink: those beyond the counts are drained, or not read."""
        name = log_name(topic_name)
        if read < 1 or write < 1 or not 0 <= perm <= 7:
            raise ResponseError(
                Code.INVALID_PARAMETER,
                f"a topic has queues and a permission of 0 to 7 (got readQueueNums {read}, writeQueueNums {write}, "
                f"perm {perm})",
            )
        own = {READ_QUEUES: str(read), WRITE_QUEUES: str(write), PERM: str(perm)}

        def change(before: Mapping[str, str]) -> Mapping[str, str]:
            after = {**before, **own, **attributes}
            return {name: value for name, value in after.items() if value is not None}

        count = max(read, write)
        topic = self._topics.get(name)
        _check_update(call, name, is_there=topic is not None)
        session, quotas = call.connection.session, self._remoting.broker.quotas
        quotas.take_mutate(session, max(0, count - (0 if topic is None else len(topic.partitions))))
        if topic is None:
            topic = await self._topics.open(name, count, change(INDEXED), session=session)
        if len(topic.partitions) < count:
            topic = await self._topics.grow(name, count, session)
        if change(topic.config) != topic.config:
            await self._topics.alter_config(name, change, session)

    async def delete(self, call: Call) -> None:
        """DELETE_TOPIC_IN_BROKER: also where there is none, as by RocketMQ."""
        topic = self._topics.get(log_name(call.text("topic")))
        if topic is not None:
            session = call.connection.session
            self._remoting.broker.quotas.take_mutate(session, len(topic.partitions))
            await self._topics.delete(topic.name, topic, session=session)
        call.answer()

    # --- what there is ------------------------------------------------------------------------------------------------

    async def list(self, call: Call) -> None:
        """GET_ALL_TOPIC_CONFIG."""
        names = sorted(await self._remoting.topics.all_names())
        shapes = ((name, self._remoting.topics.shape(name)) for name in page(call, names, "topicSeq", "maxTopicNum"))
        table = {name: _describe(name, shape or RETRY_SHAPE) for name, shape in shapes}
        version = describe_version(self._remoting.broker)
        body = {
            "dataVersion": version,
            "mappingDataVersion": version,
            "topicConfigTable": table,
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
        written = await self._remoting.broker.runtime.offload.run(dump, body)
        call.answer(fields={"totalTopicNum": str(len(names))}, body=written)

    def describe(self, call: Call) -> None:
        """GET_TOPIC_CONFIG."""
        name = call.text("topic")
        shape = self._remoting.topics.shape(name)
        if shape is None:
            raise ResponseError(Code.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        call.answer(body=dump(_describe(name, shape)))

    async def stats(self, call: Call) -> None:
        """GET_TOPIC_STATS_INFO: the offsets of each queue, and the time of its last message."""
        name = call.text("topic")
        table: dict[Queue, object] = {}
        total = 0
        if self._remoting.topics.find(name) is None and self._remoting.topics.is_expected(name):
            partitions: Sequence[Partition] = ()
        else:
            topic = self._remoting.topics.existing(name)
            shape = shape_of(topic)
            partitions = topic.partitions[: max(shape.read_queues, shape.write_queues)]
        for partition in partitions:
            if not partition.loaded:
                await partition.load()
            start, end = partition.start, partition.last_stable
            last = await self._reader.at(partition, end - 1) if start < end else None
            table[Queue(self._remoting.settings.rocketmq_broker_name, name, partition.index)] = {
                "lastUpdateTimestamp": 0 if last is None else last[1],
                "maxOffset": end,
                "minOffset": start,
            }
            total += end
        rate = self._rates.look(f"topic {name}", total)
        call.answer(body=dump_with({"offsetTable": dump_table(table), "topicPutTps": dump(rate)}))

    def system(self, call: Call) -> None:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
        settings = self._remoting.settings
        names = sorted((settings.rocketmq_cluster, settings.rocketmq_broker_name, DEFAULT_TOPIC))
        call.answer(body=dump({"topicList": names}))


def _read_attributes(text: str) -> dict[str, str | None]:
    """The settings that attributes stand for: `+NAME=VALUE` sets one, `-NAME` takes it back. Raises ResponseError."""
    found: dict[str, str | None] = {}
    for each in filter(None, text.split(",")):
        name, _, value = each[1:].partition("=")
        if each[0] not in "+-" or name != TYPE_ATTRIBUTE:
            raise ResponseError(
                Code.INVALID_PARAMETER,
                f"{each[:80]!r} cannot be changed. Give +{TYPE_ATTRIBUTE}=TYPE or -{TYPE_ATTRIBUTE}",
            )
        found[MESSAGE_TYPE] = value if each[0] == "+" else None
    return found


def _describe(name: str, shape: TopicShape) -> dict[str, object]:
    return {
        "attributes": {} if shape.message_type == ANY_TYPE else {TYPE_ATTRIBUTE: shape.message_type},
        "order": False,
        "perm": shape.perm,
        "readQueueNums": shape.read_queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": shape.write_queues,
    }


def _check_update(call: Call, name: str, *, is_there: bool) -> None:
    """Raise NotAuthorized unless the client may make the topic, or change it where it is there. Who may do neither is
    told the same of both."""
    security, session = call.connection.door.broker.security, call.connection.session
    if not is_there:
        security.check_create(session, name)
        return
    if not security.visible(session, Resource.TOPIC, [name]):
        security.check_create(session, name)
    call.check(Operation.ALTER, Resource.TOPIC, name)
    call.check(Operation.ALTER_CONFIGS, Resource.TOPIC, name)
