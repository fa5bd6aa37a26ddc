"""Other brokers that register with the name server: taken in where that is configured, and forgotten when they go."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.doors.rocketmq.client import Raw
from tests.waiting import wait_until

import headrace
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import Command

VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 5}


@pytest.fixture(scope="module")
def open_broker() -> Iterator[headrace.Broker]:
    settings: dict[str, Any] = {"rocketmq_namesrv_registration": True, "rocketmq_namesrv_brokers_max": 3}
    with headrace.Broker(rocketmq="127.0.0.1:0", rocketmq_namesrv="127.0.0.1:0", **settings) as broker:
        yield broker


def fields_of(name: str, id: int = 0, **more: Any) -> dict[str, Any]:
    fields = {"clusterName": "DefaultCluster", "brokerName": name, "brokerId": id, "brokerAddr": f"10.0.0.1:{id + 1}"}
    return fields | {"haServerAddr": f"10.0.0.1:{id + 101}"} | more


def body_of(**topics: int) -> bytes:
    table = {
        name: {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
        for name, queues in topics.items()
    }
    wrapper = {"topicConfigTable": table, "dataVersion": VERSION}
    return json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()


def compressed(**topics: int) -> bytes:
    parts = [json.dumps(VERSION).encode()]
    lines = [f"{name} {queues} {queues} 6 SINGLE_TAG 0 false".encode() for name, queues in topics.items()]
    raw = b"".join(struct.pack(">i", len(each)) + each for each in parts) + struct.pack(">i", len(lines))
    raw += b"".join(struct.pack(">i", len(each)) + each for each in lines)
    return zlib.compress(raw + struct.pack(">i", 2) + b"[]" + struct.pack(">i", 0))


def register(raw: Raw, name: str, id: int = 0, body: bytes = b"", **more: Any) -> Command:
    return raw.ask(Request.REGISTER_BROKER, fields_of(name, id, **more), body)


def brokers(raw: Raw, topic: str) -> dict[str, dict[str, str]]:
    answer = raw.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if answer.code:
        return {}
    return {each["brokerName"]: each["brokerAddrs"] for each in json.loads(answer.body)["brokerDatas"]}


def test_a_name_server_takes_no_other_brokers_unless_it_is_configured(namesrv: Raw, topic: str) -> None:
    answer = register(namesrv, "other", body=body_of(**{topic: 4}))
    assert answer.code == Code.NO_PERMISSION
    assert "rocketmq_namesrv_registration" in (answer.remark or "")
    for code in (Request.UNREGISTER_BROKER, Request.QUERY_DATA_VERSION, Request.BROKER_HEARTBEAT):
        assert namesrv.ask(code, fields_of("other"), b"{}").code == Code.NO_PERMISSION
    assert brokers(namesrv, topic) == {}


@pytest.mark.parametrize("pack", [body_of, compressed])
def test_clients_find_the_topics_of_both(open_broker: headrace.Broker, topic: str, pack: Any) -> None:
    body = pack(**{topic: 4, f"{topic}-only": 3})
    is_compressed = "true" if pack is compressed else "false"
    with Raw(open_broker.rocketmq) as raw, Raw(open_broker.rocketmq_namesrv) as client:
        raw.sent(topic, b"own")
        with Raw(open_broker.rocketmq_namesrv) as other:
            crc = zlib.crc32(body) & 0x7FFFFFFF
            answer = register(other, "other", body=body, bodyCrc32=crc, compressed=is_compressed)
            assert answer.code == Code.SUCCESS, answer
            damaged = register(other, "other", body=body, bodyCrc32=crc ^ 1, compressed=is_compressed)
            assert damaged.code == Code.SYSTEM_ERROR
            slave = register(other, "other", 1, body)
            assert slave.code == Code.SUCCESS if pack is body_of else True
            assert set(brokers(client, topic)) == {"headrace", "other"}
            assert brokers(client, f"{topic}-only")["other"]["0"] == "10.0.0.1:1"
            listed = client.json(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)["topicList"]
            assert {topic, f"{topic}-only"} <= set(listed)
            info = client.json(Request.GET_BROKER_CLUSTER_INFO)
            assert set(info["clusterAddrTable"]["DefaultCluster"]) == {"headrace", "other"}
            wiped = client.ask(Request.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "other"})
            assert int(wiped.fields["wipeTopicCount"]) >= 2
            route = client.json(Request.GET_ROUTEINFO_BY_TOPIC, topic=f"{topic}-only")
            assert route["queueDatas"][0]["perm"] == 4
            assert client.ask(Request.UNREGISTER_BROKER, fields_of("other")).code == Code.SUCCESS
            assert register(other, "other", body=body, compressed=is_compressed).code == Code.SUCCESS
        # Its connection is lost.
        wait_until(lambda: set(brokers(client, topic)) == {"headrace"})


def test_slaves_get_the_address_of_their_master(open_broker: headrace.Broker, topic: str) -> None:
    with Raw(open_broker.rocketmq_namesrv) as other:
        register(other, "pair", 0, body_of(**{topic: 4}))
        answer = register(other, "pair", 1, body_of(**{topic: 4}))
        assert answer.fields == {"masterAddr": "10.0.0.1:1", "haServerAddr": "10.0.0.1:101"}
        assert brokers(other, topic) == {"pair": {"0": "10.0.0.1:1", "1": "10.0.0.1:2"}}


def test_a_silent_broker_is_forgotten_and_a_heartbeat_keeps_it(open_broker: headrace.Broker, topic: str) -> None:
    with Raw(open_broker.rocketmq_namesrv) as other:
        register(other, "silent", 0, body_of(**{topic: 4}), heartbeatTimeoutMillis=60_000)
        same = other.ask(Request.QUERY_DATA_VERSION, fields_of("silent"), json.dumps(VERSION).encode())
        assert (same.fields["changed"], json.loads(same.body)) == ("false", VERSION)
        newer = json.dumps(VERSION | {"counter": 2}).encode()
        assert other.ask(Request.QUERY_DATA_VERSION, fields_of("silent"), newer).fields["changed"] == "true"
        assert other.ask(Request.QUERY_DATA_VERSION, fields_of("unknown"), newer).fields["changed"] == "true"
        assert other.ask(Request.BROKER_HEARTBEAT, fields_of("silent")).code == Code.SUCCESS
        assert set(brokers(other, topic)) == {"silent"}
        register(other, "silent", 0, body_of(**{topic: 4}), heartbeatTimeoutMillis=1)
        wait_until(lambda: brokers(other, topic) == {})


def test_what_is_refused(open_broker: headrace.Broker, topic: str) -> None:
    with Raw(open_broker.rocketmq_namesrv) as other:
        assert register(other, "headrace", body=body_of(**{topic: 4})).code == Code.NO_PERMISSION
        assert register(other, "", body=body_of(**{topic: 4})).code == Code.INVALID_PARAMETER
        bomb = zlib.compress(bytes(40_000_000))
        assert register(other, "bomb", body=bomb, compressed="true").code == Code.INVALID_PARAMETER
        for body in (b"[]", b"{}", b"x", json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": 3}}).encode()):
            assert register(other, "bad", body=body).code != Code.SUCCESS
        for raw in (b"x", zlib.compress(b""), zlib.compress(bytes(7)), compressed(**{topic: -3})):
            assert register(other, "bad", body=raw, compressed="true").code != Code.SUCCESS
        assert register(other, "bad", body=body_of(**{topic: 1 << 40})).code != Code.SUCCESS
        for number in range(3):
            assert register(other, f"b{number}", body=body_of(**{topic: 1})).code == Code.SUCCESS
        assert register(other, "b3", body=body_of(**{topic: 1})).code == Code.SYSTEM_BUSY
