"""PEEK_MESSAGE: what a group would pop next, which stays where it is."""

from __future__ import annotations

from typing import Any

from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.formats import decode_all
from tests.doors.rocketmq.test_pop import Popper

from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import Command


def peek(raw: Raw, popper: Popper, **more: Any) -> tuple[Command, list[bytes]]:
    answer = raw.ask(Request.PEEK_MESSAGE, {**popper.fields, "maxMsgNums": 32, **more})
    return answer, [each.body for each in decode_all(answer.body)]


def test_what_is_peeked_is_popped_all_the_same(raw: Raw, topic: str, group: str) -> None:
    for number in range(4):
        raw.sent(topic, b"%d" % number, queue=number % 2)
    popper = Popper(raw, topic, group)
    answer, bodies = peek(raw, popper)
    assert (answer.code, sorted(bodies), answer.fields["restNum"]) == (Code.SUCCESS, [b"0", b"1", b"2", b"3"], "4")
    assert peek(raw, popper, queueId=1)[1] == [b"1", b"3"]
    assert peek(raw, popper, queueId=1, maxMsgNums=1)[1] == [b"1"]
    first, second = popper.pop(queueId=0)[1]
    answer, bodies = peek(raw, popper, queueId=0)
    assert (answer.code, bodies, answer.fields["restNum"]) == (Code.PULL_NOT_FOUND, [], "0")
    assert sorted(peek(raw, popper)[1]) == [b"1", b"3"]
    # What came back is peeked, with the times that it was delivered.
    assert popper.change(first, 0).code == Code.SUCCESS
    answer, bodies = peek(raw, popper, queueId=0)
    (again,) = decode_all(answer.body)
    assert (bodies, again.reconsume_times) == ([b"0"], 1)
    assert popper.ack(second) == Code.SUCCESS
    assert sorted(popper.bodies()) == [b"0", b"1", b"3"]


def test_a_group_that_pulls_peeks_from_its_position(raw: Raw, topic: str, group: str) -> None:
    for number in range(3):
        raw.sent(topic, b"%d" % number)
    position = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 2}
    assert raw.ask(Request.UPDATE_CONSUMER_OFFSET, position).code == Code.SUCCESS
    answer, bodies = peek(raw, Popper(raw, topic, group), queueId=0)
    assert (bodies, answer.fields["restNum"]) == ([b"2"], "1")
    assert peek(raw, Popper(raw, topic, group), maxMsgNums=0)[0].code == Code.PULL_NOT_FOUND


def test_what_cannot_be_peeked(raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, b"0")
    popper = Popper(raw, topic, group)
    assert peek(raw, popper, queueId=99)[0].code == Code.INVALID_PARAMETER
    assert peek(raw, popper, topic="nothing")[0].code == Code.TOPIC_NOT_EXIST
    fields = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 2, "topic": topic}
    assert raw.ask(Request.UPDATE_AND_CREATE_TOPIC, fields).code == Code.SUCCESS
    assert peek(raw, popper)[0].code == Code.NO_PERMISSION


def test_an_answer_has_32_messages_at_most(raw: Raw, topic: str, group: str) -> None:
    raw.send_batch(topic, [b"%d" % number for number in range(40)])
    popper = Popper(raw, topic, group)
    for _ in range(2):
        answer, bodies = peek(raw, popper, maxMsgNums=1_000)
        assert bodies == [b"%d" % number for number in range(32)]
        assert answer.fields["restNum"] == "40"
        # Now that the group has a queue it is asked, and says the same.
        (only,) = popper.pop(maxMsgNums=1)[1]
        assert popper.change(only, 0).code == Code.SUCCESS
