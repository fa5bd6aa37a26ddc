"""The same requests to any broker of RocketMQ's protocol, and what is comparable of the answers.

A step is a name and what came: codes, fields and bodies without addresses, times and physical offsets, which differ
from broker to broker.
"""

from __future__ import annotations

import json
import time
from typing import Any

from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.formats import decode, decode_all

from headrace.doors.rocketmq.codes import Request
from headrace.doors.rocketmq.frames import Command
from headrace.doors.rocketmq.messages import StoredMessage, read_properties, write_properties

SECONDS = 60.0
# Which broker it is, where and when.
OWN = ("msgId", "offset")
# What RocketMQ's broker adds to answers and properties, and no client looks for, but for the first two in properties.
TRACING = ("MSG_REGION", "TRACE_ON")
UNUSED = (*TRACING, "CLUSTER", "WAIT")


class Steps:
    """Asks one broker, and keeps the answers by the names of the steps."""

    def __init__(self, broker: str, namesrv: str) -> None:
        self.found: dict[str, Any] = {}
        self._raw = Raw(broker)
        self._namesrv = Raw(namesrv)

    def run(self) -> dict[str, Any]:
        """Every step."""
        with self._raw, self._namesrv:
            self.routes()
            self.sends()
            self.pulls()
            self.offsets()
            self.clients()
            self.lookups()
            self.topics()
            self.configuration()
        return self.found

    # --- the answers ---

    def keep(self, name: str, answer: Command, *, body: bool = False) -> Command:
        fields = {key: value for key, value in answer.fields.items() if key not in (*OWN, *UNUSED)}
        self.found[name] = {"code": answer.code, "fields": fields}
        if body:
            self.found[name]["body"] = json.loads(answer.body) if answer.body else None
        return answer

    def keep_messages(self, name: str, answer: Command) -> list[StoredMessage]:
        messages = list(decode_all(answer.body))
        self.keep(name, answer)
        self.found[name]["messages"] = [self.describe(each) for each in messages]
        return messages

    @staticmethod
    def describe(message: StoredMessage) -> dict[str, Any]:
        return {
            "topic": message.topic,
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "body": message.body,
            "flag": message.flag,
            "sys_flag": message.sys_flag,
            "times": message.reconsume_times,
            "born_ms": message.born_ms,
            "properties": {
                # An id has the address of its broker.
                name: len(value) if name == "ORIGIN_MESSAGE_ID" else value
                for name, value in read_properties(message.properties).items()
                if name not in UNUSED
            },
        }

    def wait_for(self, topic: str, count: int, queue: int = 0) -> None:
        """Until a queue has so many messages: RocketMQ's appear after they are acknowledged."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            answer = self._raw.ask(Request.GET_MAX_OFFSET, {"topic": topic, "queueId": queue})
            if answer.code == 0 and int(answer.fields["offset"]) >= count:
                return
            time.sleep(0.05)
        raise TimeoutError(f"{topic} does not come to {count} messages")

    # --- the steps ---

    def routes(self) -> None:
        route = Request.GET_ROUTEINFO_BY_TOPIC
        until = time.monotonic() + SECONDS
        while (answer := self._namesrv.ask(route, {"topic": "TBW102"})).code and time.monotonic() < until:
            time.sleep(0.1)
        data = json.loads(answer.body)
        self.found["route of TBW102"] = (sorted(data), data["queueDatas"], sorted(data["brokerDatas"][0]))
        self.keep("route of nothing", self._namesrv.ask(route, {"topic": "nothing"}))
        # RocketMQ's own encoder writes the ids of brokers as names without quotes.
        written = self._namesrv.ask(Request.GET_BROKER_CLUSTER_INFO).body.replace(b"{0:", b'{"0":')
        info = json.loads(written)
        self.found["cluster"] = (sorted(info), info["clusterAddrTable"], sorted(info["brokerAddrTable"]["headrace"]))
        self.keep("unknown request", self._raw.ask(9_999))
        self.keep("unknown request to the name server", self._namesrv.ask(9_999))

    def sends(self) -> None:
        raw = self._raw
        self.keep("send", raw.sent("orders", b"0", flag=7, properties={"TAGS": "Aa", "KEYS": "k"}))
        long = {"producerGroup": "p", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4}
        long |= {"queueId": 0, "sysFlag": 0, "bornTimestamp": 5, "flag": 1, "reconsumeTimes": 0, "unitMode": "false"}
        self.keep(
            "send v1", raw.ask(Request.SEND_MESSAGE, {**long, "properties": write_properties({"UNIQ_KEY": "0B"})}, b"1")
        )
        self.keep("send batch", raw.send_batch("orders", [b"2", b"3"]))
        raw.send_message("orders", b"4", one_way=True, properties={"TAGS": "red"})
        self.wait_for("orders", 5)
        self.keep("send to no queue", raw.sent("orders", b"x", queue=99))
        self.keep("send to a bad name", raw.sent("bad$name", b"x"))
        self.keep("send to TBW102", raw.sent("TBW102", b"x"))
        self.keep("send a large body", raw.sent("orders", b"x" * 4_300_000))
        self.keep("send large properties", raw.sent("orders", b"x", properties={"p": "x" * 33_000}))
        data = json.loads(self._namesrv.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).body or b"{}")
        self.found["queues of a new topic"] = data.get("queueDatas")

    def pulls(self) -> None:
        raw = self._raw
        first, *_ = self.keep_messages("pull", raw.answer(raw.pull("orders")))
        # RocketMQ leaves them out of batches.
        properties = read_properties(first.properties)
        self.found["tracing"] = {name: properties.get(name) for name in TRACING}
        self.keep_messages("pull two", raw.answer(raw.pull("orders", 1, maxMsgNums=2)))
        self.keep("pull at the end", raw.answer(raw.pull("orders", 5)))
        self.keep("pull beyond the end", raw.answer(raw.pull("orders", 50)))
        self.keep("pull before the start", raw.answer(raw.pull("orders", -1)))
        self.keep("pull of an empty queue", raw.answer(raw.pull("orders", 0, queue=1)))
        self.keep("pull of no queue", raw.answer(raw.pull("orders", 0, queue=99)))
        self.keep("pull of no topic", raw.answer(raw.pull("nothing")))
        self.keep_messages("pull a tag of the same hash", raw.answer(raw.pull("orders", subscription="BB")))
        self.keep("pull a tag that none has", raw.answer(raw.pull("orders", subscription="none")))
        self.keep("pull without a member", raw.answer(raw.pull("orders", consumerGroup="nobody", sysFlag=0)))
        waiting = raw.pull("orders", 5, wait_ms=20_000)
        raw.sent("orders", b"5")
        self.keep_messages("pull that waited", raw.answer(waiting))
        self.keep("pull that waited in vain", raw.answer(raw.pull("orders", 6, wait_ms=10)))

    def offsets(self) -> None:
        raw = self._raw
        place = {"consumerGroup": "g", "topic": "orders", "queueId": 0}

        def offset(name: str, code: int, **more: Any) -> None:
            answer = raw.ask(code, {**place, **more})
            self.found[name] = (answer.code, answer.fields)

        offset("position of a new group", Request.QUERY_CONSUMER_OFFSET)
        offset("position in an empty queue", Request.QUERY_CONSUMER_OFFSET, queueId=1)
        offset("position without a zero", Request.QUERY_CONSUMER_OFFSET, setZeroIfNotFound="false")
        offset("update", Request.UPDATE_CONSUMER_OFFSET, commitOffset=3)
        offset("position", Request.QUERY_CONSUMER_OFFSET)
        offset("largest", Request.GET_MAX_OFFSET)
        offset("largest of an empty queue", Request.GET_MAX_OFFSET, queueId=1)
        offset("least", Request.GET_MIN_OFFSET)
        offset("search the beginning", Request.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=1)
        offset("search the end", Request.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=int(time.time() * 1000) + 100_000)
        offset("earliest of an empty queue", Request.GET_EARLIEST_MSG_STORETIME, queueId=1)

    def clients(self) -> None:
        raw = self._raw
        members = Request.GET_CONSUMER_LIST_BY_GROUP
        self.keep("members of nothing", raw.ask(members, {"consumerGroup": "nobody"}))
        raw.heartbeat("one", {"g": {"orders": "red", "%RETRY%g": "*"}})
        self.found["notice"] = (raw.wait_until_asked().code, raw.asked)
        self.keep("members", raw.ask(members, {"consumerGroup": "g"}), body=True)
        self.keep_messages("pull by heartbeat", raw.answer(raw.pull("orders", consumerGroup="g", sysFlag=0)))
        self.keep(
            "pull by an old heartbeat", raw.answer(raw.pull("orders", consumerGroup="g", sysFlag=0, subVersion=9))
        )
        retry = json.loads(self._namesrv.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%g"}).body or b"{}")
        self.found["route of a retry topic"] = retry.get("queueDatas")
        queues = [{"brokerName": "headrace", "topic": "orders", "queueId": number} for number in range(2)]
        for name, client, code in (
            ("lock", "one", Request.LOCK_BATCH_MQ),
            ("lock of another", "two", Request.LOCK_BATCH_MQ),
            ("unlock", "one", Request.UNLOCK_BATCH_MQ),
            ("lock after all", "two", Request.LOCK_BATCH_MQ),
        ):
            asked = json.dumps({"clientId": client, "consumerGroup": "g", "mqSet": queues}).encode()
            answer = raw.ask(code, {}, asked)
            body = json.loads(answer.body) if answer.body else {}
            locked = sorted(each["queueId"] for each in body.get("lockOKMQSet", ()))
            self.found[name] = (answer.code, locked)
        self.keep("unregister", raw.ask(Request.UNREGISTER_CLIENT, {"clientID": "one", "consumerGroup": "g"}))
        self.keep("members that went", raw.ask(members, {"consumerGroup": "g"}))

    def lookups(self) -> None:
        raw = self._raw
        first = next(iter(raw.read("orders")))
        answer = raw.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": first.physical_offset})
        self.found["view"] = (answer.code, self.describe(decode(answer.body)[0]))
        self.keep("view nothing", raw.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": first.physical_offset + (1 << 61)}))
        back = {"offset": first.physical_offset, "group": "g", "delayLevel": 1, "originTopic": "orders"}
        back |= {"originMsgId": "ABC", "unitMode": "false", "maxReconsumeTimes": 2}
        self.keep("send back", raw.ask(Request.CONSUMER_SEND_MSG_BACK, back))
        self.wait_for("%RETRY%g", 1)
        self.keep_messages("again", raw.answer(raw.pull("%RETRY%g", consumerGroup="g")))
        self.keep("send back as dead", raw.ask(Request.CONSUMER_SEND_MSG_BACK, {**back, "delayLevel": -1}))
        self.wait_for("%DLQ%g", 1)
        self.keep_messages("dead", raw.answer(raw.pull("%DLQ%g", consumerGroup="g")))
        self.keep("send back nothing", raw.ask(Request.CONSUMER_SEND_MSG_BACK, {**back, "offset": 1 << 61}))
        raw.sent("delays", b"now")
        self.keep("send later", raw.sent("delays", b"later", properties={"DELAY": "1"}))
        self.wait_for("delays", 2)
        self.keep_messages("later", raw.answer(raw.pull("delays", 1)))

    def topics(self) -> None:
        raw, namesrv = self._raw, self._namesrv
        asked = {"topic": "shaped", "defaultTopic": "TBW102", "readQueueNums": 6, "writeQueueNums": 3, "perm": 6}
        asked |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        self.keep("make a topic", raw.ask(Request.UPDATE_AND_CREATE_TOPIC, asked))
        self.keep("make a bad topic", raw.ask(Request.UPDATE_AND_CREATE_TOPIC, {**asked, "topic": "bad$name"}))
        until = time.monotonic() + SECONDS
        route = Request.GET_ROUTEINFO_BY_TOPIC
        while (answer := namesrv.ask(route, {"topic": "shaped"})).code and time.monotonic() < until:
            time.sleep(0.1)
        self.found["queues of a topic that was made"] = json.loads(answer.body)["queueDatas"]
        listed = json.loads(namesrv.ask(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)["topicList"]
        self.found["topics"] = sorted({"orders", "shaped", "delays"} & set(listed))
        self.keep("delete a topic", raw.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": "shaped"}))
        self.keep("delete its route", namesrv.ask(Request.DELETE_TOPIC_IN_NAMESRV, {"topic": "shaped"}))
        self.keep("delete no topic", raw.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": "never-was"}))
        self.keep("send to a deleted topic", raw.sent("shaped", b"x", d=2))

    def configuration(self) -> None:
        namesrv = self._namesrv
        name = {"namespace": "n", "key": "k"}
        self.keep("no value", namesrv.ask(Request.GET_KV_CONFIG, name))
        self.keep("put a value", namesrv.ask(Request.PUT_KV_CONFIG, {**name, "value": "v"}))
        self.keep("value", namesrv.ask(Request.GET_KV_CONFIG, name))
        self.keep("values", namesrv.ask(Request.GET_KVLIST_BY_NAMESPACE, name), body=True)
        self.keep("delete a value", namesrv.ask(Request.DELETE_KV_CONFIG, name))
        self.keep("no values", namesrv.ask(Request.GET_KVLIST_BY_NAMESPACE, {"namespace": "other"}))
        wiped = namesrv.ask(Request.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "headrace"})
        self.found["wipe"] = (wiped.code, int(wiped.fields["wipeTopicCount"]) > 0)
        added = namesrv.ask(Request.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "headrace"})
        self.found["add"] = (added.code, int(added.fields["addTopicCount"]) > 0)
