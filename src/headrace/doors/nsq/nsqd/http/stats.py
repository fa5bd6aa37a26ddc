"""/stats: how topics, channels and clients stand, in the shape that nsqadmin, nsq_stat and exporters read.

Topic by topic, with the loop let go in between, because there may be tens of thousands. Where the log has no such thing
as nsqd's figure, `docs/nsq-http.md` has what stands for it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.queues import Queue
from headrace.broker.security import Resource
from headrace.broker.security.rights import queue_name
from headrace.doors.http.server.messages import HttpError, Request, Response
from headrace.doors.nsq.names import log_name, nsq_name
from headrace.doors.nsq.nsqd.connection import Connection
from headrace.doors.nsq.nsqd.listener import Nsqd
from headrace.doors.nsq.presence import NSQ_VERSION, Presence
from headrace.doors.nsq.routes import JSON, VERSION_HEADER
from headrace.log.interface import Durability, Topic
from headrace.version import VERSION

# Topics that are described before others get a turn.
TURN_TOPICS = 25
TRUE_OR_FALSE = {"true": True, "1": True, "false": False, "0": False}
Sees = Callable[[Resource, Iterable[str]], list[str]]
"""Those of some names that the client may describe."""
# nsqd measures none by default either.
NO_LATENCY: dict[str, Any] = {"count": 0, "percentiles": None}


class Stats:
    """The handler, over a broker and the door that its NSQ clients came by."""

    def __init__(self, broker: Broker, presence: Presence, door: Nsqd | None, answer_max_bytes: int) -> None:
        self._broker = broker
        self._answer_max_bytes = answer_max_bytes
        self._presence = presence
        self._door = door

    @property
    def health(self) -> str:
        """`OK`, or what is wrong."""
        return "NOK - the disk is full" if self._broker.log.sizes()["full"] else "OK"

    async def stats(self, request: Request, parameters: Mapping[str, str]) -> object:
        """In JSON by `format=json`, as text otherwise; of one topic or channel where these are named."""
        clients = TRUE_OR_FALSE.get(parameters.get("include_clients", ""), True)
        memory = memory_figures() if TRUE_OR_FALSE.get(parameters.get("include_mem", ""), True) else None
        wanted = parameters.get("topic", "")
        names = [log_name(wanted)] if wanted else sorted(self._broker.topics.all)
        sees = partial(self._broker.security.visible, request.session)
        topics = self._topics(sees(Resource.TOPIC, names), parameters.get("channel", ""), clients, sees)
        producers = self._producers(wanted, sees) if clients else []
        if parameters.get("format") != "json":
            return await self._text(topics, producers, memory)
        # Part by part, for the same reason.
        described: list[str] = []
        size = 0
        async for topic in topics:
            described.append(json.dumps(topic, separators=(",", ":")))
            size += len(described[-1])
            if size > self._answer_max_bytes:
                raise HttpError(
                    507, "STATS_TOO_LARGE", "name a topic, leave out clients, or raise http_answer_max_bytes"
                )
        rest = {} if memory is None else {"memory": memory}
        head = {"version": NSQ_VERSION, "health": self.health, "start_time": self._presence.start_ms // 1000}
        before = json.dumps(head)[:-1]
        behind = json.dumps({**rest, "producers": producers if clients else None})[1:]
        body = f'{before}, "topics": [{",".join(described)}], {behind}'
        return Response(body.encode(), JSON, headers=(VERSION_HEADER,))

    async def _topics(
        self, names: Sequence[str], channel: str, clients: bool, sees: Sees
    ) -> AsyncIterator[dict[str, Any]]:
        subscribers = self._subscribers() if clients else {}
        for number, name in enumerate(names):
            topic = self._broker.topics.get(name)
            called = nsq_name(name)
            if topic is not None and called is not None and (not channel or channel in self._broker.queues.of(name)):
                yield self._topic(topic, called, channel, subscribers if clients else None, sees)
            if number % TURN_TOPICS == TURN_TOPICS - 1:
                await asyncio.sleep(0)

    def _topic(
        self,
        topic: Topic,
        name: str,
        channel: str,
        subscribers: Mapping[Queue, list[Connection]] | None,
        sees: Sees,
    ) -> dict[str, Any]:
        queues = self._broker.queues.of(topic.name)
        by_name = {queue_name(topic.name, each): each for each in sorted(queues) if channel in ("", each)}
        published = sum(partition.high_watermark for partition in topic.partitions)
        # What no channel has been given: nothing, or, as long as there is no channel, all.
        depth = 0 if queues else sum(partition.high_watermark - partition.start for partition in topic.partitions)
        in_memory = topic.settings.durability is Durability.MEMORY
        traffic = self._broker.metrics.topics.get(topic.name)
        return {
            "topic_name": name,
            "channels": [
                self._channel(queue, in_memory, None if subscribers is None else subscribers.get(queue, []))
                for queue in (queues[by_name[each]] for each in sees(Resource.QUEUE, by_name))
            ],
            "depth": depth,
            "backend_depth": 0 if in_memory else depth,
            "message_count": published,
            "message_bytes": traffic.bytes_in if traffic is not None else 0,
            "paused": self._broker.queues.topic_paused(topic.name),
            "e2e_processing_latency": NO_LATENCY,
        }

    def _channel(self, queue: Queue, in_memory: bool, subscribers: list[Connection] | None) -> dict[str, Any]:
        figures = queue.figures()
        waiting = figures.depth + figures.blocked
        return {
            "channel_name": queue.name,
            "depth": waiting,
            "backend_depth": 0 if in_memory else waiting,
            "in_flight_count": figures.in_flight,
            "deferred_count": figures.deferred,
            "condemned_count": figures.condemned,
            "stuck_count": figures.stuck,
            "message_count": queue.received,
            "requeue_count": figures.requeued,
            "timeout_count": figures.timed_out,
            "client_count": figures.consumers,
            "clients": None if subscribers is None else [client(each) for each in subscribers],
            "paused": queue.paused,
            "e2e_processing_latency": NO_LATENCY,
        }

    def _subscribers(self) -> dict[Queue, list[Connection]]:
        found: dict[Queue, list[Connection]] = {}
        for connection in self._door.connections if self._door is not None else ():
            if connection.consumer is not None:
                found.setdefault(connection.consumer.queue, []).append(connection)
        return found

    def _producers(self, topic: str, sees: Sees) -> list[dict[str, Any]]:
        found = []
        for connection in self._door.connections if self._door is not None else ():
            visible = set(sees(Resource.TOPIC, map(log_name, connection.published)))
            counts = {name: sent for name, sent in connection.published.items() if log_name(name) in visible}
            if topic in counts if topic else counts:
                described = client(connection)
                described["pub_counts"] = [{"topic": name, "count": sent} for name, sent in counts.items()]
                found.append(described)
        return found

    async def _text(
        self, topics: AsyncIterator[dict[str, Any]], producers: list[dict[str, Any]], memory: dict[str, int] | None
    ) -> str:
        start_ms = self._presence.start_ms
        now_ms = self._broker.runtime.clock.now_ms()
        lines = [
            f"nsqd v{NSQ_VERSION} (headrace {VERSION})",
            f"start_time {datetime.fromtimestamp(start_ms / 1000, UTC).isoformat(timespec='seconds')}",
            f"uptime {_duration((now_ms - start_ms) // 1000)}",
            "",
            f"Health: {self.health}",
        ]
        if memory is not None:
            lines += ["", "Memory:", *(f"   {name:<25}\t{value}" for name, value in memory.items())]
        described: list[str] = []
        async for topic in topics:
            described += ["", f"{'*P ' if topic['paused'] else '   '}{_topic_line(topic)}"]
            for channel in topic["channels"]:
                described.append(f"   {'*P ' if channel['paused'] else '   '}{_channel_line(channel)}")
                described += [f"        {_client_line(each, now_ms)}" for each in channel["clients"] or ()]
        lines += ["", "Topics:", *described] if described else ["", "Topics: None"]
        lines += ["", "Producers:" if producers else "Producers: None"]
        lines += [f"   {_client_line(each, now_ms)}" for each in producers]
        return "\n".join(lines) + "\n"


def client(connection: Connection) -> dict[str, Any]:
    """A client, subscriber or producer, as nsqd describes it."""
    identity, consumer, authorization = connection.identity, connection.consumer, connection.authorization
    cipher = connection.transport.get_extra_info("cipher") or ("", "", 0)
    described: dict[str, Any] = {
        "client_id": identity.client_id or connection.address[0],
        "hostname": identity.hostname or connection.address[0],
        "version": "V2",
        "remote_address": connection.name,
        "state": int(connection.codec.state),
        "ready_count": connection.ready,
        "in_flight_count": consumer.in_flight if consumer is not None else 0,
        "message_count": consumer.delivered if consumer is not None else 0,
        "finish_count": consumer.finished if consumer is not None else 0,
        "requeue_count": consumer.requeued if consumer is not None else 0,
        "connect_ts": connection.connected_ms // 1000,
        "sample_rate": identity.sample_rate,
        "deflate": identity.deflate,
        "snappy": identity.snappy,
        "user_agent": identity.user_agent,
        "tls": connection.encrypted,
        "tls_cipher_suite": cipher[0],
        "tls_version": cipher[1],
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }
    if authorization is not None or connection.session.user:
        described["authed"] = True
        described["auth_identity"] = connection.session.user
        described["auth_identity_url"] = authorization.identity_url if authorization is not None else ""
    return described


def memory_figures() -> dict[str, int]:
    """What stands for the figures of Go's memory: those that have no meaning here are 0."""
    collections = gc.get_stats()
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": 0,
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(each["collections"] for each in collections),
    }


def _topic_line(topic: dict[str, Any]) -> str:
    return (
        f"[{topic['topic_name']:<15}] depth: {topic['depth']:<5} be-depth: {topic['backend_depth']:<5} "
        f"msgs: {topic['message_count']:<8} e2e%: "
    )


def _channel_line(channel: dict[str, Any]) -> str:
    return (
        f"[{channel['channel_name']:<25}] depth: {channel['depth']:<5} be-depth: {channel['backend_depth']:<5} "
        f"inflt: {channel['in_flight_count']:<4} def: {channel['deferred_count']:<4} "
        f"re-q: {channel['requeue_count']:<5} timeout: {channel['timeout_count']:<5} "
        f"msgs: {channel['message_count']:<8} e2e%: "
    )


def _client_line(client: dict[str, Any], now_ms: int) -> str:
    port = client["remote_address"].rpartition(":")[2]
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    connected = _duration(now_ms // 1000 - client["connect_ts"])
    if published := client.get("pub_counts"):
        topics = ",".join(f"{each['topic']}={each['count']}" for each in published)
        total = sum(each["count"] for each in published)
        return f"[{client['version']} {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[{client['version']} {name:<21}] state: {client['state']} "
        f"inflt: {client['in_flight_count']:<4} rdy: {client['ready_count']:<4} "
        f"fin: {client['finish_count']:<8} re-q: {client['requeue_count']:<8} "
        f"msgs: {client['message_count']:<8} connected: {connected}"
    )


def _duration(seconds: int) -> str:
    """A time as Go writes it."""
    minutes, seconds = divmod(max(seconds, 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{seconds}s"
