"""What administrators ask of any broker of RocketMQ's protocol, and what is comparable of the answers."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.doors.rocketmq.client import load_tables
from tests.java.rocketmq.steps import SECONDS, Steps

from headrace.doors.rocketmq.codes import Request
from headrace.doors.rocketmq.frames import Command

# Times, addresses, and what only a broker itself knows.
OWN = frozenset(
    (
        *("lastTimestamp", "lastUpdateTimestamp", "pullOffset", "timestamp", "dataVersion", "mappingDataVersion"),
        *("brokerAddr", "clientAddr", "remoteIP", "delayTime", "totalInflightDiff"),
        *("consumeTimeStamp", "maxTimeStamp", "minTimeStamp"),
        *("consumeTimeStampStr", "maxTimeStampStr", "minTimeStampStr"),
    )
)
GROUP = {
    "groupName": "g",
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeBroadcastEnable": True,
    "retryQueueNums": 1,
    "retryMaxTimes": 3,
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
}
TOPIC = {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
TOPIC |= {"order": False, "attributes": {}}


def comparable(value: Any) -> Any:
    """A body without what differs from broker to broker."""
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in sorted(value.items()) if name not in OWN}
    if isinstance(value, list):
        return sorted((comparable(each) for each in value), key=repr)
    return value


class AdminSteps(Steps):
    """Asks what tools ask."""

    def run(self) -> dict[str, Any]:
        with self._raw, self._namesrv:
            self.prepare()
            self.shapes()
            self.connections()
            self.settings()
            self.progress()
            self.resets()
            self.permissions()
            self.forwarded()
        return self.found

    def show(self, name: str, answer: Command) -> None:
        """Keep code and body."""
        body = load_tables(answer.body) if answer.body and answer.code == 0 else None
        self.found[name] = {"code": answer.code, "body": comparable(body)}

    def ask(self, name: str, code: int, body: Any = None, **fields: Any) -> None:
        self.show(name, self._raw.ask(code, fields, b"" if body is None else json.dumps(body).encode()))

    # --- the steps ---

    def prepare(self) -> None:
        raw = self._raw
        until = time.monotonic() + SECONDS
        route = Request.GET_ROUTEINFO_BY_TOPIC
        while self._namesrv.ask(route, {"topic": "TBW102"}).code and time.monotonic() < until:
            time.sleep(0.1)
        for number in range(5):
            raw.sent("orders", b"%d" % number, queue=number % 2)
        self.wait_for("orders", 3)
        self.wait_for("orders", 2, queue=1)
        raw.heartbeat("one", {"g": {"orders": "red", "%RETRY%g": "*"}}, producers=["p"])
        raw.ask(Request.UPDATE_CONSUMER_OFFSET, self.place(commitOffset=1))

    @staticmethod
    def place(**more: Any) -> dict[str, Any]:
        return {"consumerGroup": "g", "topic": "orders", "queueId": 0, **more}

    def shapes(self) -> None:
        self.ask("topic", Request.GET_TOPIC_CONFIG, topic="orders")
        self.ask("no topic", Request.GET_TOPIC_CONFIG, topic="nothing")
        table = self._raw.json(Request.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]
        self.found["topics"] = {name: table[name] for name in ("orders", "TBW102", "%RETRY%g")}
        self.ask("statistics", Request.GET_TOPIC_STATS_INFO, topic="orders")
        self.ask("statistics of nothing", Request.GET_TOPIC_STATS_INFO, topic="nothing")
        self.ask(
            "make topics", Request.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [{**TOPIC, "topicName": "made"}]}
        )
        self.ask("made", Request.GET_TOPIC_CONFIG, topic="made")
        bad = {"topicConfigList": [{**TOPIC, "topicName": "bad$name"}]}
        self.ask("make bad topics", Request.UPDATE_AND_CREATE_TOPIC_LIST, bad)
        listed = self._raw.json(Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)["topicList"]
        self.found["system topics"] = sorted({"TBW102", "DefaultCluster", "headrace", "orders"} & set(listed))
        unknown = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "nothing"}
        self.ask("figures of nothing", Request.VIEW_BROKER_STATS_DATA, **unknown)
        figures = self._raw.json(Request.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="orders")
        self.found["figures"] = {name: sorted(each) for name, each in sorted(figures.items())}
        table = self._raw.json(Request.GET_BROKER_RUNTIME_INFO)["table"]
        used = ("brokerVersionDesc", "brokerActive", "msgPutTotalTodayNow", "msgPutTotalTodayMorning")
        self.found["runtime"] = {name: table[name] for name in used}
        config = dict(
            line.split("=", 1) for line in self._raw.ask(Request.GET_BROKER_CONFIG).body.decode().splitlines()
        )
        used = ("brokerName", "brokerClusterName", "brokerId", "brokerRole", "autoCreateTopicEnable", "maxMessageSize")
        used += ("autoCreateSubscriptionGroup", "flushDiskType", "messageDelayLevel", "useServerSideResetOffset")
        used += ("defaultTopicQueueNums", "brokerPermission", "brokerIP1")
        self.found["configuration"] = {name: config[name] for name in used}

    def connections(self) -> None:
        self.ask("consumers", Request.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
        self.ask("consumers of nothing", Request.GET_CONSUMER_CONNECTION_LIST, consumerGroup="nothing")
        self.ask("producers", Request.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
        self.ask("producers of nothing", Request.GET_PRODUCER_CONNECTION_LIST, producerGroup="nothing")
        producers = self._raw.json(Request.GET_ALL_PRODUCER_INFO)["data"]
        self.found["all producers"] = comparable({"p": producers["p"]})
        self.ask("subscription", Request.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="orders")
        self.ask("no subscription", Request.QUERY_SUBSCRIPTION_BY_CONSUMER, group="nothing", topic="orders")

    def settings(self) -> None:
        self.ask("set a group", Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, GROUP)
        self.ask("set a bad group", Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {**GROUP, "groupName": "bad$name"})
        both = {"groupConfigList": [{**GROUP, "groupName": "listed"}]}
        self.ask("set groups", Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, both)
        self.ask("group", Request.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
        self.ask("default group", Request.GET_SUBSCRIPTIONGROUP_CONFIG, group="new")
        table = self._raw.json(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)["subscriptionGroupTable"]
        self.found["groups"] = {name: comparable(table[name]) for name in ("g", "listed")}
        self.ask("delete a group", Request.DELETE_SUBSCRIPTIONGROUP, groupName="listed", cleanOffset="true")
        self.ask("delete no group", Request.DELETE_SUBSCRIPTIONGROUP, groupName="never-was")
        table = self._raw.json(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)["subscriptionGroupTable"]
        self.found["groups that are left"] = [name for name in ("g", "listed") if name in table]

    def progress(self) -> None:
        self.ask("progress", Request.GET_CONSUME_STATS, consumerGroup="g")
        self.ask("progress in a topic", Request.GET_CONSUME_STATS, consumerGroup="g", topic="orders")
        self.ask("progress of nothing", Request.GET_CONSUME_STATS, consumerGroup="nothing")
        self.ask("readers", Request.QUERY_TOPIC_CONSUME_BY_WHO, topic="orders")
        self.ask("readers of nothing", Request.QUERY_TOPIC_CONSUME_BY_WHO, topic="nothing")
        self.ask("topics of a group", Request.QUERY_TOPICS_BY_CONSUMER, group="g")
        self.ask("topics of nothing", Request.QUERY_TOPICS_BY_CONSUMER, group="nothing")
        self.ask("times", Request.QUERY_CONSUME_TIME_SPAN, topic="orders", group="g")
        self.ask("times of nothing", Request.QUERY_CONSUME_TIME_SPAN, topic="nothing", group="g")
        corrected = {"topic": "orders", "compareGroup": "g", "filterGroups": ""}
        self.ask("correction", Request.QUERY_CORRECTION_OFFSET, **corrected)
        self.ask("correction of nothing", Request.QUERY_CORRECTION_OFFSET, **{**corrected, "topic": "nothing"})
        clone = {"srcGroup": "g", "destGroup": "copy", "topic": "orders", "offline": "false"}
        self.ask("clone", Request.CLONE_GROUP_OFFSET, **clone)
        self.ask("clone nothing", Request.CLONE_GROUP_OFFSET, **{**clone, "srcGroup": "nothing"})
        self.keep_position("position of the clone", "copy")

    def keep_position(self, name: str, group: str) -> None:
        answer = self._raw.ask(Request.QUERY_CONSUMER_OFFSET, {**self.place(), "consumerGroup": group})
        self.found[name] = (answer.code, answer.fields)

    def resets(self) -> None:
        def reset(name: str, **more: Any) -> None:
            fields = {"topic": "orders", "group": "g", "timestamp": -1, "isForce": "true", **more}
            self.ask(name, Request.INVOKE_BROKER_TO_RESET_OFFSET, **fields)

        reset("reset to the beginning", timestamp=0)
        reset("reset to the end")
        reset("reset to an offset", queueId=0, offset=2)
        self.keep_position("position after the reset", "g")
        reset("reset beyond the end", queueId=0, offset=200)
        reset("reset a group that is not there", group="nothing")
        reset("reset in a topic that is not there", topic="nothing")
        raw = self._raw
        self.keep("commit during the reset", raw.ask(Request.UPDATE_CONSUMER_OFFSET, self.place(commitOffset=3)))
        self.keep_position("position after the commit", "g")
        self.keep("pull after the reset", raw.answer(raw.pull("orders", 0, consumerGroup="g")))
        self.keep("pull where the reset is", raw.answer(raw.pull("orders", 2, consumerGroup="g")))

    def permissions(self) -> None:
        raw = self._raw
        self.ask("forbid", Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {**GROUP, "consumeEnable": False})
        self.keep("pull of one that may not", raw.answer(raw.pull("orders", 2, consumerGroup="g")))
        self.ask("allow", Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {**GROUP, "consumeBroadcastEnable": False})
        self.keep("pull of one that may", raw.answer(raw.pull("orders", 2, consumerGroup="g")))

    def forwarded(self) -> None:
        raw = self._raw
        to = {"consumerGroup": "g", "clientId": "nobody", "jstackEnable": "false"}
        self.ask("running nothing", Request.GET_CONSUMER_RUNNING_INFO, **to)
        waiting = raw.send(Request.GET_CONSUMER_RUNNING_INFO, {**to, "clientId": "one"})
        while (asked := raw.wait_until_asked()).code != Request.GET_CONSUMER_RUNNING_INFO:
            pass
        self.found["asked"] = (asked.code, asked.flag, asked.fields)
        raw.reply(asked, body=b"{}")
        self.show("running", raw.answer(waiting))
        waiting = raw.send(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "orders", "group": "g"})
        asked = raw.wait_until_asked()
        self.found["asked for positions"] = (asked.code, asked.flag, asked.fields)
        table = b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"headrace","queueId":0,"topic":"orders"}:2}}'
        raw.reply(asked, body=table)
        self.show("positions", raw.answer(waiting))
