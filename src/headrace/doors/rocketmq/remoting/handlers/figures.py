"""The broker as an administrator sees it: GET_BROKER_RUNTIME_INFO (28), VIEW_BROKER_STATS_DATA (315), GET_BROKER_CONFIG
(26) and UPDATE_BROKER_CONFIG (25).

Figures come from what the broker has anyway: offsets, their times, and counters. Messages of the last minute, hour and
day are counted by the time index; rates are those between two looks (`rates.py`). What RocketMQ has and Headrace has
not (thread pools, a timer wheel that lags) is 0, because its tools need the names.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from typing import TYPE_CHECKING

from headrace.broker.dynamic_config import DYNAMIC, Scope
from headrace.broker.topic_config import SETTINGS
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.frames import dump
from headrace.doors.rocketmq.names import rocketmq_name
from headrace.doors.rocketmq.remoting.paging import describe_version
from headrace.doors.rocketmq.remoting.rates import Rates
from headrace.doors.rocketmq.remoting.reader import QueueReader
from headrace.doors.rocketmq.topics import READ, WRITE
from headrace.errors import InvalidBrokerConfig
from headrace.log.interface import Topic

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
# Topics that are added up before the loop has its turn.
STEP_TOPICS = 500
# Queues whose first message is looked at for the oldest of all.
EARLIEST_QUEUES = 64
CONFIG_BYTES_MAX = 65_536
# The version of RocketMQ that answers name, in words.
VERSION_NAME = "V5_5_0"
TOPIC_PUT_NUMS, GROUP_GET_NUMS = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS"
# RocketMQ's settings that have a counterpart which can change while the broker runs.
RESERVED_HOURS, RETENTION_MS = "fileReservedTime", "log.retention.ms"
_ABSENT = (
    *("sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "queryThreadPoolQueueSize", "ackThreadPoolQueueSize"),
    *("sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills"),
    *("queryThreadPoolQueueHeadWaitTimeMills", "ackThreadPoolQueueHeadWaitTimeMills", "dispatchBehindBytes"),
    *("timerReadBehind", "timerOffsetBehind", "EndTransactionQueueSize"),
)


class FigureHandlers:
    """Describes the broker."""

    def __init__(self, remoting: Remoting, rates: Rates) -> None:
        self._remoting = remoting
        self._broker = remoting.broker
        self._reader = QueueReader(remoting)
        self._rates = rates
        self._started_ms = self._broker.runtime.clock.now_ms()
        # What there was at the start, and when it was first looked at: groups are read as they are needed.
        self._put_before = sum(map(_count, self._broker.topics.all.values()))
        self._consumed_before: int | None = None

    async def runtime(self, call: Call) -> None:
        """GET_BROKER_RUNTIME_INFO."""
        broker = self._broker
        put, consumed = await self._put(), sum(each[3] for each in broker.groups.committed_offsets())
        if self._consumed_before is None:
            self._consumed_before = consumed
        free, used = broker.runtime.disk.free_bytes(), sum(each.bytes_in for each in broker.metrics.topics.values())
        timer = broker.timer
        seconds = (broker.runtime.clock.now_ms() - self._started_ms) // 1000
        days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
        put_rate, get_rate = self._rates.look("put", put), self._rates.look("consumed", consumed)
        table = {
            **dict.fromkeys(_ABSENT, "0"),
            "bootTimestamp": str(self._started_ms),
            "brokerActive": "true",
            "brokerVersion": str(call.request.version),
            "brokerVersionDesc": VERSION_NAME,
            "commitLogDirCapacity": f"Free : {free / (1 << 30):.1f} GiB.",
            "commitLogDiskRatio": "0.0",
            "consumeQueueDiskRatio": "0.0",
            "earliestMessageTimeStamp": str(await self._earliest()),
            "getTransferredTps": f"{get_rate} {get_rate} {get_rate}",
            "getFoundTps": f"{get_rate} {get_rate} {get_rate}",
            "getTotalTps": f"{get_rate} {get_rate} {get_rate}",
            "msgGetTotalTodayMorning": str(self._consumed_before),
            "msgGetTotalTodayNow": str(consumed),
            "msgGetTotalYesterdayMorning": str(self._consumed_before),
            "msgPutTotalTodayMorning": str(self._put_before),
            "msgPutTotalTodayNow": str(put),
            "msgPutTotalYesterdayMorning": str(self._put_before),
            "putMessageSizeTotal": str(used),
            "putMessageTimesTotal": str(put),
            "putTps": f"{put_rate} {put_rate} {put_rate}",
            "remainHowManyDataToFlush": "0 B",
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]",
            "timerCongestNum": str(timer.scheduled - timer.dispatcher.fired - timer.waiting.cancelled),
            "timerEnqueueTps": str(self._rates.look("scheduled", timer.scheduled)),
            "timerDequeueTps": str(self._rates.look("fired", timer.dispatcher.fired)),
        }
        call.answer(body=dump({"table": table}))

    async def _put(self) -> int:
        """The messages that all topics ever took."""
        total = 0
        for count, topic in enumerate(list(self._broker.topics.all.values()), 1):
            total += _count(topic)
            if count % STEP_TOPICS == 0:
                await asyncio.sleep(0)
        return total

    async def _earliest(self) -> int:
        """When the oldest message was stored, of the first queues that are in use; -1 where there is none."""
        in_use = (
            partition
            for topic in list(self._broker.topics.all.values())
            if rocketmq_name(topic.name) is not None
            for partition in topic.partitions
            if partition.loaded and partition.start < partition.last_stable
        )
        times = []
        for partition in itertools.islice(in_use, EARLIEST_QUEUES):
            record = await self._reader.at(partition, partition.start)
            if record is not None:
                times.append(record[1])
        return min(times, default=-1)

    async def stats(self, call: Call) -> None:
        """VIEW_BROKER_STATS_DATA."""
        name, key = call.text("statsName"), call.text("statsKey")
        if name == TOPIC_PUT_NUMS and (topic := self._remoting.topics.find(key)) is not None:
            windows = [(window, await self._arrived(topic, window)) for window in (MINUTE_MS, HOUR_MS, DAY_MS)]
        elif name == GROUP_GET_NUMS and (consumed := await self._consumed(key)) is not None:
            rate = self._rates.look(f"get {key}", consumed)
            windows = [(MINUTE_MS, round(rate * MINUTE_MS / 1000)), (HOUR_MS, 0), (DAY_MS, 0)]
        else:
            raise ResponseError(Code.SYSTEM_ERROR, f"The stats <{name[:80]}> <{key[:300]}> do not exist")
        parts = ("statsMinute", "statsHour", "statsDay")
        call.answer(
            body=dump(
                {
                    part: {"avgpt": 0.0, "sum": count, "tps": count * 1000 / window}
                    for part, (window, count) in zip(parts, windows, strict=True)
                }
            )
        )

    async def _arrived(self, topic: Topic, window_ms: int) -> int:
        """How many messages a topic took in the last time, as far as it still has them."""
        since = self._broker.runtime.clock.now_ms() - window_ms
        total = 0
        for partition in topic.partitions:
            if not partition.loaded:
                await partition.load()
            found = await partition.offset_at(since)
            total += partition.end - found.offset if found.offset >= 0 else 0
        return total

    async def _consumed(self, key: str) -> int | None:
        """The sum of a group's positions in a topic, by `topic@group`; None where it has none."""
        name, _, group = key.partition("@")
        topic = self._remoting.topics.find(name)
        if topic is None:
            return None
        _, committed = await self._broker.groups.committed(group, {topic.name: range(len(topic.partitions))})
        found = [each.offset for each in committed.get(topic.name, {}).values() if each is not None]
        return sum(found) if found else None

    # --- configuration ------------------------------------------------------------------------------------------------

    def config(self, call: Call) -> None:
        """GET_BROKER_CONFIG: what RocketMQ's settings would be, and those of the door by their own names."""
        settings, broker = self._remoting.settings, self._broker
        address = self._remoting.own_address(call.connection)
        retention_ms = int(self._default("retention.ms"))
        values: dict[str, object] = {
            "autoCreateSubscriptionGroup": settings.rocketmq_auto_create_groups,
            "autoCreateTopicEnable": broker.config.auto_create_topics,
            "brokerClusterName": settings.rocketmq_cluster,
            "brokerIP1": address.rpartition(":")[0],
            "brokerId": 0,
            "brokerName": settings.rocketmq_broker_name,
            "brokerPermission": READ | WRITE,
            "brokerRole": "ASYNC_MASTER",
            "defaultTopicQueueNums": settings.rocketmq_topic_queues,
            RESERVED_HOURS: retention_ms // HOUR_MS if retention_ms >= 0 else -1,
            "flushDiskType": "SYNC_FLUSH" if self._default("durability") == "sync" else "ASYNC_FLUSH",
            "listenPort": self._remoting.presence.port,
            "maxMessageSize": settings.rocketmq_max_message_size,
            "messageDelayLevel": settings.rocketmq_delay_levels,
            "useServerSideResetOffset": settings.rocketmq_server_side_reset,
        }
        values |= {
            name: getattr(settings, name)
            for name in sorted(each.name for each in dataclasses.fields(settings))
            if name.startswith("rocketmq")
        }
        text = "".join(f"{name}={_write(value)}\n" for name, value in sorted(values.items()))
        call.answer(fields={"version": dump(describe_version(broker)).decode()}, body=text.encode())

    def _default(self, name: str) -> str:
        """The value that topics without one of their own have."""
        dynamic, setting = self._broker.dynamic, SETTINGS[name]
        set_now = {**dynamic.of(Scope.BROKER, ""), **dynamic.of(Scope.BROKER, str(self._broker.node_id))}
        return set_now.get(setting.broker_name or "", setting.default_in(self._broker.config))

    async def update_config(self, call: Call) -> None:
        """UPDATE_BROKER_CONFIG: durably, of what can change while the broker runs."""
        body = call.request.body
        if len(body) > CONFIG_BYTES_MAX:
            raise ResponseError(Code.INVALID_PARAMETER, f"a configuration has at most {CONFIG_BYTES_MAX} bytes")
        given = _parse_properties(body)
        unknown = [name for name in given if name != RESERVED_HOURS and name not in DYNAMIC]
        if unknown:
            raise InvalidBrokerConfig(
                f"cannot be changed while the broker runs: {', '.join(unknown)[:200]}. Set them where it is started."
            )
        hours = given.pop(RESERVED_HOURS, None)
        if hours is not None:
            if not hours.isdecimal() or len(hours) > 9:
                raise ResponseError(
                    Code.INVALID_PARAMETER, f"{RESERVED_HOURS} must be a number of hours (got {hours[:40]!r})"
                )
            given[RETENTION_MS] = str(int(hours) * HOUR_MS)
        session = call.connection.session
        await self._broker.dynamic.alter(Scope.BROKER, "", lambda before: {**before, **given}, session=session)
        call.answer()


def _count(topic: Topic) -> int:
    """The messages that a topic ever took, if RocketMQ's clients see it."""
    return sum(partition.end for partition in topic.partitions) if rocketmq_name(topic.name) is not None else 0


def _write(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_properties(body: bytes) -> dict[str, str]:
    """The pairs of a Java properties file without escapes. Raises ResponseError."""
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError:
        raise ResponseError(Code.INVALID_PARAMETER, "a configuration is text in UTF-8") from None
    pairs = (line.partition("=") for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}
