"""The client side of Kafka's wire protocol, made by hand: it hides nothing of what the broker answers.

Produce and Fetch are sent as old clients do and as new ones do: by topic name in fields of fixed places, by name with
flexible fields, by topic id. A client draws its versions; answers come back in one form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from headrace.client import wire
from headrace.client.connection import Connection, connect
from headrace.client.errors import ClientError
from headrace.client.messages import Request, request
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.format.markers import control_type
from simulation.history import Place, Record, require

if TYPE_CHECKING:
    from simulation.kafka.life import KafkaLife

HOST, PORT = "127.0.0.1", 9092
# No request may take longer, in virtual time: the slowest of disks and networks here answer within a second or two.
PATIENCE_S = 60.0
# What Kafka remembers of each producer, and so what may be in flight.
IN_FLIGHT = 5
PRODUCE_VERSIONS = (wire.PRODUCE_VERSION, wire.PRODUCE_VERSION, 9, 13)
FETCH_VERSIONS = (wire.FETCH_VERSION, wire.FETCH_VERSION, 12, 16)
TOPIC_IDS = 13

Answer = TypeVar("Answer")
Fetched = tuple[int, list[wire.Fetched], int]
"""The error, the partitions, the session."""


class Codec:
    """Produce and Fetch in one version each."""

    def __init__(
        self,
        produce: int = wire.PRODUCE_VERSION,
        fetch: int = wire.FETCH_VERSION,
        ids: dict[str, UUID] | None = None,
    ) -> None:
        self._produce_version = produce
        self._fetch_version = fetch
        self._ids = ids or {}
        self._names = {id: name for name, id in self._ids.items()}

    def produce(
        self,
        connection: Connection,
        batches: Iterable[tuple[Place, bytes]],
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> asyncio.Future[list[wire.Produced]]:
        def decode(reply: Any) -> list[wire.Produced]:
            return [
                wire.Produced(self._name(topic), each.index, int(each.error_code), each.base_offset, -1, -1, None)
                for topic in reply.responses
                for each in topic.partition_responses
            ]

        return _send(connection, self._produce_request(batches, acks, transactional_id), decode)

    def produce_unanswered(self, connection: Connection, batches: Iterable[tuple[Place, bytes]]) -> None:
        """Produce with acks=0."""
        body = (self._produce_request(batches, 0, None).encode(),)
        connection.send_unanswered(wire.PRODUCE, self._produce_version, body)

    def _produce_request(self, batches: Iterable[tuple[Place, bytes]], acks: int, transactional_id: str | None) -> Any:
        listed: dict[str, list[dict[str, Any]]] = {}
        for (topic, index), batch in batches:
            listed.setdefault(topic, []).append({"index": index, "records": batch})
        version = self._produce_version
        topics = [{**self._topic(version, name, "name"), "partition_data": each} for name, each in listed.items()]
        return request(
            "produce",
            version,
            transactional_id=transactional_id,
            acks=acks,
            timeout=int(PATIENCE_S * 1000),
            topic_data=topics,
        )

    def fetch(
        self,
        connection: Connection,
        wanted: Iterable[tuple[Place, int, int]],
        max_wait: int = 0,
        min_bytes: int = 1,
        session: tuple[int, int] = wire.NO_SESSION,
        committed: bool = False,
    ) -> asyncio.Future[Fetched]:
        """Ask for partitions, each from an offset on and up to a number of bytes. `session` is its id and epoch."""
        listed: dict[str, list[dict[str, Any]]] = {}
        for (topic, index), offset, max_bytes in wanted:
            listed.setdefault(topic, []).append(
                {"partition": index, "fetch_offset": offset, "partition_max_bytes": max_bytes}
            )
        version = self._fetch_version
        entity = request(
            "fetch",
            version,
            max_wait=max_wait,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            session_id=session[0],
            session_epoch=session[1],
            topics=[{**self._topic(version, name, "topic"), "partitions": each} for name, each in listed.items()],
        )

        def decode(reply: Any) -> Fetched:
            found = [
                wire.Fetched(
                    self._name(topic),
                    each.partition_index,
                    int(each.error_code),
                    each.high_watermark,
                    each.last_stable_offset,
                    each.log_start_offset,
                    [(one.producer_id, one.first_offset) for one in each.aborted_transactions or ()],
                    memoryview(each.records or b""),
                )
                for topic in reply.responses
                for each in topic.partitions
            ]
            return int(reply.error_code), found, reply.session_id

        return _send(connection, entity, decode)

    def _topic(self, version: int, name: str, field: str) -> dict[str, Any]:
        return {"topic_id": self._ids[name]} if version >= TOPIC_IDS else {field: name}

    def _name(self, topic: Any) -> str:
        if hasattr(topic, "topic_id"):
            return self._names[topic.topic_id]
        return str(topic.name if hasattr(topic, "name") else topic.topic)


def _send(connection: Connection, asked: Request, decode: Callable[[Any], Answer]) -> asyncio.Future[Answer]:
    return connection.send(
        asked.key,
        asked.version,
        (asked.encode(),),
        lambda payload: decode(asked.decode(payload)),
        PATIENCE_S,
    )


def sift(fetched: wire.Fetched, offset: int, committed: bool = False) -> tuple[list[Record], int]:
    """The records of a reply from `offset` on, and the offset behind the last whole batch.

    What is committed is sifted as Kafka's Java client does it, from the list of aborted transactions and the markers in
    the log, and not by the code of the client library, which may have the same mistake as the broker.
    """
    aborted = sorted(fetched.aborted, key=lambda each: each[1])
    skipped: set[int] = set()
    found: list[Record] = []
    following = offset
    for position, header in batches_in(fetched.records):
        while aborted and aborted[0][1] <= header.last_offset:
            skipped.add(aborted.pop(0)[0])
        following = max(following, header.last_offset + 1)
        batch = fetched.records[position : position + header.size]
        if header.is_control:
            if not control_type(batch)[0]:
                skipped.discard(header.producer_id)
            continue
        if committed and header.is_transactional and header.producer_id in skipped:
            continue
        for at, _, _, value, _ in records.parse(batch, 1 << 20):
            if at >= offset:
                found.append((at, (value or b"").decode().partition(" ")[0]))
    return found, following


class KafkaClient:
    """A client that goes on over as many connections as it takes."""

    def __init__(self, life: KafkaLife, name: str) -> None:
        self._life = life
        self._name = name
        self._rng = life.stream(f"caller {name}")
        self._connection: Connection | None = None

    async def connection(self) -> Connection:
        """The connection of now, or a new one."""
        while self._connection is None or self._connection.closed:
            try:
                self._connection = await connect(
                    HOST, PORT, client_id=self._name, timeout=PATIENCE_S, connect_timeout=PATIENCE_S
                )
            except ClientError as error:
                self._life.on_cut(self._name, error)
                await asyncio.sleep(self._rng.expovariate(1 / 0.01))
        return self._connection

    async def attempt(self, ask: Callable[[Connection], Awaitable[Answer]]) -> Answer | None:
        """Ask once; None where the connection broke before the answer."""
        connection = await self.connection()
        try:
            return await ask(connection)
        except ClientError as error:
            self._life.on_cut(self._name, error)
            return None

    async def call_once(self, api: str, version: int, **fields: Any) -> Any:
        """The answer to a request, None where the connection broke."""
        return await self.attempt(lambda connection: connection.call(request(api, version, **fields)))

    async def call(self, api: str, version: int, **fields: Any) -> Any:
        """Ask until there is an answer. Only for questions that may be asked twice."""
        while (reply := await self.call_once(api, version, **fields)) is None:
            pass
        return reply

    async def create_topic(self, name: str, partitions: int, config: dict[str, str]) -> ErrorCode:
        """Create a topic: `none`, or `topic_already_exists`, or what a failing disk may answer."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": -1,
            "configs": [{"name": key, "value": value} for key, value in config.items()],
        }
        while True:
            reply = await self.call("create_topics", 7, topics=[topic], timeout=30_000, validate_only=False)
            code = ErrorCode(reply.topics[0].error_code)
            if code in (ErrorCode.none, ErrorCode.topic_already_exists):
                return code
            require(self._life.may_retry(code), f"{name} could not be created: {code!r}")
            await asyncio.sleep(0.1)

    async def list_offset(self, place: Place, timestamp: int, committed: bool = False) -> int:
        """The offset at a time, or one of the two ends of a partition."""
        topics = [{"name": place[0], "partitions": [{"partition_index": place[1], "timestamp": timestamp}]}]
        reply = await self.call("list_offsets", 7, replica_id=-1, isolation_level=int(committed), topics=topics)
        [answer] = reply.topics[0].partitions
        require(not answer.error_code, f"{place}: no offsets: {answer.error_code!r}")
        return int(answer.offset)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
