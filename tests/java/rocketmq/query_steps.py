"""Queries by key, asked of any broker of RocketMQ's protocol."""

from __future__ import annotations

import time
from typing import Any

from tests.doors.rocketmq.formats import decode_all
from tests.java.rocketmq.steps import SECONDS, Steps

from headrace.doors.rocketmq.codes import Request
from headrace.doors.rocketmq.frames import Command

EVER = (1 << 63) - 1
TOPIC = "orders"


class QuerySteps(Steps):
    """Sends messages and finds them again."""

    def run(self) -> dict[str, Any]:
        with self._raw, self._namesrv:
            self.prepare()
            self.query("a word of KEYS", "k1")
            self.query("another", "all")
            self.query("the newest few", "all", maxNum=3)
            self.query("more than there may be", "all", maxNum=1_000)
            self.query("a unique key", "U0007")
            self.query("as tools ask for it", "U0007", _UNIQUE_KEY_QUERY="true")
            self.query("as later tools do", "U0007", indexType="U")
            self.query("by the kind of keys", "k1", indexType="K")
            self.query("a tag", "t1", indexType="T")
            self.query("a tag that is none", "t9", indexType="T")
            self.query("nothing", "none")
            self.query("a part of a word", "k")
            self.query("of the past", "k1", endTimestamp=1_000)
            self.query("of the future", "k1", beginTimestamp=EVER - 1)
            self.query("an unknown topic", "k1", topic="never-was")
            self.query("a key sent to another topic", "k1", topic="others")
            self.query("KEYS with many blanks", "blank")
            self.query("KEYS as a whole", "k1 all")
            self.query("a sent-back message's first", "again")
            self.query("its retry", "again", topic="%RETRY%g")
        return self.found

    def prepare(self) -> None:
        raw = self._raw
        until = time.monotonic() + SECONDS
        route = Request.GET_ROUTEINFO_BY_TOPIC
        while self._namesrv.ask(route, {"topic": "TBW102"}).code and time.monotonic() < until:
            time.sleep(0.1)
        for number in range(70):
            properties = {"UNIQ_KEY": f"U{number:04d}", "KEYS": f"k{number % 20} all", "TAGS": f"t{number % 30}"}
            raw.sent(TOPIC, b"%d" % number, properties=properties)
        raw.sent(TOPIC, b"blanks", properties={"UNIQ_KEY": "U9998", "KEYS": "  blank  very "})
        raw.sent(TOPIC, b"again", properties={"UNIQ_KEY": "U9997", "KEYS": "again"})
        raw.sent("others", b"other", properties={"UNIQ_KEY": "U9999", "KEYS": "k2"})
        last = next(each for each in raw.read(TOPIC) if each.body == b"again")
        back: dict[str, Any] = {"offset": last.physical_offset, "group": "g", "delayLevel": 1, "originTopic": TOPIC}
        raw.ask(
            Request.CONSUMER_SEND_MSG_BACK, {**back, "originMsgId": "A", "unitMode": "false", "maxReconsumeTimes": 2}
        )
        self.wait_for("%RETRY%g", 1)
        # RocketMQ's index follows its log a moment later.
        for topic, key in (("others", "k2"), ("%RETRY%g", "again")):
            while self.ask(key, topic=topic).code and time.monotonic() < until:
                time.sleep(0.1)

    def ask(self, key: str, **more: Any) -> Command:
        fields = {"topic": TOPIC, "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": EVER, **more}
        return self._raw.ask(Request.QUERY_MESSAGE, fields)

    def query(self, name: str, key: str, **more: Any) -> None:
        answer = self.ask(key, **more)
        figures = {field: int(value) > 0 for field, value in sorted(answer.fields.items()) if field.startswith("index")}
        self.found[name] = {
            "code": answer.code,
            "remark": answer.remark,
            "figures": figures,
            "messages": [self.describe(each) for each in decode_all(answer.body)],
        }
