"""Requests and their replies, which the broker passes on to the client that waits."""

from __future__ import annotations

from typing import Any

from tests.doors.rocketmq.client import Raw

import headrace
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.messages import read_properties, write_properties


def send_reply(raw: Raw, body: bytes, client_id: str | None, code: int = Request.SEND_REPLY_MESSAGE_V2) -> int:
    properties = {"MSG_TYPE": "reply", "CORRELATION_ID": "7"}
    if client_id is not None:
        properties["REPLY_TO_CLIENT"] = client_id
    fields: dict[str, Any] = {"a": "g", "b": "DefaultCluster_REPLY_TOPIC", "c": "TBW102", "d": 4, "e": 0, "f": 0}
    fields |= {"g": 5, "h": 0, "i": write_properties(properties), "j": 0, "k": "false", "m": "false"}
    if code == Request.SEND_REPLY_MESSAGE:
        names = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag")
        names += ("bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "batch")
        fields = dict(zip(names, fields.values(), strict=True))
    return raw.send(code, {name: str(value) for name, value in fields.items()}, body)


def test_a_reply_goes_to_the_client_that_asked(broker: headrace.Broker, raw: Raw, namesrv: Raw, topic: str) -> None:
    client_id = f"{topic}@asker"
    with Raw(broker.rocketmq) as asker:
        asker.heartbeat(client_id, {}, producers=[topic])
        properties = {"REPLY_TO_CLIENT": client_id, "CORRELATION_ID": "7", "TTL": "3000"}
        assert asker.sent(topic, b"what?", properties=properties).code == Code.SUCCESS
        (request,) = raw.read(topic)
        # From it a consumer makes the name of the topic for replies, whose route it asks for.
        assert read_properties(request.properties)["CLUSTER"] == "DefaultCluster"
        route = namesrv.json(Request.GET_ROUTEINFO_BY_TOPIC, topic="DefaultCluster_REPLY_TOPIC")
        assert [each["writeQueueNums"] for each in route["queueDatas"]] == [1]

        for code in (Request.SEND_REPLY_MESSAGE_V2, Request.SEND_REPLY_MESSAGE):
            sent = send_reply(raw, b"that", client_id, code)
            pushed = asker.wait_until_asked()
            assert (pushed.code, pushed.is_one_way, pushed.body) == (326, False, b"that")
            assert (pushed.fields["topic"], pushed.fields["bornTimestamp"]) == ("DefaultCluster_REPLY_TOPIC", "5")
            given = read_properties(pushed.fields["properties"])
            assert (given["CORRELATION_ID"], "PUSH_REPLY_TIME" in given) == ("7", True)
            asker.reply(pushed)
            answer = raw.answer(sent)
            assert (answer.code, answer.fields) == (0, {"msgId": "0", "queueId": "0", "queueOffset": "0"})

        sent = send_reply(raw, b"too late", client_id)
        asker.reply(asker.wait_until_asked(), Code.SYSTEM_ERROR)
        assert raw.answer(sent).code == Code.SYSTEM_ERROR


def test_replies_to_clients_that_are_not_there(broker: headrace.Broker, raw: Raw, topic: str) -> None:
    assert raw.answer(send_reply(raw, b"x", None)).code == Code.SYSTEM_ERROR
    assert raw.answer(send_reply(raw, b"x", "never-was")).code == Code.SYSTEM_ERROR
    with Raw(broker.rocketmq) as asker:
        asker.heartbeat(f"{topic}@asker", {}, producers=[topic])
        sent = send_reply(raw, b"x", f"{topic}@asker")
        asker.wait_until_asked()
    assert raw.answer(sent).code == Code.SYSTEM_ERROR
    assert raw.answer(send_reply(raw, b"x", f"{topic}@asker")).code == Code.SYSTEM_ERROR
