"""RocketMQ's transactions on prepared messages (`broker/prepared`), for both of its protocols.

A prepared message has a physical offset as every message has: that of the place in `__half` where it was first stored.
It is durable, leads back to the message, and is never used again. Producers end a transaction by it, and are asked by
it. What is stored is the message as readers shall see it once it is committed; what a producer is asked about has the
marks of a prepared one again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from headrace.broker.broker import Broker
from headrace.broker.prepared import TOPIC, Check, id_of, parse_id
from headrace.broker.publish import Headers
from headrace.broker.security import Operation, Resource, Session
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.messages import (
    COMMITTED,
    PREPARED,
    ROLLED_BACK,
    TRANSACTION,
    Host,
    StoredMessage,
    read_properties,
)
from headrace.doors.rocketmq.names import rocketmq_name
from headrace.doors.rocketmq.records import message_of, write_bounded
from headrace.errors import StorageFailed
from headrace.log.interface import Topic

PRODUCER_GROUP = "PGROUP"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_PREPARED = "TRAN_MSG"
_DROPPED = frozenset((TRANSACTION_PREPARED, CHECK_TIMES))


class Outcome(IntEnum):
    """How a producer ends a transaction, by RocketMQ's number."""

    UNKNOWN = 0
    COMMIT = COMMITTED
    ROLL_BACK = ROLLED_BACK


@dataclass(frozen=True, slots=True)
class PreparedPlace:
    """Where a prepared message is."""

    physical_offset: int
    queue_offset: int
    """RocketMQ's place in the table of transactions."""


def strip_marks(properties: dict[str, str]) -> dict[str, str]:
    """The properties that readers of a committed message see."""
    return {name: value for name, value in properties.items() if name not in _DROPPED}


class Transactions:
    """Prepares messages and ends their transactions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._prepared = broker.prepared

    async def prepare(
        self,
        topic: Topic,
        queue_id: int,
        row: tuple[bytes | None, bytes | None, Headers],
        group: str,
        properties: dict[str, str],
        session: Session,
    ) -> PreparedPlace:
        """Store a message that no reader sees until it is committed. Raises what the broker raises."""
        key, value, headers = row
        # The place must have a number before the producer can be answered or asked.
        await self._prepared.load()
        await self._broker.rocketmq.number(self._half())
        id = await self._prepared.prepare(
            topic.name,
            value,
            group=group,
            key=key,
            headers=headers,
            partition=queue_id,
            timeout_ms=self._timeout_ms(properties.get(IMMUNITY_SECONDS, "")),
            session=session,
        )
        return await self.place(id)

    def _timeout_ms(self, seconds: str) -> int | None:
        """How long the producer is not asked; None: as configured."""
        if not (seconds.isascii() and seconds.isdecimal() and len(seconds) < 10 and int(seconds)):
            return None
        return min(int(seconds) * 1_000, self._broker.config.half_timeout_max_ms)

    async def place(self, id: str) -> PreparedPlace:
        """Where the message of an id is. Raises StorageFailed."""
        half, number = self._half(), parse_id(id)
        await self._broker.rocketmq.number(half)
        physical = self._broker.rocketmq.offsets.encode(half.id, 0, number)
        if physical is None:
            raise StorageFailed(f"the prepared message {id} has no physical offset")
        return PreparedPlace(physical, number)

    async def end(
        self, session: Session, physical_offset: int, group: str, outcome: Outcome, queue_offset: int = -1
    ) -> None:
        """Commit a message, or roll it back; an unknown outcome leaves it to check-back. `queue_offset` must be the
        message's, where it is given. Raises ResponseError, UnknownHalf,
        HalfDecided (by the other outcome, or by time) or an AppendRefused."""
        await self._broker.rocketmq.load()
        found = self._broker.rocketmq.offsets.decode(physical_offset)
        half = self._broker.topics.get(TOPIC)
        if found is None or half is None or found[0] != half.id:
            raise ResponseError(Code.SYSTEM_ERROR, f"there is no prepared message at the offset {physical_offset}")
        if queue_offset not in (-1, found[2]):
            raise ResponseError(
                Code.SYSTEM_ERROR,
                f"the transaction state table offset wrong: {found[2]} is expected, not {queue_offset}",
            )
        id = id_of(half.id, found[2])
        status = await self._prepared.find(id)
        if status.topic:
            self._broker.security.check(session, Operation.WRITE, Resource.TOPIC, status.topic)
        if status.group and status.group != group:
            raise ResponseError(
                Code.SYSTEM_ERROR,
                f"the prepared message is one of the producer group {status.group}, and {group[:80]!r} cannot end it",
            )
        if outcome is Outcome.COMMIT:
            await self._prepared.commit(id)
        elif outcome is Outcome.ROLL_BACK:
            await self._prepared.rollback(id)

    def message(self, check: Check, place: PreparedPlace, store_host: Host) -> StoredMessage:
        """The message that a producer is asked about."""
        message = check.message
        headers = list(message.headers)
        record = (place.queue_offset, message.prepared_ms, message.key, message.value, headers)
        topic = rocketmq_name(message.topic) or message.topic
        found = message_of(record, topic, max(message.partition, 0), place.physical_offset, store_host)
        properties = {
            PRODUCER_GROUP: message.group,
            TRANSACTION_PREPARED: "true",
            CHECK_TIMES: str(check.checks),
            # The last of them are left out where there is no room.
            **read_properties(found.properties),
        }
        return replace(found, properties=write_bounded(properties), sys_flag=found.sys_flag & ~TRANSACTION | PREPARED)

    def _half(self) -> Topic:
        half = self._broker.topics.get(TOPIC)
        if half is None:
            raise StorageFailed(f"there is no topic {TOPIC}: try again")
        return half
