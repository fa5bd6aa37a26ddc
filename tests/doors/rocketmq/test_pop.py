"""Popping over remoting: leases by POP_CK, order, waiting, filters, dead letters, and what is refused."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.formats import decode_all
from tests.longer import examples
from tests.waiting import wait_until

import headrace
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import Command
from headrace.doors.rocketmq.messages import StoredMessage, read_properties
from headrace.doors.rocketmq.remoting.checkpoints import Checkpoint
from headrace.errors import InvalidHandle


class Popper:
    """A client of one group and topic."""

    def __init__(self, raw: Raw, topic: str, group: str = "poppers") -> None:
        self.raw = raw
        self.fields: dict[str, Any] = {"consumerGroup": group, "topic": topic, "queueId": -1}

    def begin(self, *, wait_ms: int = 0, **more: Any) -> int:
        fields = {**self.fields, "maxMsgNums": 32, "invisibleTime": 60_000, "pollTime": wait_ms, "bornTime": 0}
        fields |= {"initMode": 0, "expType": "TAG", "exp": "*", "order": "false", **more}
        return self.raw.send(Request.POP_MESSAGE, {name: str(value) for name, value in fields.items()})

    def pop(self, **more: Any) -> tuple[Command, list[StoredMessage]]:
        answer = self.raw.answer(self.begin(**more))
        return answer, list(decode_all(answer.body))

    def bodies(self, **more: Any) -> list[bytes]:
        return [each.body for each in self.pop(**more)[1]]

    def settle(self, code: int, message: StoredMessage, check: str | None = None, **more: Any) -> Command:
        fields = {**self.fields, "queueId": message.queue_id, "offset": message.queue_offset}
        return self.raw.ask(code, {**fields, "extraInfo": check or check_of(message), **more})

    def ack(self, message: StoredMessage, check: str | None = None) -> int:
        return self.settle(Request.ACK_MESSAGE, message, check).code

    def change(self, message: StoredMessage, invisible_ms: int, check: str | None = None) -> Command:
        return self.settle(Request.CHANGE_MESSAGE_INVISIBLETIME, message, check, invisibleTime=invisible_ms)


def check_of(message: StoredMessage) -> str:
    return read_properties(message.properties)["POP_CK"]


@pytest.fixture
def popper(raw: Raw, topic: str) -> Popper:
    return Popper(raw, topic, f"g-{topic}")


def test_what_is_popped_is_leased_until_it_is_acknowledged(popper: Popper, raw: Raw, topic: str) -> None:
    for number in range(3):
        raw.sent(topic, b"%d" % number, properties={"TAGS": "red"})
    answer, found = popper.pop(maxMsgNums=2)
    assert (answer.code, [each.body for each in found]) == (Code.SUCCESS, [b"0", b"1"])
    fields = answer.fields
    assert (fields["startOffsetInfo"], fields["msgOffsetInfo"], fields["restNum"]) == ("0 0 0", "0 0 0,1", "1")
    parts = check_of(found[1]).split(" ")
    assert parts == ["0", fields["popTime"], fields["invisibleTime"], "1", "0", "headrace", "0", "1"]
    assert 60_000 <= int(fields["invisibleTime"]) <= 60_031
    assert popper.bodies() == [b"2"]
    assert popper.pop()[0].code == Code.POLLING_TIMEOUT
    assert popper.ack(found[0]) == Code.SUCCESS
    # Shorter, and by the fields of the answer.
    changed = popper.change(found[1], 50).fields
    (again,) = popper.pop(wait_ms=20_000)[1]
    assert (again.body, again.reconsume_times) == (b"1", 1)
    # A stale handle settles nothing: RocketMQ takes it, too.
    assert popper.ack(found[1]) == Code.SUCCESS
    stale = Checkpoint(0, 1, 1, int(changed["popTime"]), int(changed["invisibleTime"])).encode(0, "headrace")
    assert popper.ack(again, stale) == Code.SUCCESS
    assert popper.change(again, 10_000, stale).code == Code.NO_MESSAGE
    assert popper.change(again, 0).code == Code.SUCCESS
    (last,) = popper.pop()[1]
    assert last.reconsume_times == 2
    assert popper.ack(last) == Code.SUCCESS
    assert popper.change(last, 0).code == Code.NO_MESSAGE


def test_a_batch_is_acknowledged_by_its_bits(popper: Popper, raw: Raw, topic: str) -> None:
    for number in range(5):
        raw.sent(topic, b"%d" % number)
    _, found = popper.pop()
    start, popped, invisible, attempt, *_ = map(int, check_of(found[1]).split(" ")[:4])
    entry = {"c": popper.fields["consumerGroup"], "t": topic, "r": "0", "so": start, "q": 0, "rq": attempt}
    entry |= {"pt": popped, "it": invisible, "b": b64encode(bytes((0b10110,))).decode()}
    body = json.dumps({"brokerName": "headrace", "acks": [entry]}).encode()
    assert raw.ask(Request.BATCH_ACK_MESSAGE, {}, body).code == Code.SUCCESS
    for message in found:
        popper.change(message, 0)
    assert sorted(popper.bodies(wait_ms=20_000)) == [b"0", b"3"]


def test_pops_wait_and_are_seen_waiting(broker: headrace.Broker, popper: Popper, raw: Raw, topic: str) -> None:
    raw.sent(topic, b"zero")
    assert popper.bodies() == [b"zero"]
    with Raw(broker.rocketmq) as other:
        waiting = Popper(other, topic, popper.fields["consumerGroup"]).begin(wait_ms=30_000)
        polling = {**popper.fields, "queueId": -1}
        wait_until(lambda: raw.ask(Request.POLLING_INFO, polling).fields["pollingNum"] == "1")
        raw.sent(topic, b"one")
        assert [each.body for each in decode_all(other.answer(waiting).body)] == [b"one"]
        # One that is given up leaves its message to others.
        Popper(other, topic, popper.fields["consumerGroup"]).begin(wait_ms=30_000)
        wait_until(lambda: raw.ask(Request.POLLING_INFO, polling).fields["pollingNum"] == "1")
    wait_until(lambda: raw.ask(Request.POLLING_INFO, polling).fields["pollingNum"] == "0")
    raw.sent(topic, b"two")
    assert popper.bodies(wait_ms=20_000) == [b"two"]
    assert popper.pop(bornTime=1)[0].code == Code.POLLING_TIMEOUT


def test_notification_looks_and_takes_nothing(popper: Popper, raw: Raw, topic: str) -> None:
    raw.sent(topic, b"zero")
    ask = {**popper.fields, "pollTime": 0, "bornTime": 0}
    assert raw.ask(Request.NOTIFICATION, ask).fields == {"hasMsg": "true", "pollingFull": "false"}
    assert raw.ask(Request.NOTIFICATION, {**ask, "queueId": 1}).fields["hasMsg"] == "false"
    assert popper.bodies() == [b"zero"]
    waiting = raw.send(Request.NOTIFICATION, {name: str(value) for name, value in {**ask, "pollTime": 30_000}.items()})
    raw.sent(topic, b"one")
    assert raw.answer(waiting).fields["hasMsg"] == "true"


def test_a_queue_is_popped_in_order(popper: Popper, raw: Raw, topic: str) -> None:
    for number in range(4):
        raw.sent(topic, b"%d" % number, queue=1)
        raw.sent(topic, b"other", queue=2)
    first = popper.pop(order="true", queueId=1, maxMsgNums=2)
    assert ([each.body for each in first[1]], first[0].fields["orderCountInfo"]) == ([b"0", b"1"], "0 1 0")
    assert popper.bodies(order="true", queueId=1) == []
    assert popper.ack(first[1][1]) == Code.SUCCESS
    assert popper.bodies(order="true", queueId=1) == []
    popper.change(first[1][0], 20)
    again = popper.pop(order="true", queueId=1, wait_ms=20_000)
    assert ([each.body for each in again[1]], again[0].fields["orderCountInfo"]) == ([b"0"], "0 1 1")
    assert popper.ack(again[1][0]) == Code.SUCCESS
    assert popper.bodies(order="true", queueId=1) == [b"2", b"3"]


def test_tags_and_sql92(popper: Popper, raw: Raw, topic: str) -> None:
    for number in range(6):
        raw.sent(topic, b"%d" % number, properties={"TAGS": "red" if number % 2 else "blue", "n": str(number)})
    assert popper.bodies(exp="red || green") == [b"1", b"3", b"5"]
    other = Popper(raw, topic, f"o-{topic}")
    assert other.bodies(exp="n > 3", expType="SQL92") == [b"4", b"5"]
    assert other.pop(exp="n >", expType="SQL92")[0].code == Code.SUBSCRIPTION_PARSE_FAILED


def test_a_message_is_dead_after_the_retries_of_its_group(popper: Popper, raw: Raw, topic: str) -> None:
    group = popper.fields["consumerGroup"]
    raw.ask(
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps({"groupName": group, "retryMaxTimes": 1}).encode()
    )
    raw.sent(topic, b"bad")
    for times in range(2):
        (found,) = popper.pop(wait_ms=20_000)[1]
        assert found.reconsume_times == times
        assert popper.change(found, 0).code == Code.SUCCESS
    wait_until(lambda: [each.body for each in raw.pulled(f"%DLQ%{group}")[1]] == [b"bad"])
    assert popper.bodies() == []


def test_what_cannot_be_popped_is_refused(popper: Popper, raw: Raw, topic: str) -> None:
    assert popper.pop()[0].code == Code.TOPIC_NOT_EXIST
    raw.sent(topic, b"one")
    assert popper.pop(maxMsgNums=33)[0].code == Code.INVALID_PARAMETER
    assert popper.pop(queueId=9)[0].code == Code.INVALID_PARAMETER
    assert popper.pop(queueId=-2)[0].code == Code.INVALID_PARAMETER
    for invisible_ms in (0, -1, 43_200_001):
        assert popper.pop(invisibleTime=invisible_ms)[0].code == Code.INVALID_PARAMETER
    ((found,),) = popper.pop()[1:]
    for check in ("x", "", "1 2 3", check_of(found) + " 1", check_of(found).replace(" 0 headrace", " -1 headrace x")):
        assert popper.settle(Request.ACK_MESSAGE, found, check or " ").code == Code.MESSAGE_ILLEGAL, check
    other = Checkpoint.decode(check_of(found))
    for wrong, code in (({"offset": 99}, Code.NO_MESSAGE), ({"queueId": 9}, Code.MESSAGE_ILLEGAL)):
        assert popper.settle(Request.ACK_MESSAGE, found, **wrong).code == code
    elsewhere = Checkpoint(1, other.offset, 1, 0, 0).encode(0, "b")
    assert popper.ack(found, elsewhere) == Code.MESSAGE_ILLEGAL
    for entry in ({}, {"b": "%%"}, {"b": "AQ==", "q": "x"}, {"b": "A" * 5_000}):
        body = json.dumps({"acks": [entry]}).encode()
        assert raw.ask(Request.BATCH_ACK_MESSAGE, {}, body).code == Code.MESSAGE_ILLEGAL
    assert popper.ack(found) == Code.SUCCESS


def test_modes_and_assignments(popper: Popper, raw: Raw, topic: str) -> None:
    raw.sent(topic, b"one")
    asked = {"topic": topic, "consumerGroup": "g", "clientId": "c", "strategyName": "AVG", "messageModel": "CLUSTERING"}

    def assigned(**more: str) -> list[tuple[int, str]]:
        answer = raw.ask(Request.QUERY_ASSIGNMENT, {}, json.dumps({**asked, **more}).encode())
        rows = json.loads(answer.body)["messageQueueAssignments"]
        return [(row["messageQueue"]["queueId"], row["mode"]) for row in rows]

    assert assigned() == []
    assert assigned(messageModel="BROADCASTING") == [(number, "PULL") for number in range(4)]
    mode = {"topic": topic, "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
    assert raw.ask(Request.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode()).code == Code.SUCCESS
    assert assigned() == [(-1, "POP")]
    wrong: list[dict[str, object]] = [{"mode": "PUSH"}, {"topic": ""}, {"consumerGroup": ""}]
    for each in wrong:
        body = json.dumps({**mode, **each}).encode()
        assert raw.ask(Request.SET_MESSAGE_REQUEST_MODE, {}, body).code == Code.INVALID_PARAMETER
    retry = json.dumps({**mode, "topic": "%RETRY%g"}).encode()
    assert raw.ask(Request.SET_MESSAGE_REQUEST_MODE, {}, retry).code == Code.NO_PERMISSION


@settings(max_examples=examples(200), suppress_health_check=list(HealthCheck), deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=60),
        st.lists(st.one_of(st.integers().map(str), st.text("0123456789-x", max_size=21)), min_size=7, max_size=9).map(
            " ".join
        ),
    )
)
def test_a_made_up_checkpoint_is_refused_or_is_one(text: str) -> None:
    try:
        check = Checkpoint.decode(text)
    except InvalidHandle:
        return
    assert Checkpoint.decode(check.encode(0, "b")) == check
