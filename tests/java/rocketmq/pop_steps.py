"""Pops, and what settles them, at any broker of RocketMQ's protocol."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from typing import Any

from tests.doors.rocketmq.formats import decode_all
from tests.java.rocketmq.steps import SECONDS, Steps

from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import Command
from headrace.doors.rocketmq.messages import StoredMessage, read_properties

# When, for how long, and of which revive queue: each broker has its own.
TIMES = ("popTime", "invisibleTime", "reviveQid")


class PopSteps(Steps):
    """Asks one broker, and keeps the answers by the names of the steps."""

    def run(self) -> dict[str, Any]:
        """Every step."""
        self._headers: list[tuple[StoredMessage, dict[str, str]]] = []
        with self._raw, self._namesrv:
            self.make()
            self.pops()
            self.settles()
            self.looks()
            self.refusals()
            self.assignments()
            self.peeks()
            self.priorities()
        return self.found

    def make(self) -> None:
        until = time.monotonic() + SECONDS
        while self._raw.sent("pops", b"0", properties={"TAGS": "red"}).code and time.monotonic() < until:
            time.sleep(0.1)
        for number in range(1, 6):
            self._raw.sent("pops", b"%d" % number, properties={"TAGS": "red" if number % 2 else "blue", "n": "7"})
        self.wait_for("pops", 6)

    def ask(self, **more: Any) -> Command:
        fields = {"consumerGroup": "poppers", "topic": "pops", "queueId": 0, "maxMsgNums": 32, "invisibleTime": 30_000}
        fields |= {"pollTime": 0, "bornTime": int(time.time() * 1_000), "initMode": 0, "expType": "TAG", "exp": "*"}
        return self._raw.ask(Request.POP_MESSAGE, {**fields, "order": "false", **more})

    def pop(self, name: str, **more: Any) -> list[StoredMessage]:
        """A pop that finds something: RocketMQ's may have to be asked again."""
        until = time.monotonic() + SECONDS
        while (answer := self.ask(**more)).code != Code.SUCCESS and time.monotonic() < until:
            time.sleep(0.2)
        messages = list(decode_all(answer.body))
        fields = {key: key in TIMES or value for key, value in answer.fields.items()}
        described = []
        for message in messages:
            known = self.describe(message)
            check = known["properties"].pop("POP_CK", "").split(" ")
            known["properties"].pop("1ST_POP_TIME", None)
            described.append((known["body"], known["topic"], known["queue"], known["times"], len(check) in (1, 8)))
        self.found[name] = {"code": answer.code, "fields": fields, "messages": described}
        self._headers += [(message, answer.fields) for message in messages]
        return messages

    def check_of(self, message: StoredMessage) -> str:
        """POP_CK, as clients build it where the broker has not."""
        given = read_properties(message.properties).get("POP_CK")
        if given:
            return given
        header = next(fields for popped, fields in self._headers if popped is message)
        start = header["startOffsetInfo"].split(" ")[2]
        times = " ".join(header[name] for name in TIMES)
        return f"{start} {times} 0 headrace {message.queue_id} {message.queue_offset}"

    def settle(self, code: int, message: StoredMessage, **more: Any) -> Command:
        fields = {"consumerGroup": "poppers", "topic": "pops", "queueId": message.queue_id}
        fields |= {"offset": message.queue_offset, "extraInfo": self.check_of(message)}
        return self._raw.ask(code, {**fields, **more})

    def keep_times(self, name: str, answer: Command) -> None:
        fields = {key: key in TIMES or value for key, value in answer.fields.items()}
        self.found[name] = {"code": answer.code, "fields": fields}

    def pops(self) -> None:
        self.first = self.pop("pop two", maxMsgNums=2)
        self.rest = self.pop("pop the rest")
        self.keep_times("pop when all is out", self.ask())
        self.keep_times("pop an empty queue", self.ask(queueId=1))
        self.pop("pop a tag", consumerGroup="reds", exp="blue")
        self.in_order = self.pop("pop in order", consumerGroup="orderly", order="true", maxMsgNums=2)
        self.keep_times("pop in order while a batch is out", self.ask(consumerGroup="orderly", order="true"))

    def settles(self) -> None:
        ack, change = Request.ACK_MESSAGE, Request.CHANGE_MESSAGE_INVISIBLETIME
        self.keep("ack", self.settle(ack, self.first[0]))
        self.keep("ack twice", self.settle(ack, self.first[0]))
        self.keep_times("change", self.settle(change, self.first[1], invisibleTime=1_000))
        self.keep("ack with a handle that is none", self.settle(ack, self.first[1], extraInfo="1 2 3"))
        self.keep("ack beyond the end", self.settle(ack, self.rest[0], offset=99))
        self.keep("ack no queue", self.settle(ack, self.rest[0], queueId=99))
        self.keep("ack no topic", self.settle(ack, self.rest[0], topic="nothing"))
        start, popped, invisible, revive, *_ = self.check_of(self.rest[0]).split(" ")
        entry = {"c": "poppers", "t": "pops", "r": "0", "so": int(start), "q": 0, "rq": int(revive)}
        bits = sum(1 << message.queue_offset - int(start) for message in self.rest)
        entry |= {"pt": int(popped), "it": int(invisible), "b": b64encode(bits.to_bytes(1, "little")).decode()}
        body = json.dumps({"brokerName": "headrace", "acks": [entry]}).encode()
        self.keep("batch ack", self._raw.ask(Request.BATCH_ACK_MESSAGE, {}, body))
        # What was changed comes again, and nothing else does.
        self.pop("pop again")

    def looks(self) -> None:
        ask = {"consumerGroup": "lookers", "topic": "pops", "queueId": 0, "pollTime": 0}
        ask["bornTime"] = int(time.time() * 1_000)
        self.keep("notification", self._raw.ask(Request.NOTIFICATION, ask))
        self.keep("notification of an empty queue", self._raw.ask(Request.NOTIFICATION, {**ask, "queueId": 1}))
        self.keep("polling info", self._raw.ask(Request.POLLING_INFO, ask))

    def refusals(self) -> None:
        for name, more in {
            "pop too many": {"maxMsgNums": 33},
            "pop no queue": {"queueId": 99},
            "pop no topic": {"topic": "nothing"},
            "pop bad sql": {"expType": "SQL92", "exp": "a >"},
            "pop too late": {"bornTime": 1},
        }.items():
            self.keep(name, self.ask(**more))

    def assignments(self) -> None:
        asked = {"topic": "pops", "consumerGroup": "poppers", "clientId": "c", "strategyName": "AVG"}
        asked["messageModel"] = "CLUSTERING"
        self._raw.heartbeat("c", {"poppers": {"pops": "*"}})

        def ask(**more: str) -> tuple[Command, Any]:
            answer = self._raw.ask(Request.QUERY_ASSIGNMENT, {}, json.dumps({**asked, **more}).encode())
            return answer, json.loads(answer.body).get("messageQueueAssignments") if answer.body else []

        # RocketMQ's broker asks the name server for the route of a topic now and then.
        until = time.monotonic() + SECONDS
        while ask()[1] is None and time.monotonic() < until:
            time.sleep(0.5)

        def keep(name: str, **more: str) -> None:
            answer, rows = ask(**more)
            rows = rows or []
            found = [(row["messageQueue"]["queueId"], row["messageQueue"]["topic"], row["mode"]) for row in rows]
            self.found[name] = (answer.code, sorted(found))

        keep("assignment")
        keep("assignment of a broadcast", messageModel="BROADCASTING")
        mode = {"topic": "pops", "consumerGroup": "poppers", "mode": "POP", "popShareQueueNum": 0}
        self.keep("set mode", self._raw.ask(Request.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode()))
        keep("assignment of a group that pops")
        retry = json.dumps({**mode, "topic": "%RETRY%poppers"}).encode()
        self.keep("set mode of a retry topic", self._raw.ask(Request.SET_MESSAGE_REQUEST_MODE, {}, retry))

    def peek(self, name: str, **more: Any) -> None:
        fields = {"consumerGroup": "peekers", "topic": "pops", "queueId": 0, "maxMsgNums": 3}
        answer = self._raw.ask(Request.PEEK_MESSAGE, {**fields, **more})
        bodies = sorted(each.body for each in decode_all(answer.body))
        self.found[name] = {"code": answer.code, "fields": answer.fields, "bodies": bodies}

    def peeks(self) -> None:
        self._raw.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps({"groupName": "peekers"}).encode())
        self.peek("peek")
        self.peek("peek all queues", queueId=-1, maxMsgNums=32)
        self.peek("peek an empty queue", queueId=1)
        self.peek("peek when all was popped", consumerGroup="reds", maxMsgNums=32)
        self.peek("peek no queue", queueId=99)
        self.peek("peek no topic", topic="nothing")

    def priorities(self) -> None:
        topic = "priorities"
        fields = {"topic": topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "defaultTopic": "TBW102"}
        fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        attributes = {"attributes": "+message.type=PRIORITY"}
        self.keep("make", self._raw.ask(Request.UPDATE_AND_CREATE_TOPIC, {**fields, **attributes}))
        described = json.loads(self._raw.ask(Request.GET_TOPIC_CONFIG, {"topic": topic}).body)
        self.found["describe"] = described["attributes"]
        queues = {}
        for priority in ("0", "2", "1", "3", "9"):
            answer = self._raw.sent(topic, priority.encode(), properties={"_SYS_MSG_PRIORITY_": priority})
            queues[priority] = (answer.code, answer.fields["queueId"])
        answer = self._raw.sent(topic, b"k", properties={"_SYS_MSG_PRIORITY_": "3", "__SHARDINGKEY": "k"}, queue=1)
        queues["keyed"] = (answer.code, answer.fields["queueId"])
        self.found["send with priorities"] = queues
        self.wait_for(topic, 2, queue=3)
        until = time.monotonic() + SECONDS
        bodies: list[bytes] = []
        while len(bodies) < 6 and time.monotonic() < until:
            answer = self.ask(topic=topic, queueId=-1, consumerGroup="by-priority", maxMsgNums=4)
            bodies += [each.body for each in decode_all(answer.body)]
        self.found["pop by priorities"] = bodies
        (keyed,) = (each for each in self._raw.read(topic, 1) if each.body == b"k")
        self.found["a keyed message"] = "_SYS_MSG_PRIORITY_" in read_properties(keyed.properties)
