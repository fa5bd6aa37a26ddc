"""Clients that do what none of RocketMQ's does: what the broker keeps for them is bounded, and goes with them."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import Mock

import pytest
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.test_clients import members
from tests.doors.rocketmq.test_reply import send_reply
from tests.waiting import wait_until

import headrace
from headrace.doors.rocketmq import frames
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.connection import AWAITING_BYTES_MAX, RemotingConnection
from headrace.doors.rocketmq.frames import BINARY, HEADER_BYTES_MAX, Command
from headrace.doors.rocketmq.membership import GROUPS_MAX
from headrace.doors.rocketmq.namesrv.registry import BrokerRegistry, RegisteredBroker


def test_a_connection_is_one_client(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    with Raw(broker.rocketmq) as other:
        for client_id in ("a", "b", "c"):
            other.heartbeat(f"{group}-{client_id}", {group: {topic: "*"}})
        assert members(raw, group) == [f"{group}-c"]
        answer = raw.answer(send_reply(raw, b"x", f"{group}-a"))
        assert "not found" in (answer.remark or ""), "the client is no longer there"
    wait_until(lambda: members(raw, group) == [])
    answer = raw.answer(send_reply(raw, b"x", f"{group}-c"))
    assert "not found" in (answer.remark or "")


def test_a_client_is_in_so_many_groups(raw: Raw, topic: str, group: str) -> None:
    names = [f"{group}-{number}" for number in range(GROUPS_MAX + 1)]
    assert raw.heartbeat(group, {name: {topic: "*"} for name in names[:-1]}).code == Code.SUCCESS
    assert raw.heartbeat(group, {name: {topic: "*"} for name in names[:2]}).code == Code.SUCCESS
    assert raw.heartbeat(group, {names[-1]: {topic: "*"}}).code == Code.SYSTEM_BUSY
    raw.ask(Request.UNREGISTER_CLIENT, {"clientID": group, "consumerGroup": names[0]})
    assert raw.heartbeat(group, {names[-1]: {topic: "*"}}).code == Code.SUCCESS


def test_a_producer_is_in_so_many_groups(raw: Raw, group: str) -> None:
    for part in range(2):
        raw.heartbeat(group, {}, [f"{group}-{part}-{number}" for number in range(GROUPS_MAX)])
    found = raw.json(Request.GET_ALL_PRODUCER_INFO)["data"]
    assert sum(name.startswith(group) for name in found) == GROUPS_MAX


def test_a_long_heartbeat_is_refused(raw: Raw) -> None:
    beat = json.dumps({"clientID": "long", "filler": "x" * 2_100_000}).encode()
    assert raw.ask(Request.HEART_BEAT, {}, beat).code == Code.INVALID_PARAMETER


def test_a_long_header_closes_the_connection(broker: headrace.Broker) -> None:
    with Raw(broker.rocketmq) as hostile, pytest.raises(ConnectionError):
        hostile.ask(Request.GET_MAX_OFFSET, {"topic": "x" * HEADER_BYTES_MAX})


def test_no_more_is_read_of_a_client_whose_bodies_are_kept() -> None:
    connection = RemotingConnection(Mock(tick=0), 1)
    connection.hold(AWAITING_BYTES_MAX - 1)
    assert not connection.held
    connection.hold(1)
    assert connection.held
    connection.let_go(AWAITING_BYTES_MAX // 2)
    assert connection.held, "until there is room again"
    connection.let_go(1)
    assert not connection.held


def test_large_sends_one_behind_the_other(raw: Raw, topic: str) -> None:
    """More than is kept at once, of which some await something."""
    raw.sent(topic, b"first")
    delayed = {"properties": {"DELAY": "6"}}
    sends = [raw.send_message(topic, bytes(900_000), **(delayed if number % 2 else {})) for number in range(40)]
    assert [raw.answer(each).code for each in sends] == [Code.SUCCESS] * 40
    _, found = raw.pulled(topic, 20)
    assert len(found[0].body) == 900_000


def test_a_batch_of_many_messages(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"first")
    bodies = [b"%d" % number for number in range(5_000)]
    answer = raw.send_batch(topic, bodies)
    assert (answer.code, answer.fields["msgId"].count(",")) == (Code.SUCCESS, 4_999)
    assert [each.body for each in raw.read(topic)] == [b"first", *bodies]


def test_flags_of_addresses_are_the_brokers(raw: Raw, topic: str) -> None:
    """Else what follows the message could not be read."""
    raw.sent(topic, b"one", f=0x30)
    raw.sent(topic, b"two", f=0x700)
    assert [(each.body, each.sys_flag) for each in raw.read(topic)] == [(b"one", 0), (b"two", 0)]


@pytest.mark.parametrize("code", [200_000, -200_000])
def test_a_clients_answer_that_cannot_be_passed_on(
    broker: headrace.Broker, raw: Raw, topic: str, group: str, code: int
) -> None:
    """An answer in JSON to one that reads RocketMQ's own form, which has less room."""
    with Raw(broker.rocketmq, BINARY) as asking:
        raw.heartbeat(f"{group}-c", {group: {topic: "*"}})
        raw.wait_until_asked()
        asked = asking.send(
            Request.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": group, "clientId": f"{group}-c", "jstackEnable": "x"}
        )
        raw.reply(raw.wait_until_asked(), code)
        assert asking.answer(asked).code == Code.SYSTEM_ERROR


def test_names_that_the_binary_form_has_no_room_for() -> None:
    with pytest.raises(frames.Malformed):
        frames.encode(Command(0, fields={"n" * 40_000: ""}, serialization=BINARY))


def test_a_broker_that_registers_again_and_again() -> None:
    registry = BrokerRegistry(3, 1_000)
    connection = Mock(on_lost=[])
    for _ in range(10):
        registry.register(RegisteredBroker("c", "b", 0, "a:1", "", connection, 1.0, {}, {}), 0.0)
        registry.unregister("c", "b", 0)
    (lost,) = connection.on_lost
    registry.register(RegisteredBroker("c", "b", 0, "a:1", "", connection, 1.0, {}, {}), 0.0)
    lost()
    assert list(registry.named()) == []


async def test_a_client_that_goes_while_its_heartbeat_is_read() -> None:
    from headrace.doors.rocketmq.connection import Call
    from headrace.doors.rocketmq.remoting.handlers.clients import ClientHandlers

    loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    remoting: Any = Mock(clients={})
    remoting.broker.rocketmq.load = lambda: loaded
    connection = RemotingConnection(Mock(tick=0), 1)
    call = Call(connection, Command(Request.HEART_BEAT, body=b'{"clientID":"c"}'))
    beat = asyncio.ensure_future(ClientHandlers(remoting).heartbeat(call))
    await asyncio.sleep(0)
    connection.connection_lost(None)
    loaded.set_result(None)
    await beat
    assert remoting.clients == {}
