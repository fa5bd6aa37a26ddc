"""Transactions: prepared messages, how they are ended, and producers that are asked about them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.formats import decode, given_properties, read_offset_id
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS, wait_until

import headrace
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import Command
from headrace.doors.rocketmq.messages import read_properties
from headrace.doors.rocketmq.transactions import Outcome

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def quick() -> Iterator[headrace.Broker]:
    """A broker that asks at once, twice."""
    any_port = "127.0.0.1:0"
    settings = {"half_timeout_ms": 50, "half_check_interval_ms": 300, "half_checks_max": 2}
    with headrace.Broker(rocketmq=any_port, rocketmq_namesrv="off", **settings) as broker:
        yield broker


def prepare(raw: Raw, topic: str, body: bytes, group: str, **more: object) -> Command:
    properties = {"TRAN_MSG": "true", "PGROUP": group, "TAGS": "t", **more}
    answer = raw.sent(topic, body, queue=1, f=4, properties=properties, a=group)
    assert answer.code == Code.SUCCESS, answer
    return answer


def end(raw: Raw, prepared: Command, group: str, outcome: int, **more: object) -> Command:
    fields = {
        "producerGroup": group,
        "commitLogOffset": read_offset_id(prepared.fields["msgId"])[1],
        "tranStateTableOffset": prepared.fields["queueOffset"],
        "commitOrRollback": outcome,
        "transactionId": prepared.fields["transactionId"],
        "msgId": "0A",
        "fromTransactionCheck": "false",
    }
    return raw.ask(Request.END_TRANSACTION, fields | more)


def beat(raw: Raw, client_id: str, *groups: str) -> None:
    producers = [{"groupName": group} for group in groups]
    data = {"clientID": client_id, "consumerDataSet": [], "producerDataSet": producers}
    assert raw.ask(Request.HEART_BEAT, {}, json.dumps(data).encode()).code == Code.SUCCESS


def bodies(raw: Raw, topic: str) -> list[bytes]:
    return [each.body for each in raw.read(topic, 1)]


def test_a_commit_shows_the_message_and_a_roll_back_never_does(raw: Raw, topic: str, group: str) -> None:
    first, second = prepare(raw, topic, b"paid", group), prepare(raw, topic, b"cancelled", group)
    assert first.fields["queueId"] == "1"
    assert bodies(raw, topic) == []
    # What is prepared is in no topic that a client could look into.
    place = read_offset_id(first.fields["msgId"])[1]
    assert raw.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": place}).code == Code.SYSTEM_ERROR
    assert end(raw, first, group, Outcome.UNKNOWN).code == Code.SUCCESS
    assert bodies(raw, topic) == []
    assert end(raw, first, group, Outcome.COMMIT).code == Code.SUCCESS
    assert end(raw, second, group, Outcome.ROLL_BACK).code == Code.SUCCESS
    (message,) = raw.read(topic, 1)
    assert (message.body, message.sys_flag & 0xC) == (b"paid", Outcome.COMMIT)
    properties = given_properties(message)
    assert properties == {"UNIQ_KEY": "0A", "PGROUP": group, "TAGS": "t"}
    # Again, as after an answer that was lost; and what cannot be any more.
    assert end(raw, first, group, Outcome.COMMIT).code == Code.SUCCESS
    assert end(raw, first, group, Outcome.ROLL_BACK).code == Code.SYSTEM_ERROR
    assert end(raw, second, group, Outcome.COMMIT).code == Code.SYSTEM_ERROR
    assert bodies(raw, topic) == [b"paid"]


def test_only_its_own_producers_end_a_transaction(raw: Raw, topic: str, group: str) -> None:
    prepared = prepare(raw, topic, b"x", group)
    stored = raw.sent(topic, b"stored", queue=1)
    assert end(raw, prepared, "another", Outcome.COMMIT).code == Code.SYSTEM_ERROR
    assert end(raw, prepared, group, Outcome.COMMIT, tranStateTableOffset=1 << 40).code == Code.SYSTEM_ERROR
    assert end(raw, prepared, group, 5).code == Code.INVALID_PARAMETER
    for offset in (1 << 62, 0, -1, read_offset_id(stored.fields["msgId"])[1]):
        assert end(raw, prepared, group, Outcome.COMMIT, commitLogOffset=offset).code == Code.SYSTEM_ERROR
    assert bodies(raw, topic) == [b"stored"]


def test_what_cannot_be_prepared(raw: Raw, topic: str, group: str) -> None:
    marks = {"TRAN_MSG": "true", "PGROUP": group}
    for more in ({"DELAY": "3"}, {"TIMER_DELAY_SEC": "3"}):
        assert raw.sent(topic, b"x", properties={**marks, **more}).code == Code.MESSAGE_ILLEGAL
    assert raw.sent(topic, b"x", properties={**marks, "PGROUP": "g" * 300}).code != Code.SUCCESS
    # A message that is consumed again is not prepared, whatever it was once.
    assert raw.sent(topic, b"again", properties={**marks, "DELAY": "1"}, j=1).code == Code.SUCCESS
    wait_until(lambda: [each.body for each in raw.read(topic)] == [b"again"])


def test_any_live_producer_of_the_group_is_asked(quick: headrace.Broker, topic: str, group: str) -> None:
    with Raw(quick.rocketmq) as other, Raw(quick.rocketmq) as stranger:
        with Raw(quick.rocketmq) as producer:
            beat(producer, "one", group)
            prepared = prepare(producer, topic, b"orphan", group)
        beat(stranger, "three", "another")
        beat(other, "two", group)
        asked = other.wait_until_asked()
        assert (asked.code, asked.is_one_way) == (Request.CHECK_TRANSACTION_STATE, True)
        place = read_offset_id(prepared.fields["msgId"])[1]
        assert int(asked.fields["commitLogOffset"]) == place
        assert asked.fields["tranStateTableOffset"] == prepared.fields["queueOffset"]
        message, _ = decode(asked.body)
        assert (message.topic, message.queue_id, message.body) == (topic, 1, b"orphan")
        assert (message.physical_offset, message.sys_flag & 0xC) == (place, 4)
        properties = given_properties(message)
        assert (properties["PGROUP"], properties["TRAN_MSG"], properties["UNIQ_KEY"]) == (group, "true", "0A")
        assert end(other, prepared, group, Outcome.COMMIT, fromTransactionCheck="true").code == Code.SUCCESS
        assert bodies(other, topic) == [b"orphan"]
        assert stranger.ask(Request.UNREGISTER_CLIENT, {"producerGroup": "another"}).code == Code.SUCCESS
        assert stranger.asked == []


def test_an_unknown_outcome_is_asked_again_up_to_a_limit(quick: headrace.Broker, topic: str, group: str) -> None:
    with Raw(quick.rocketmq) as raw:
        beat(raw, "one", group)
        prepared = prepare(raw, topic, b"unknown", group)
        times = []
        for _ in range(2):
            asked = raw.wait_until_asked()
            times.append(read_properties(decode(asked.body)[0].properties)["TRANSACTION_CHECK_TIMES"])
            assert end(raw, prepared, group, Outcome.UNKNOWN).code == Code.SUCCESS
        assert times == ["1", "2"]
        # Given up: a commit that comes too late resurrects nothing.
        wait_until(lambda: end(raw, prepared, group, Outcome.COMMIT, commitOrRollback=12).code == Code.SUCCESS)
        wait_until(lambda: json.load(urlopen(f"http://{quick.http}/v1/half", timeout=SECONDS))["pending"] == 0)
        assert end(raw, prepared, group, Outcome.COMMIT).code == Code.SYSTEM_ERROR
        assert bodies(raw, topic) == []


def test_the_first_check_waits_as_long_as_the_producer_asks_for(quick: headrace.Broker, topic: str, group: str) -> None:
    with Raw(quick.rocketmq) as raw:
        beat(raw, "one", group)
        prepare(raw, topic, b"later", group, CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        sooner = prepare(raw, topic, b"sooner", group)
        assert decode(raw.wait_until_asked().body)[0].body == b"sooner"
        end(raw, sooner, group, Outcome.COMMIT)


def test_what_http_has_prepared_a_rocketmq_producer_commits(quick: headrace.Broker, topic: str, group: str) -> None:
    with Raw(quick.rocketmq) as raw:
        raw.sent(topic, b"first", queue=1)
        beat(raw, "one", group)
        asked = {"topic": topic, "group": group, "value": "http", "partition": 1}
        urlopen(HttpRequest(f"http://{quick.http}/v1/half", json.dumps(asked).encode()), timeout=SECONDS).close()
        check = raw.wait_until_asked()
        assert decode(check.body)[0].body == b"http"
        fields = {"producerGroup": group, "commitOrRollback": int(Outcome.COMMIT)}
        fields |= {name: check.fields[name] for name in ("commitLogOffset", "tranStateTableOffset")}
        assert raw.ask(Request.END_TRANSACTION, fields).code == Code.SUCCESS
        assert bodies(raw, topic) == [b"first", b"http"]


def test_offsets_of_prepared_messages_outlive_the_process(tmp_path: Path, topic: str, group: str) -> None:
    flags = ("--rocketmq", "127.0.0.1:0", "--rocketmq-namesrv", "off")
    with ServeProcess(tmp_path, *flags) as serving:
        with Raw(serving.addresses["rocketmq"]) as raw:
            kept, dropped = prepare(raw, topic, b"kept", group), prepare(raw, topic, b"dropped", group)
            assert end(raw, dropped, group, Outcome.ROLL_BACK).code == Code.SUCCESS
        serving.kill()
    with ServeProcess(tmp_path, *flags) as serving, Raw(serving.addresses["rocketmq"]) as raw:
        assert end(raw, dropped, group, Outcome.COMMIT).code == Code.SYSTEM_ERROR
        assert end(raw, kept, group, Outcome.COMMIT).code == Code.SUCCESS
        assert bodies(raw, topic) == [b"kept"]
