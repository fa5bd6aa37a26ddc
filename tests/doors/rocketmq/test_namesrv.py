"""The name server: routes, lists, permission, configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.doors.rocketmq.client import Raw

import headrace
from headrace.doors.rocketmq.codes import Code, Request

ROUTE = Request.GET_ROUTEINFO_BY_TOPIC


def queue_data(namesrv: Raw, topic: str) -> tuple[int, int, int]:
    (data,) = namesrv.json(ROUTE, topic=topic)["queueDatas"]
    return data["readQueueNums"], data["writeQueueNums"], data["perm"]


def test_the_route_of_a_topic(broker: headrace.Broker, raw: Raw, namesrv: Raw, topic: str) -> None:
    missing = namesrv.ask(ROUTE, {"topic": topic})
    assert missing.code == Code.TOPIC_NOT_EXIST
    assert f"No topic route info in name server for the topic: {topic}" in (missing.remark or "")
    raw.sent(topic, b"x")
    route = namesrv.json(ROUTE, topic=topic)
    assert route["brokerDatas"] == [
        {
            "brokerAddrs": {"0": broker.rocketmq},
            "brokerName": "headrace",
            "cluster": "DefaultCluster",
            "enableActingMaster": False,
        }
    ]
    assert route["queueDatas"] == [
        {"brokerName": "headrace", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
    ]


def test_the_topic_by_which_others_are_made(namesrv: Raw) -> None:
    assert queue_data(namesrv, "TBW102") == (8, 8, 7)


def test_queues_and_permission_are_settings(raw: Raw, namesrv: Raw, topic: str) -> None:
    def update(read: int, write: int, perm: int = 6) -> int:
        asked = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": read, "writeQueueNums": write}
        return raw.ask(Request.UPDATE_AND_CREATE_TOPIC, {**asked, "perm": perm}).code

    assert update(2, 2) == Code.SUCCESS
    assert queue_data(namesrv, topic) == (2, 2, 6)
    assert update(6, 3) == Code.SUCCESS
    assert queue_data(namesrv, topic) == (6, 3, 6)
    assert update(4, 4, 4) == Code.SUCCESS
    assert queue_data(namesrv, topic) == (4, 4, 4), "partitions stay, and are not routed to"
    assert raw.sent(topic, b"x").code == Code.NO_PERMISSION
    assert update(4, 4, 2) == Code.SUCCESS
    assert raw.sent(topic, b"x").code == Code.SUCCESS
    assert raw.pulled(topic)[0].code == Code.NO_PERMISSION
    assert update(0, 4) == update(4, 4, 8) == Code.INVALID_PARAMETER


def test_clusters_and_topics(broker: headrace.Broker, raw: Raw, namesrv: Raw, topic: str) -> None:
    raw.sent(topic, b"x")
    info = namesrv.json(Request.GET_BROKER_CLUSTER_INFO)
    assert info["clusterAddrTable"] == {"DefaultCluster": ["headrace"]}
    assert info["brokerAddrTable"]["headrace"]["brokerAddrs"] == {"0": broker.rocketmq}
    everything = namesrv.json(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)["topicList"]
    assert topic in everything
    assert not any(each.startswith("__") for each in everything)
    assert namesrv.json(Request.GET_TOPICS_BY_CLUSTER, cluster="DefaultCluster")["topicList"] == everything
    assert namesrv.json(Request.GET_TOPICS_BY_CLUSTER, cluster="other")["topicList"] == []
    assert "TBW102" in namesrv.json(Request.GET_SYSTEM_TOPIC_LIST_FROM_NS)["topicList"]
    assert namesrv.ask(Request.DELETE_TOPIC_IN_NAMESRV, {"topic": topic}).code == Code.SUCCESS


def test_the_permission_to_write_can_be_taken(raw: Raw, namesrv: Raw, topic: str) -> None:
    raw.sent(topic, b"x")
    assert namesrv.ask(Request.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "other"}).fields == {"wipeTopicCount": "0"}
    assert int(namesrv.ask(Request.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "headrace"}).fields["wipeTopicCount"]) > 0
    assert queue_data(namesrv, topic) == (4, 4, 4)
    assert int(namesrv.ask(Request.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "headrace"}).fields["addTopicCount"]) > 0
    assert queue_data(namesrv, topic) == (4, 4, 6)


def test_other_brokers_are_refused(namesrv: Raw) -> None:
    for code in (Request.REGISTER_BROKER, Request.UNREGISTER_BROKER):
        assert namesrv.ask(code, {"brokerName": "b", "brokerAddr": "127.0.0.1:1"}).code == Code.NO_PERMISSION


def test_configuration_outlives_the_broker(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rocketmq": "off", "rocketmq_namesrv": "127.0.0.1:0"}
    name = {"namespace": "ORDER_TOPIC_CONFIG", "key": "t"}
    with headrace.Broker(tmp_path, **settings) as broker, Raw(broker.rocketmq_namesrv) as namesrv:
        assert namesrv.ask(Request.GET_KV_CONFIG, name).code == Code.QUERY_NOT_FOUND
        assert namesrv.ask(Request.PUT_KV_CONFIG, {**name, "value": "b:4"}).code == Code.SUCCESS
        assert namesrv.ask(Request.PUT_KV_CONFIG, {**name, "key": "u", "value": ""}).code == Code.SUCCESS
        assert namesrv.ask(Request.PUT_KV_CONFIG, {**name, "value": "x" * 20_000}).code == Code.INVALID_PARAMETER
        # Without the broker's own door there is nowhere to send clients.
        assert namesrv.ask(ROUTE, {"topic": "TBW102"}).code == Code.TOPIC_NOT_EXIST
        assert namesrv.json(Request.GET_BROKER_CLUSTER_INFO)["clusterAddrTable"] == {}
    with headrace.Broker(tmp_path, **settings) as broker, Raw(broker.rocketmq_namesrv) as namesrv:
        assert namesrv.ask(Request.GET_KV_CONFIG, name).fields == {"value": "b:4"}
        assert namesrv.json(Request.GET_KVLIST_BY_NAMESPACE, **name)["table"] == {"t": "b:4", "u": ""}
        for key in ("t", "u"):
            assert namesrv.ask(Request.DELETE_KV_CONFIG, {**name, "key": key}).code == Code.SUCCESS
        assert namesrv.ask(Request.GET_KVLIST_BY_NAMESPACE, name).code == Code.QUERY_NOT_FOUND


def test_an_address_of_its_own_is_advertised(tmp_path: Path) -> None:
    any_port = "127.0.0.1:0"
    with (
        headrace.Broker(
            tmp_path, rocketmq=any_port, rocketmq_namesrv=any_port, rocketmq_advertised="mq.example:1"
        ) as broker,
        Raw(broker.rocketmq_namesrv) as namesrv,
    ):
        (data,) = namesrv.json(ROUTE, topic="TBW102")["brokerDatas"]
        assert data["brokerAddrs"] == {"0": "mq.example:1"}


def test_a_name_that_is_advertised_is_an_address_in_messages(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rocketmq": "127.0.0.1:0", "rocketmq_advertised": "localhost:4321"}
    with headrace.Broker(tmp_path, **settings) as broker, Raw(broker.rocketmq) as raw:
        raw.sent("t", b"x")
        (message,) = raw.read("t")
    assert (message.store_host.ip[-1], message.store_host.port) == (1, 4321)


def test_configuration_is_bounded(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rocketmq": "off", "rocketmq_namesrv": "127.0.0.1:0", "rocketmq_namesrv_values_max": 2}
    with headrace.Broker(tmp_path, **settings) as broker, Raw(broker.rocketmq_namesrv) as namesrv:

        def put(namespace: str, key: str) -> int:
            name = {"namespace": namespace, "key": key, "value": "v"}
            return namesrv.ask(Request.PUT_KV_CONFIG, name).code

        assert [put("n", "a"), put("m", "a"), put("n", "b")] == [Code.SUCCESS, Code.SUCCESS, Code.SYSTEM_ERROR]
        assert put("n", "a") == Code.SUCCESS, "the one that is there"
        assert put("n", "ü" * 5_000) == put("ü" * 5_000, "k") == Code.INVALID_PARAMETER
        assert namesrv.ask(Request.DELETE_KV_CONFIG, {"namespace": "n", "key": "ü" * 40_000}).code == Code.SUCCESS
        assert namesrv.ask(Request.DELETE_KV_CONFIG, {"namespace": "n", "key": "a"}).code == Code.SUCCESS
        assert put("n", "b") == Code.SUCCESS
