"""RocketMQ's names of topics and the log's are one to one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.topics import check_name
from headrace.doors.rocketmq.names import log_name, rocketmq_name
from headrace.errors import InvalidTopic


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", "orders"),
        ("%RETRY%billing", ".RETRY.billing"),
        ("%DLQ%billing", ".DLQ.billing"),
        ("shop%orders", "shop.orders"),
        ("a|b", "a.7C.b"),
        ("%RETRY%shop%a|b", ".RETRY.shop.a.7C.b"),
    ],
)
def test_names(topic: str, name: str) -> None:
    assert log_name(topic) == name
    assert rocketmq_name(name) == topic


@given(st.text("ab7C%|_-", min_size=1, max_size=12))
def test_what_rocketmq_names_comes_back_and_is_a_name_of_the_log(topic: str) -> None:
    try:
        name = log_name(topic)
    except InvalidTopic:
        assert "%7C" in topic or "7C%" in topic or "|" in topic
        return
    if name not in (".", ".."):
        check_name(name)
    assert rocketmq_name(name) == topic


@given(st.text("ab7C._-", min_size=1, max_size=12))
def test_what_the_log_names_comes_back(name: str) -> None:
    topic = rocketmq_name(name)
    assert topic is None or log_name(topic) == name


@pytest.mark.parametrize(
    "topic", ["", "bad$name", "a.b", "ü", "x" * 128, "TBW102", "a%7C%b", "__consumer_offsets", "%RETRY%" + "x" * 250]
)
def test_names_that_are_refused(topic: str) -> None:
    with pytest.raises(InvalidTopic):
        log_name(topic)


@pytest.mark.parametrize("name", ["__queues", "headrace-apps", "x" * 128])
def test_names_that_are_not_seen(name: str) -> None:
    assert rocketmq_name(name) is None
