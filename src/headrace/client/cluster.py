"""The brokers of a cluster, the leaders of its partitions, and requests to the broker that has the answer.

One idea: metadata may be stale at any time. Every request that depends on it goes through `retrying`, which on a
retriable error invalidates the leaders or the coordinator, backs off, and retries until its timeout.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from headrace.client import lookups
from headrace.client.connection import Connection, connect
from headrace.client.credentials import Credentials
from headrace.client.errors import (
    AuthenticationError,
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectionLost,
    check,
    error_code,
)
from headrace.client.lookups import TopicState
from headrace.client.messages import Request, request
from headrace.client.sasl import offered_mechanisms
from headrace.format.error_codes import ErrorCode

T = TypeVar("T")
Partition = tuple[str, int]

FIND_COORDINATOR_VERSION = 4
GROUP, TRANSACTION = 0, 1
COORDINATED = ("group", "transactional id")

PORT_MAX = 65_535

BACKOFF_FIRST = 0.05
BACKOFF_TRANSACTION = 0.005
BACKOFF_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Node:
    """A broker of the cluster."""

    id: int
    host: str
    port: int


class Cluster:
    """Connections and metadata, shared by everything that talks to one cluster."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        client_id: str | None = "headrace",
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
    ) -> None:
        self._bootstrap = [_address(each) for each in _split_addresses(bootstrap)]
        self._tls = tls
        self._credentials = credentials
        self._client_id = client_id
        self.timeout = timeout
        """Seconds after which an unanswered request fails."""
        self.patience = timeout
        """Seconds for which retriable errors are retried."""
        self.watch: Callable[[ConnectionLost | None], None] | None = None
        """Called with the error when no broker can be reached, on each attempt, and with None when one is."""
        self._connect_timeout = connect_timeout
        self.nodes: dict[int, Node] = {}
        self.cluster_id: str | None = None
        self._controller = -1
        self._topics: dict[str, TopicState] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._connections: dict[tuple[str, int, str], Connection] = {}
        self._connecting: dict[tuple[str, int, str], asyncio.Task[Connection]] = {}
        self._closed = False

    async def close(self) -> None:
        """Close all connections. What is in flight fails."""
        self._closed = True
        for task in self._connecting.values():
            task.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        # The transports close in the next turn of the loop.
        await asyncio.sleep(0)

    # --- the way to a broker ---

    async def any_node(self) -> Connection:
        """A connection to some broker that answers."""
        places = [(node.host, node.port) for node in self.nodes.values()]
        for place in places:
            held = self._connections.get((*place, ""))
            if held is not None and not held.closed:
                return held
        failures = []
        for host, port in dict.fromkeys((*places, *self._bootstrap)):
            try:
                found = await self._connect(host, port, "")
            except ConnectionLost as error:
                failures.append(str(error))
                continue
            if self.watch is not None:
                self.watch(None)
            return found
        lost = ConnectionLost("; ".join(failures))
        if self.watch is not None:
            self.watch(lost)
        raise lost

    async def node(self, node_id: int, channel: str = "") -> Connection:
        """A connection to one broker. A broker answers the requests of a connection one after the other: what may wait
        at the broker (a long poll) goes through a channel of its own."""
        if node_id not in self.nodes:
            await self.refresh(())
        node = self.nodes.get(node_id)
        if node is None:
            raise BrokerError(ErrorCode.broker_not_available, f"broker {node_id}", "metadata does not name it")
        return await self._connect(node.host, node.port, channel)

    async def controller(self) -> Connection:
        """A connection to the broker that takes changes to topics."""
        if self._controller not in self.nodes:
            await self.refresh(())
        return await (self.node(self._controller) if self._controller in self.nodes else self.any_node())

    async def coordinator(self, key: str, kind: int = GROUP) -> Connection:
        """A connection to the coordinator of a group, or (TRANSACTION) of a transactional id."""
        node_id = self._coordinators.get((kind, key))
        if node_id is None:
            asked = request("find_coordinator", FIND_COORDINATOR_VERSION, key_type=kind, coordinator_keys=[key])
            [found] = (await (await self.any_node()).call(asked)).coordinators
            check(found.error_code, f"the coordinator of {COORDINATED[kind]} {key}", found.error_message)
            node_id = int(found.node_id)
            self.nodes[node_id] = Node(node_id, found.host, int(found.port))
            self._coordinators[kind, key] = node_id
        return await self.node(node_id)

    async def _connect(self, host: str, port: int, channel: str) -> Connection:
        if self._closed:
            raise ClientClosed("the client is closed")
        key = (host, port, channel)
        held = self._connections.get(key)
        if held is not None and not held.closed:
            return held
        task = self._connecting.get(key)
        if task is None:
            task = asyncio.create_task(self._open(key))
            self._connecting[key] = task
            task.add_done_callback(lambda _: self._connecting.pop(key, None))
        # Several callers may wait for one connection: one that gives up must not take it from the others.
        return await asyncio.shield(task)

    async def _open(self, key: tuple[str, int, str]) -> Connection:
        connection = await self._dial(*key[:2])
        if self._closed:
            connection.close()
            raise ClientClosed("the client is closed")
        self._connections[key] = connection
        return connection

    async def _dial(self, host: str, port: int) -> Connection:
        return await connect(
            host,
            port,
            tls=self._tls,
            credentials=self._credentials,
            client_id=self._client_id,
            connect_timeout=self._connect_timeout,
            timeout=self.timeout,
        )

    async def _check_anonymous(self, connection: Connection) -> None:
        """Raise AuthenticationError where a broker may have hung up because the client does not show who it is."""
        if self._credentials is not None:
            return
        try:
            asked = await self._dial(*_address(connection.address))
            try:
                mechanisms = await offered_mechanisms(asked)
            finally:
                asked.close()
        except ClientError:
            return
        if mechanisms:
            raise AuthenticationError(
                f"{connection.address} wants authentication ({', '.join(mechanisms)}). Give a user and a password "
                "(--user, --password-file), or a token (--token-file)."
            )

    # --- metadata ---

    async def refresh(
        self, topics: Iterable[str] | None, *, create: bool = False
    ) -> dict[str, TopicState | BrokerError]:
        """Fetch metadata of these topics, or (None) of all. The state of each, or its error."""
        connection = await self.any_node()
        connection.require(lookups.METADATA, lookups.METADATA_VERSION)
        try:
            reply = await connection.send(
                lookups.METADATA,
                lookups.METADATA_VERSION,
                lookups.encode_metadata(topics, create),
                lookups.decode_metadata,
            )
        except ConnectionLost:
            await self._check_anonymous(connection)
            raise
        self.nodes = {node: Node(node, host, port) for node, host, port in reply.brokers}
        self.cluster_id = reply.cluster_id
        self._controller = reply.controller
        found: dict[str, TopicState | BrokerError] = {}
        for error, topic in reply.topics:
            if error:
                self._topics.pop(topic.name, None)
                found[topic.name] = BrokerError(error_code(error), f"topic {topic.name}")
            else:
                self._topics[topic.name] = found[topic.name] = topic
        return found

    async def topic(self, name: str, *, create: bool = False) -> TopicState:
        """A topic, from the cache or from a broker, which with `create` creates it if it does that on demand."""
        known = self._topics.get(name)
        if known is not None:
            return known

        async def ask() -> TopicState:
            found = (await self.refresh([name], create=create)).get(name)
            if isinstance(found, TopicState):
                return found
            raise found or BrokerError(ErrorCode.unknown_topic_or_partition, f"topic {name}")

        def worth_it(error: ClientError) -> bool:
            # Kafka calls an unknown topic retriable, for topics that are being created. Without `create` it is a
            # mistyped name.
            unknown = isinstance(error, BrokerError) and error.error is ErrorCode.unknown_topic_or_partition
            return error.retriable and (create or not unknown)

        try:
            return await self.retry(ask, worth_it)
        except BrokerError as error:
            raise BrokerError(error.error, f"topic {name}", retriable=False) from None

    async def topics(self) -> list[TopicState]:
        """All topics, from a broker."""
        found = await self.retry(lambda: self.refresh(None))
        return sorted((each for each in found.values() if isinstance(each, TopicState)), key=lambda each: each.name)

    async def leader(self, topic: str, partition: int) -> int:
        """The node id of a partition's leader."""
        partitions = (await self.topic(topic)).partitions
        if not 0 <= partition < len(partitions):
            self.forget([topic])
            raise BrokerError(
                ErrorCode.unknown_topic_or_partition,
                f"{topic}-{partition}",
                f"the topic has {len(partitions)} partitions",
                retriable=False,
            )
        leader = partitions[partition].leader
        if leader < 0:
            self.forget([topic])
            raise BrokerError(ErrorCode.leader_not_available, f"{topic}-{partition}")
        return leader

    def known_leader(self, topic: str, partition: int) -> int | None:
        """The leader in the cache, or None."""
        known = self._topics.get(topic)
        if known is None or partition >= len(known.partitions) or known.partitions[partition].leader < 0:
            return None
        return known.partitions[partition].leader

    async def by_leader(self, partitions: Iterable[Partition]) -> dict[int, list[Partition]]:
        """The partitions under the node ids of their leaders."""
        found: dict[int, list[Partition]] = {}
        for topic, partition in partitions:
            found.setdefault(await self.leader(topic, partition), []).append((topic, partition))
        return found

    def forget(self, topics: Iterable[str] = (), group: str | None = None, transaction: str | None = None) -> None:
        """Drop the cached leaders of these topics, and the coordinators of this group and this transactional id."""
        for topic in topics:
            self._topics.pop(topic, None)
        if group is not None:
            self._coordinators.pop((GROUP, group), None)
        if transaction is not None:
            self._coordinators.pop((TRANSACTION, transaction), None)

    # --- requests, with retries ---

    async def retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        worth_it: Callable[[ClientError], bool] = lambda error: error.retriable,
        *,
        topics: Iterable[str] = (),
        group: str | None = None,
        transaction: str | None = None,
    ) -> T:
        """Call `attempt` until it succeeds, fails for good, or `patience` is over."""
        until = asyncio.get_running_loop().time() + self.patience
        # The markers of the last transaction are written in milliseconds; a move of a coordinator takes longer.
        for delay in backoff(BACKOFF_FIRST if transaction is None else BACKOFF_TRANSACTION):
            try:
                return await attempt()
            except ClientError as error:
                if self._closed or not worth_it(error) or asyncio.get_running_loop().time() + delay > until:
                    raise
                if not (isinstance(error, BrokerError) and error.error is ErrorCode.concurrent_transactions):
                    self.forget(topics, group, transaction)
            await asyncio.sleep(delay)
        raise AssertionError("backoff ended")

    async def call(self, asked: Request) -> Any:
        """Send a request to any broker."""

        async def attempt() -> Any:
            return await (await self.any_node()).call(asked)

        return await self.retry(attempt)

    async def call_controller(self, asked: Request) -> Any:
        async def attempt() -> Any:
            reply = await (await self.controller()).call(asked)
            if _has_error(reply, ErrorCode.not_controller):
                # Another one is by now: metadata says which.
                self._controller = -1
                raise BrokerError(ErrorCode.not_controller, "the controller")
            return reply

        return await self.retry(attempt)

    async def call_coordinator(self, key: str, asked: Request, error: Callable[[Any], int], kind: int = GROUP) -> Any:
        """Send a request to the coordinator of a group, or (TRANSACTION) of a transactional id. `error` takes the code
        out of the reply."""

        async def attempt() -> Any:
            reply = await (await self.coordinator(key, kind)).call(asked)
            check(error(reply), f"{COORDINATED[kind]} {key}")
            return reply

        if kind == TRANSACTION:
            return await self.retry(attempt, transaction=key)
        return await self.retry(attempt, group=key)

    async def call_all(self, asked: Request | Callable[[Connection], Request]) -> list[Any]:
        """Send a request, or what `asked` makes for each connection, to all brokers."""

        async def attempt() -> list[Any]:
            await self.refresh(())
            connections = [await self.node(node_id) for node_id in self.nodes]
            return await asyncio.gather(*(each.call(asked(each) if callable(asked) else asked) for each in connections))

        return await self.retry(attempt)

    async def ask_leaders(
        self, partitions: Iterable[Partition], ask: Callable[[Connection, list[Partition]], Awaitable[None]]
    ) -> None:
        """Call `ask` for each leader with its partitions; for all again where one has moved."""
        wanted = list(partitions)

        async def attempt() -> None:
            for node_id, led in (await self.by_leader(wanted)).items():
                await ask(await self.node(node_id), led)

        await self.retry(attempt, topics={topic for topic, _ in wanted})


def backoff(first: float = BACKOFF_FIRST) -> Iterable[float]:
    """Exponential delays with a jitter of a fifth, so that many clients do not reconnect at once."""
    delay = first
    while True:
        yield delay * random.uniform(0.8, 1.2)
        delay = min(2 * delay, BACKOFF_MAX)


def _split_addresses(bootstrap: str | Sequence[str]) -> list[str]:
    each = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    listed = [text.strip() for text in each if text.strip()]
    if not listed:
        raise ClientError("no address of a broker is given. Use HOST:PORT, several separated by commas.")
    return listed


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5 or not 0 < int(port) <= PORT_MAX:
        raise ClientError(f"{text!r} is not HOST:PORT with a port from 1 to {PORT_MAX}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ClientError(f"{text!r}: put an IPv6 address in brackets, as in [::1]:9092")
    if not host.isprintable() or " " in host:
        raise ClientError(f"{text!r} is not HOST:PORT: no host can have this name")
    return host.strip("[]"), int(port)


def _has_error(reply: Any, error: ErrorCode) -> bool:
    """Whether a reply has this error, as a whole or with one of the things that were asked about."""
    values = [getattr(reply, each.name) for each in fields(reply)]
    inner = [each for value in values if isinstance(value, tuple) for each in value]
    return error in values or any(getattr(each, "error_code", None) == error for each in inner)
