"""nsqd's HTTP API over a real broker and real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.certificates import Authority
from tests.doors.nsq.nsqd.wired import Wire
from tests.waiting import SECONDS, until

from headrace.config import Config
from headrace.server import Server

VERSION = "nsq; version=1.0"


class Answer:
    """What was answered."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json; charset=utf-8"
        return json.loads(self.body)

    @property
    def said(self) -> tuple[int, Any]:
        """The status, and the body or the error's word."""
        return self.status, self.json["message"] if self.status != 200 else self.body


class Site:
    """A server with NSQ's doors."""

    def __init__(self, data: Path, **settings: Any) -> None:
        any_port = "127.0.0.1:0"
        config = {"kafka": "off", "http": "off", "nsq": any_port, "nsq_http": any_port, "nsq_https": any_port}
        config |= {
            "lookup": "off",
            "lookup_http": any_port,
            "rocketmq": "off",
            "rocketmq_namesrv": "off",
            "rocketmq_grpc": "off",
        }
        config |= {"durability": "async", **settings}
        self.server = Server(Config(data=str(data), **config))

    @property
    def nsq(self) -> Any:
        """In the shape that `Wire` connects to."""
        host, port = self.server.addresses["nsq"].split(":")
        return SimpleNamespace(address=(host, int(port)))

    async def ask(self, method: str, path: str, body: bytes | None = None, **more: Any) -> Answer:
        def blocking() -> Answer:
            tls = more.pop("tls", None)
            address = self.server.addresses["nsq-https" if tls else "nsq-http"]
            connection = (
                http.client.HTTPSConnection(address, timeout=SECONDS, context=tls)
                if tls
                else http.client.HTTPConnection(address, timeout=SECONDS)
            )
            connection.request(method, path, body, **more)
            try:
                return Answer(connection.getresponse())
            finally:
                connection.close()

        return await asyncio.to_thread(blocking)

    async def get(self, path: str) -> Any:
        answer = await self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.json

    async def post(self, path: str, body: bytes | None = None) -> tuple[int, Any]:
        answer = await self.ask("POST", path, body)
        assert answer.headers["x-nsq-content-type"] == VERSION
        return answer.said

    async def topic(self, name: str, **parameters: str) -> dict[str, Any]:
        """What /stats says of a topic."""
        query = "".join(f"&{key}={value}" for key, value in parameters.items())
        (topic,) = (await self.get(f"/stats?format=json&topic={name}{query}"))["topics"]
        return dict(topic)

    async def channel(self, topic: str, name: str) -> dict[str, Any]:
        (channel,) = (await self.topic(topic, channel=name))["channels"]
        return dict(channel)

    async def until(self, topic: str, name: str, **figures: int) -> dict[str, Any]:
        """What /stats says of a channel once it says this."""

        async def shown() -> dict[str, Any] | None:
            channel = await self.channel(topic, name)
            return channel if figures.items() <= channel.items() else None

        return dict(await until(shown, f"{figures} of {topic}/{name}", pause=0.01))


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    made: list[Site] = []

    async def make(**settings: Any) -> Site:
        site = Site(tmp_path / str(len(made)), **settings)
        await site.server.start()
        made.append(site)
        return site

    yield make
    for site in made:
        await site.server.stop()


@pytest.fixture
async def site(sites: Callable[..., Any]) -> Site:
    return await sites()


async def received(site: Site, topic: str, count: int, channel: str = "c") -> list[bytes]:
    async with await Wire.subscribed(site.nsq, topic, channel) as wire:
        bodies = []
        for _ in range(count):
            message = await wire.message()
            wire.send(b"FIN " + message.id + b"\n")
            bodies.append(message.body)
        return bodies


# --- the broker itself ------------------------------------------------------------------------------------------------


async def test_ping_and_info(site: Site):
    assert (await site.ask("GET", "/ping")).body == b"OK"
    info = await site.get("/info")
    assert info["version"] == "1.3.0"
    assert info["broadcast_address"] == "127.0.0.1"
    assert info["tcp_port"] == site.nsq.address[1]
    assert info["http_port"] == int(site.server.addresses["nsq-http"].split(":")[1])
    assert info["hostname"]
    assert info["max_heartbeat_interval"] == 60_000_000_000
    assert info["max_output_buffer_size"] == 65_536
    assert info["max_deflate_level"] == 6
    # Regions and zones came after 1.3, which is the version that is told.
    assert not [name for name in info if name.startswith("topology")]


async def test_methods_beside_those_of_a_route(site: Site):
    head = await site.ask("HEAD", "/info")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) == len((await site.ask("GET", "/info")).body)
    options = await site.ask("OPTIONS", "/config/log_level")
    assert (options.status, options.headers["allow"], options.body) == (200, "GET, HEAD, OPTIONS, PUT", b"")
    refused = await site.ask("DELETE", "/pub?topic=t")
    assert (refused.said, refused.headers["allow"]) == ((405, "METHOD_NOT_ALLOWED"), "OPTIONS, POST")
    assert (await site.ask("OPTIONS", "/nothing")).said == (404, "NOT_FOUND")


async def test_what_clients_are_told_can_be_set(sites):
    site = await sites(nsq_broadcast="mq.example", nsq_broadcast_tcp_port=5, nsq_broadcast_http_port=6)
    info = await site.get("/info")
    assert (info["broadcast_address"], info["tcp_port"], info["http_port"]) == ("mq.example", 5, 6)


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("GET", "/config", 404, "NOT_FOUND"),
        ("GET", "/pub?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/stats", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/stats?topic=%", 400, "INVALID_REQUEST"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=a%24", 400, "INVALID_TOPIC"),
        ("POST", "/topic/create?topic=", 400, "INVALID_TOPIC"),
        ("POST", "/topic/create?topic=x.ephemeral", 400, "INVALID_TOPIC"),
        ("POST", "/topic/create?topic=__consumer_offsets", 400, "INVALID_TOPIC"),
        ("POST", "/topic/create?topic=..", 400, "INVALID_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/delete?topic=nothing", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/topic/delete?topic=__consumer_offsets", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/topic/empty?topic=$", 400, "INVALID_TOPIC"),
        ("POST", "/topic/empty?topic=nothing", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/topic/pause", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/pause?topic=nothing", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/topic/unpause?topic=nothing", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?channel=c", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t&channel=$", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=$&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=nothing&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/channel/delete?topic=nothing&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/channel/delete?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/channel/empty?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/channel/pause?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/channel/unpause?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("GET", "/config/nothing", 400, "INVALID_OPTION"),
        ("PUT", "/config/log_level", 413, "INVALID_VALUE"),
    ],
)
async def test_errors(site: Site, method: str, path: str, status: int, message: str):
    await site.post("/topic/create?topic=t")
    answer = await site.ask(method, path)
    assert answer.said == (status, message)
    assert answer.headers["x-nsq-content-type"] == VERSION


# --- publishing -------------------------------------------------------------------------------------------------------


async def test_pub_and_mpub(site: Site):
    assert await site.post("/pub?topic=t", b"one\ntwo") == (200, b"OK")
    assert await site.post("/mpub?topic=t", b"three\n\nfour\n") == (200, b"OK")
    bodies = [b"fi\nve", b"\x00\xff"]
    packed = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    assert await site.post("/mpub?topic=t&binary=true", struct.pack(">i", 2) + packed) == (200, b"OK")
    assert await site.post("/mpub?topic=t&binary=0", b"six") == (200, b"OK")
    assert await received(site, "t", 6) == [b"one\ntwo", b"three", b"four", *bodies, b"six"]


async def test_nothing_to_publish(site: Site):
    assert await site.post("/pub?topic=t", b"") == (400, "MSG_EMPTY")
    assert await site.post("/mpub?topic=t", b"\n\n") == (200, b"OK")
    assert await site.post("/mpub?topic=t", b"") == (200, b"OK")
    assert await site.post("/mpub?topic=t&binary=1", b"") == (413, "BAD_BODY")
    assert (await site.topic("t"))["message_count"] == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/pub?topic=a/b", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=__consumer_offsets", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=t", bytes(1001), 413, "MSG_TOO_BIG"),
        ("/pub?topic=t", bytes(20_000), 413, "MSG_TOO_BIG"),
        ("/pub?topic=t&defer=x", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
        ("/mpub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/mpub?topic=%20", b"x", 400, "INVALID_TOPIC"),
        ("/mpub?topic=t", b"x\n" + bytes(1001), 413, "MSG_TOO_BIG"),
        ("/mpub?topic=t", bytes(20_000), 413, "BODY_TOO_BIG"),
        ("/mpub?topic=t&binary=true", b"\0\0\0\1\0\0\0\5x", 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", b"\0\0\0\1\0\0\0\0", 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", b"\xff\xff\xff\xff\0\0\0\0", 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=true", b"\0\0\0\1\0\0\4\0" + bytes(1024), 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", b"\0\0\0\1\0\0\0\1xy", 413, "BAD_BODY"),
    ],
)
async def test_bad_publishing_leaves_nothing(sites, path: str, body: bytes, status: int, message: str):
    site = await sites(nsq_max_msg_size=1_000, nsq_max_body_size=10_000)
    await site.post("/pub?topic=t", b"first")
    assert await site.post(path, body) == (status, message)
    assert (await site.topic("t"))["message_count"] == 1


async def test_a_large_body_fits(site: Site):
    body = b"\n".join(b"%d" % number + b"x" * 1_000 for number in range(5_000))
    assert len(body) > 5_000_000
    assert await site.post("/mpub?topic=t", body) == (200, b"OK")
    assert await site.post("/pub?topic=t", bytes(1_048_576)) == (200, b"OK")
    assert (await site.topic("t"))["message_count"] == 5_001


async def test_a_deferred_message_comes_later(site: Site):
    begin = asyncio.get_running_loop().time()
    assert await site.post("/pub?topic=t&defer=2000", b"later") == (200, b"OK")
    assert await site.post("/pub?topic=t&defer=0", b"now") == (200, b"OK")
    assert await received(site, "t", 2) == [b"now", b"later"]
    assert asyncio.get_running_loop().time() - begin >= 1.99


async def test_publishing_makes_no_topic_where_that_is_off(sites):
    site = await sites(auto_create_topics=False)
    assert await site.post("/pub?topic=t", b"x") == (404, "TOPIC_NOT_FOUND")
    assert await site.post("/topic/create?topic=t") == (200, b"")
    assert await site.post("/topic/create?topic=t") == (200, b"")
    assert await site.post("/pub?topic=t", b"x") == (200, b"OK")


async def test_names_that_differ_in_dots_alone(site: Site):
    assert await site.post("/pub?topic=a.b", b"x") == (200, b"OK")
    assert await site.post("/pub?topic=a_b", b"x") == (400, "INVALID_TOPIC")


async def test_a_full_topic_refuses(site: Site):
    await site.post("/pub?topic=t", b"x")
    await site.post("/channel/create?topic=t&channel=c")
    config = {"overflow": "reject", "overflow.lag": "1"}
    await site.server.broker.topics.alter_config("t", lambda old: {**old, **config})
    await asyncio.sleep(0)
    statuses = [await site.post("/pub?topic=t", b"x") for _ in range(5)]
    status, message = statuses[-1]
    assert status == 503
    assert message.startswith("PUB_FAILED")


# --- topics and channels ----------------------------------------------------------------------------------------------


async def test_a_topic_comes_and_goes(site: Site):
    assert await site.post("/topic/create?topic=t") == (200, b"")
    assert (await site.topic("t"))["channels"] == []
    assert await site.post("/channel/create?topic=t&channel=c") == (200, b"")
    assert await site.post("/channel/create?topic=t&channel=d") == (200, b"")
    assert [each["channel_name"] for each in (await site.topic("t"))["channels"]] == ["c", "d"]
    assert await site.post("/channel/delete?topic=t&channel=c") == (200, b"")
    assert [each["channel_name"] for each in (await site.topic("t"))["channels"]] == ["d"]
    assert await site.post("/topic/delete?topic=t") == (200, b"")
    assert (await site.get("/stats?format=json"))["topics"] == []
    assert site.server.broker.topics.get("t") is None


async def test_an_ephemeral_topic_has_its_own_name(site: Site):
    assert await site.post("/pub?topic=t%23ephemeral", b"x") == (200, b"OK")
    (topic,) = (await site.get("/stats?format=json"))["topics"]
    assert topic["topic_name"] == "t#ephemeral"
    assert (topic["depth"], topic["backend_depth"]) == (1, 0)
    assert await site.post("/topic/delete?topic=t%23ephemeral") == (200, b"")


async def test_the_brokers_own_topics_are_not_there(site: Site):
    await site.server.broker.topics.create("__consumer_offsets", internal=True)
    for path in ("/topic/delete", "/topic/pause", "/topic/unpause"):
        assert await site.post(f"{path}?topic=__consumer_offsets") == (404, "TOPIC_NOT_FOUND")
    for path in ("/topic/create", "/topic/empty"):
        assert await site.post(f"{path}?topic=__consumer_offsets") == (400, "INVALID_TOPIC")
    assert await site.post("/channel/create?topic=__consumer_offsets&channel=c") == (400, "INVALID_ARG_TOPIC")
    assert site.server.broker.topics.get("__consumer_offsets") is not None


async def test_an_empty_topic_is_empty(site: Site):
    await site.post("/mpub?topic=t", b"1\n2\n3")
    assert (await site.topic("t"))["depth"] == 3
    assert await site.post("/topic/empty?topic=t") == (200, b"")
    assert (await site.topic("t"))["depth"] == 0
    await site.post("/pub?topic=t", b"4")
    assert await received(site, "t", 1) == [b"4"]


async def test_what_channels_have_is_not_the_topics_to_empty(site: Site):
    await site.post("/mpub?topic=t", b"1\n2\n3")
    await site.post("/channel/create?topic=t&channel=c")
    assert await site.post("/topic/empty?topic=t") == (200, b"")
    assert await received(site, "t", 1) == [b"1"]
    await site.until("t", "c", depth=2)
    assert await site.post("/channel/empty?topic=t&channel=c") == (200, b"")
    assert (await site.channel("t", "c"))["depth"] == 0


async def test_pausing(site: Site):
    await site.post("/pub?topic=t", b"x")
    await site.post("/channel/create?topic=t&channel=c")
    assert await site.post("/channel/pause?topic=t&channel=c") == (200, b"")
    assert (await site.channel("t", "c"))["paused"] is True
    async with await Wire.subscribed(site.nsq, "t", "c") as wire:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wire.frame(), 0.1)
    assert await site.post("/channel/unpause?topic=t&channel=c") == (200, b"")
    assert (await site.channel("t", "c"))["paused"] is False
    assert await site.post("/topic/pause?topic=t") == (200, b"")
    assert (await site.topic("t"))["paused"] is True
    async with await Wire.subscribed(site.nsq, "t", "c") as wire:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wire.frame(), 0.1)
    assert await site.post("/topic/unpause?topic=t") == (200, b"")
    assert (await site.topic("t"))["paused"] is False
    assert await received(site, "t", 1) == [b"x"]


async def test_what_outlives_a_restart(sites, tmp_path: Path):
    site = await sites()
    for topic in ("t", "u"):
        await site.post(f"/topic/create?topic={topic}")
        await site.post(f"/channel/create?topic={topic}&channel=c")
    await site.post("/topic/pause?topic=t")
    await site.post("/channel/pause?topic=t&channel=c")
    begin = asyncio.get_running_loop().time()
    await site.post("/pub?topic=u&defer=3000", b"later")
    await site.post("/pub?topic=u", b"now")
    await site.server.stop()
    site.server = Site(tmp_path / "0").server
    await site.server.start()
    topic = await site.topic("t")
    assert topic["paused"]
    assert topic["channels"][0]["paused"]
    assert not (await site.channel("u", "c"))["paused"]
    assert await received(site, "u", 2) == [b"now", b"later"]
    assert asyncio.get_running_loop().time() - begin > 2


async def test_a_deleted_channel_ends_its_clients(site: Site):
    await site.post("/topic/create?topic=t")
    async with await Wire.subscribed(site.nsq, "t", "c") as wire:
        assert await site.post("/channel/delete?topic=t&channel=c") == (200, b"")
        assert await asyncio.wait_for(wire.reader.read(), SECONDS) == b""


# --- figures ----------------------------------------------------------------------------------------------------------


async def test_the_documented_shape_of_stats(site: Site):
    await site.post("/pub?topic=t", b"x")
    async with await Wire.open(site.nsq, client_id="me", hostname="there", user_agent="test/1") as wire:
        assert await wire.ask(b"SUB t c\n") == b"OK"
        wire.send(b"RDY 5\n")
        message = await wire.message()
        stats = await site.get("/stats?format=json")
        assert set(stats) == {"version", "health", "start_time", "topics", "memory", "producers"}
        assert (stats["version"], stats["health"]) == ("1.3.0", "OK")
        assert set(stats["memory"]) == {
            "heap_objects",
            "heap_idle_bytes",
            "heap_in_use_bytes",
            "heap_released_bytes",
            "gc_pause_usec_100",
            "gc_pause_usec_99",
            "gc_pause_usec_95",
            "next_gc_bytes",
            "gc_total_runs",
        }
        (topic,) = stats["topics"]
        (channel,) = topic.pop("channels")
        assert topic.pop("message_bytes") > 0
        assert topic == {
            "topic_name": "t",
            "depth": 0,
            "backend_depth": 0,
            "message_count": 1,
            "paused": False,
            "e2e_processing_latency": {"count": 0, "percentiles": None},
        }
        (client,) = channel.pop("clients")
        assert channel == {
            "channel_name": "c",
            "depth": 0,
            "backend_depth": 0,
            "in_flight_count": 1,
            "deferred_count": 0,
            # These two are Headrace's own.
            "condemned_count": 0,
            "stuck_count": 0,
            "message_count": 1,
            "requeue_count": 0,
            "timeout_count": 0,
            "client_count": 1,
            "paused": False,
            "e2e_processing_latency": {"count": 0, "percentiles": None},
        }
        host, port = wire.writer.get_extra_info("sockname")
        assert abs(client.pop("connect_ts") - stats["start_time"]) < 60
        assert client == {
            "client_id": "me",
            "hostname": "there",
            "version": "V2",
            "remote_address": f"{host}:{port}",
            "state": 3,
            "ready_count": 5,
            "in_flight_count": 1,
            "message_count": 1,
            "finish_count": 0,
            "requeue_count": 0,
            "sample_rate": 0,
            "deflate": False,
            "snappy": False,
            "user_agent": "test/1",
            "tls": False,
            "tls_cipher_suite": "",
            "tls_version": "",
            "tls_negotiated_protocol": "",
            "tls_negotiated_protocol_is_mutual": False,
        }
        wire.send(b"REQ " + message.id + b" 60000\n")
        message = None
        await site.post("/pub?topic=t", b"y")
        message = await wire.message()
        wire.send(b"FIN " + message.id + b"\n")
        wire.send(b"NOP\n")
        channel = await site.until("t", "c", in_flight_count=0)
        assert (channel["requeue_count"], channel["deferred_count"], channel["depth"]) == (1, 1, 0)
        (client,) = channel["clients"]
        assert (client["finish_count"], client["requeue_count"], client["message_count"]) == (1, 1, 2)


async def test_producers_are_listed(site: Site):
    async with await Wire.open(site.nsq, client_id="me", user_agent="test/1") as wire:
        assert await wire.ask(b"PUB t\n\0\0\0\1x") == b"OK"
        assert await wire.ask(b"PUB u\n\0\0\0\1x") == b"OK"
        (producer,) = (await site.get("/stats?format=json"))["producers"]
        assert producer["client_id"] == "me"
        assert producer["pub_counts"] == [{"topic": "t", "count": 1}, {"topic": "u", "count": 1}]
        assert len((await site.get("/stats?format=json&topic=t"))["producers"]) == 1
        assert (await site.get("/stats?format=json&topic=v"))["producers"] == []


async def test_filters(site: Site):
    for topic in ("one", "two"):
        await site.post(f"/topic/create?topic={topic}")
        for channel in ("a", "b"):
            await site.post(f"/channel/create?topic={topic}&channel={channel}")
    stats = await site.get("/stats?format=json&channel=b")
    assert [(each["topic_name"], [c["channel_name"] for c in each["channels"]]) for each in stats["topics"]] == [
        ("one", ["b"]),
        ("two", ["b"]),
    ]
    await site.post("/channel/delete?topic=one&channel=a")
    assert [each["topic_name"] for each in (await site.get("/stats?format=json&channel=a"))["topics"]] == ["two"]
    assert (await site.get("/stats?format=json&topic=nothing"))["topics"] == []
    assert (await site.get("/stats?format=json&topic=__queues"))["topics"] == []
    slim = await site.get("/stats?format=json&topic=one&include_clients=false&include_mem=0")
    assert "memory" not in slim
    assert slim["producers"] is None
    assert [each["clients"] for each in slim["topics"][0]["channels"]] == [None]


async def test_stats_as_text(site: Site):
    assert b"\nTopics: None\n\nProducers: None\n" in (await site.ask("GET", "/stats")).body
    await site.post("/mpub?topic=t", b"1\n2")
    await site.post("/channel/create?topic=t&channel=c")
    await site.post("/channel/pause?topic=t&channel=c")
    async with (
        await Wire.subscribed(site.nsq, "t", "c", hostname="me", user_agent="test/1") as wire,
        await Wire.open(site.nsq, hostname="you", user_agent="test/2") as other,
    ):
        assert await other.ask(b"PUB t\n\0\0\0\1x") == b"OK"
        port, other_port = (each.writer.get_extra_info("sockname")[1] for each in (wire, other))
        answer = await site.ask("GET", "/stats?format=text")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        text = answer.body.decode()
    assert text.startswith("nsqd v1.3.0 (headrace ")
    assert "\nHealth: OK\n" in text
    assert "   heap_objects             \t" in text
    assert "\n   [t              ] depth: 0     be-depth: 0     msgs: 3        e2e%: \n" in text
    assert "\n   *P [c                        ] depth: 3     be-depth: 3     inflt: 0    def: 0    re-q: 0 " in text
    assert f"\n        [V2 {f'me:{port} test/1':<21}] state: 3 inflt: 0    rdy: 100  fin: 0 " in text
    assert f"\nProducers:\n   [V2 {f'you:{other_port} test/2':<21}] msgs: 1        topics: t=1 connected: " in text
    assert "Memory:" not in (await site.ask("GET", "/stats?include_mem=false")).body.decode()


async def test_many_topics_are_described_in_turns(site: Site):
    for number in range(120):
        await site.server.broker.topics.create(f"t{number:03}")
    stats = await site.get("/stats?format=json")
    assert [each["topic_name"] for each in stats["topics"]] == [f"t{number:03}" for number in range(120)]


async def test_a_full_disk_is_told(site: Site):
    site.server.broker.log.full = True  # type: ignore[attr-defined]
    answer = await site.ask("GET", "/ping")
    assert (answer.status, answer.body) == (500, b"NOK - the disk is full")
    assert (await site.get("/stats?format=json"))["health"].startswith("NOK")
    site.server.broker.log.full = False  # type: ignore[attr-defined]


# --- what can be set --------------------------------------------------------------------------------------------------


async def test_the_look_up_services_can_be_changed(sites):
    site = await sites(lookupd_tcp_settable=True)
    other = await sites(lookup="127.0.0.1:0")
    assert await site.get("/config/nsqlookupd_tcp_addresses") == []
    addresses = [other.server.addresses["lookup"]]
    answer = await site.ask("PUT", "/config/nsqlookupd_tcp_addresses", json.dumps(addresses).encode())
    assert (answer.status, answer.json) == (200, addresses)
    assert await site.get("/config/nsqlookupd_tcp_addresses") == addresses
    for wrong in (b"{}", b"[1]", b'["nowhere"]', b'["h:0"]', b"x", b"[" * 5_000):
        answer = await site.ask("PUT", "/config/nsqlookupd_tcp_addresses", wrong)
        assert answer.said == (400, "INVALID_VALUE")
    assert await site.get("/config/nsqlookupd_tcp_addresses") == addresses
    answer = await site.ask("PUT", "/config/nsqlookupd_tcp_addresses", b"[]")
    assert (answer.status, answer.json) == (200, [])


async def test_the_look_up_services_cannot_be_changed_unless_that_is_configured(site: Site):
    connected = asyncio.Event()
    server = await asyncio.start_server(lambda *_: connected.set(), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    answer = await site.ask("PUT", "/config/nsqlookupd_tcp_addresses", json.dumps([address]).encode())
    assert answer.status == 403
    assert "lookupd_tcp_settable" in answer.json["message"]
    assert await site.get("/config/nsqlookupd_tcp_addresses") == []
    server.close()
    assert not connected.is_set()


async def test_the_log_level_can_be_changed(site: Site):
    before = await site.get("/config/log_level")
    try:
        for said, number in ((b"debug", 1), (b"INFO", 2), (b"warn", 3), (b"error\n", 4)):
            answer = await site.ask("PUT", "/config/log_level", said)
            assert (answer.status, answer.json) == (200, number)
        assert (await site.ask("PUT", "/config/log_level", b"loud")).said == (400, "INVALID_VALUE")
        assert (await site.ask("PUT", "/config/log_level", b"\xff")).said == (400, "INVALID_VALUE")
    finally:
        await site.ask("PUT", "/config/log_level", [b"debug", b"info", b"warning", b"error"][before - 1])


async def test_other_settings_can_be_read(site: Site):
    assert await site.get("/config/max_msg_size") == 1_048_576
    assert await site.get("/config/max_req_timeout") == 3_600_000_000_000
    assert (await site.ask("PUT", "/config/max_msg_size", b"5")).said == (400, "INVALID_OPTION")


async def test_debug(site: Site):
    assert b"goroutine" in (await site.ask("GET", "/debug/pprof/")).body
    assert b"test_debug" in (await site.ask("GET", "/debug/pprof/goroutine")).body
    assert (await site.ask("GET", "/debug/pprof/heap")).said == (404, "NOT_FOUND")


async def test_the_command_line_is_shown_without_secrets(sites):
    site = await sites(auth_http="http://headrace:hush@127.0.0.1:1/auth", nsq_max_rdy_count=7)
    flags = (await site.ask("GET", "/debug/pprof/cmdline")).body.split(b"\0")
    assert flags[:2] == [b"headrace", b"serve"]
    assert b"--auth-http=***" in flags
    assert b"--nsq-max-rdy-count=7" in flags
    assert not any(b"hush" in flag for flag in flags)
    assert "hush" not in repr(site.server.config)


# --- TLS --------------------------------------------------------------------------------------------------------------


async def test_over_tls_at_a_port_of_its_own(sites, tmp_path: Path):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("127.0.0.1")
    site = await sites(tls_cert=certificate, tls_key=key)
    trusting = ssl.create_default_context(cafile=authority.path)
    assert (await site.ask("POST", "/pub?topic=t", b"x", tls=trusting)).said == (200, b"OK")
    assert await site.post("/pub?topic=t", b"y") == (200, b"OK")
    assert await received(site, "t", 2) == [b"x", b"y"]


@pytest.mark.parametrize("by", ["setting", "client certificates"])
async def test_tls_may_be_required(sites, tmp_path: Path, by: str):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("127.0.0.1")
    required = {"nsq_tls_required": True} if by == "setting" else {"tls_client_ca": authority.path}
    site = await sites(tls_cert=certificate, tls_key=key, **required)
    answer = await site.ask("POST", "/pub?topic=t", b"x")
    assert answer.status == 403
    port = int(site.server.addresses["nsq-https"].split(":")[1])
    assert answer.json == {"message": "TLS_REQUIRED", "https_port": port}
    trusting = ssl.create_default_context(cafile=authority.path)
    if by == "client certificates":
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await site.ask("GET", "/ping", tls=trusting)
        trusting.load_cert_chain(*authority.issue("client"))
    assert (await site.ask("GET", "/ping", tls=trusting)).body == b"OK"


async def test_without_a_certificate_there_is_no_tls_port(site: Site):
    assert "nsq-https" not in site.server.addresses
