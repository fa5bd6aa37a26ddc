"""`headrace trace` of messages of RocketMQ's clients, which record what they do in a topic of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Cli
from tests.cli.test_trace import told
from tests.doors.rocketmq.client import Raw

from headrace.broker.lives.client_traces import ClientTrace, parse
from headrace.doors.rocketmq.codes import Code, Request
from headrace.embedded import Broker

pytestmark = pytest.mark.headrace(http="127.0.0.1:0", rocketmq="127.0.0.1:0", rocketmq_delay_levels="0s")

ID, OTHER = "7F0000012A9F18B4AAC2123456780000", "7F0000012A9F18B4AAC2123456780001"
# As the Java clients 4.9 and 5.3 write them.
SENT = f"Pub\1{{t}}\1DefaultRegion\1sellers\1orders\1{ID}\1red\1k\1host:1\0015\0013\0010\1OFFSET\1true\1true\2"
CONSUMING = f"SubBefore\1{{t}}\1DefaultRegion\1billing\1REQUEST\1{ID}\0010\1k\2"
CONSUMED = f"SubAfter\1REQUEST\1{ID}\0013\1{{success}}\1k\0010\1{{t}}\1billing\2"
ENDED = f"EndTransaction\1{{t}}\1r\1sellers\1orders\1{ID}\1\1k\1h:1\0013\1{ID}\1{{state}}\1false\2"


def test_a_message_of_rocketmqs(cli: Cli, headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HTTP", headrace_broker.http)
    with Raw(headrace_broker.rocketmq) as raw:
        raw.sent("orders", b"other", properties={"UNIQ_KEY": OTHER})
        raw.sent("orders", b"hat", properties={"UNIQ_KEY": ID})
        _, message = raw.read("orders")
        assert told(cli, ID)["steps"][0]["what"] == "published"
        t = message.store_ms
        traces = SENT.format(t=t - 5) + SENT.format(t=t - 5).replace(ID, OTHER)
        raw.sent("RMQ_SYS_TRACE_TOPIC", traces.encode())
        raw.sent("RMQ_SYS_TRACE_TOPIC", CONSUMING.format(t=t + 5).encode(), queue=1)
        raw.sent("RMQ_SYS_TRACE_TOPIC", CONSUMED.format(t=t + 9, success="false").encode())
        raw.sent("RMQ_SYS_TRACE_TOPIC", b"garbage\1\2\xff" + ID.encode())
        back = {"offset": message.physical_offset, "group": "billing", "delayLevel": 1, "maxReconsumeTimes": 2}
        assert raw.ask(Request.CONSUMER_SEND_MSG_BACK, back).code == Code.SUCCESS
    found = told(cli, ID)
    steps = {(each["message"], each["what"], each.get("who", ""), each.get("attempt", 0)) for each in found["steps"]}
    assert steps == {
        ("orders/0/1", "sent", "sellers", 0),
        ("orders/0/1", "published", "", 0),
        ("orders/0/1", "consuming", "billing", 1),
        ("orders/0/1", "not consumed", "billing", 0),
        (".RETRY.billing/0/0", "published", "", 0),
    }
    assert [each["what"] for each in found["steps"]][:2] == ["sent", "published"]
    assert {each["what"] for each in told(cli, "orders/0/1")["steps"]} >= {"sent", "published", "consuming"}
    assert {each["message"] for each in told(cli, OTHER)["steps"]} == {"orders/0/0"}


@pytest.mark.parametrize("id", [ID, f"01{ID}", f"FD0000000000000000000000{ID}"], ids=["IPv4", "gRPC", "IPv6"])
def test_ids_of_any_client(cli: Cli, headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    monkeypatch.setenv("HEADRACE_HTTP", headrace_broker.http)
    with Raw(headrace_broker.rocketmq) as raw:
        raw.sent("orders", b"hat", properties={"UNIQ_KEY": id})
    assert [each["message"] for each in told(cli, id)["steps"]] == ["orders/0/0"]


def test_traces_of_transactions() -> None:
    text = ENDED.format(t=7, state="COMMIT_MESSAGE") + ENDED.format(t=8, state="ROLLBACK_MESSAGE")
    text += ENDED.format(t=9, state="UNKNOW")
    assert list(parse(text.encode())) == [
        ClientTrace(7, ID, "committed", "sellers"),
        ClientTrace(8, ID, "rolled back", "sellers"),
    ]


def test_a_send_without_success() -> None:
    (found,) = parse(SENT.format(t=7).replace("\1true\1true", "\1false\1true").encode())
    assert (found.what, found.error) == ("sent", "the producer had no success")


@given(st.binary(max_size=200))
def test_garbage_is_passed_over(garbage: bytes) -> None:
    for kind in (b"Pub\1", b"SubBefore\1", b"SubAfter\1", b"EndTransaction\1", b""):
        list(parse(kind + garbage))
