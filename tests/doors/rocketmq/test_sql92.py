"""SQL92 filters: the language beside RocketMQ's own (`sql_vectors.txt`, made by `SqlVectors.java`), and their use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.doors.rocketmq.client import Raw

from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.sql92 import CHARACTERS_MAX, DEPTH_MAX, PARTS_MAX, InvalidExpression, compile_sql

LINES = Path(__file__).with_name("sql_vectors.txt").read_text().splitlines()


def evaluate(expression: str, properties: dict[str, str]) -> str:
    try:
        found = compile_sql(expression)
    except InvalidExpression:
        return "refused"
    try:
        return {True: "true", False: "false", None: "null"}[found.evaluate(properties)]  # type: ignore[index]
    except KeyError:
        raise
    except Exception:
        assert not found.accepts(properties)
        return "error"


def test_expressions_mean_what_they_mean_to_rocketmq() -> None:
    different = []
    for line in LINES:
        expected, expression, *pairs = line.split("\t")
        properties = dict(pair.split("=", 1) for pair in pairs if pair)
        if (found := evaluate(expression, properties)) != expected:
            different.append((line, found))
    assert different == []
    assert len(LINES) > 900


def test_only_what_is_true_passes() -> None:
    found = compile_sql("price > 3")
    assert found.accepts({"price": "4"})
    for properties in ({"price": "3"}, {}, {"price": "much"}):
        assert not found.accepts(properties)


def test_expressions_are_bounded() -> None:
    compile_sql("a = '" + "x" * (CHARACTERS_MAX - 6) + "'")
    compile_sql("(" * (DEPTH_MAX - 1) + "a" + ")" * (DEPTH_MAX - 1))
    compile_sql(" OR ".join(["a IS NULL"] * (PARTS_MAX // 3)))
    for expression in (
        "a = '" + "x" * (CHARACTERS_MAX - 5) + "'",
        "(" * DEPTH_MAX + "a" + ")" * DEPTH_MAX,
        "NOT " * DEPTH_MAX + "a",
        " OR ".join(["a IS NULL"] * (PARTS_MAX // 3 + 1)),
    ):
        with pytest.raises(InvalidExpression):
            compile_sql(expression)
    # What RocketMQ ignores.
    for expression in ("a = 'x' b", "a = 'x')", "a LIKE 'x%'", "a + 1"):
        with pytest.raises(InvalidExpression):
            compile_sql(expression)


WORDS = (
    *("a", "b", "'x'", "'3'", "3", "2.5", "1e400", "9999999999", "(", ")", ",", "="),
    *("<>", "<", ">", ">=", "NOT", "AND", "OR", "IN", "IS", "NULL", "TRUE", "BETWEEN"),
    *("CONTAINS", "-", "+", ";", '"', "--"),
)


@given(st.lists(st.sampled_from(WORDS), max_size=12), st.dictionaries(st.sampled_from("ab"), st.text(max_size=4)))
def test_garbage_is_refused_or_evaluated(words: list[str], properties: dict[str, str]) -> None:
    try:
        found = compile_sql(" ".join(words))
    except InvalidExpression:
        return
    assert found.accepts(properties) in (True, False)


def test_a_pull_with_an_expression(raw: Raw, topic: str) -> None:
    for price in range(10):
        raw.sent(topic, b"%d" % price, properties={"price": str(price), "color": "red" if price % 2 else "blue"})
    _, found = raw.pulled(topic, subscription="price >= 5 AND color = 'red'", expressionType="SQL92")
    assert [each.body for each in found] == [b"5", b"7", b"9"]
    answer, found = raw.pulled(topic, subscription="color IS NULL", expressionType="SQL92")
    assert (answer.code, answer.fields["nextBeginOffset"], found) == (Code.PULL_RETRY_IMMEDIATELY, "10", [])
    refused = raw.answer(raw.pull(topic, subscription="price >=", expressionType="SQL92"))
    assert refused.code == Code.SUBSCRIPTION_PARSE_FAILED
    other = raw.answer(raw.pull(topic, subscription="x", expressionType="CLASS"))
    assert other.code == Code.REQUEST_CODE_NOT_SUPPORTED


def test_an_expensive_expression_looks_at_fewer_messages(raw: Raw, topic: str) -> None:
    raw.send_batch(topic, [b"x"] * 200)
    costly = " OR ".join(["a = 'x'"] * 60)
    answer, found = raw.pulled(topic, subscription=costly, expressionType="SQL92")
    assert (answer.code, found) == (Code.PULL_RETRY_IMMEDIATELY, [])
    assert 0 < int(answer.fields["nextBeginOffset"]) < 200


def test_a_subscription_with_an_expression(raw: Raw, topic: str, group: str) -> None:
    for number in range(6):
        raw.sent(topic, b"%d" % number, properties={"n": str(number)})
    assert raw.heartbeat("one", {group: {topic: "n BETWEEN 2 AND 3"}}, kind="SQL92").code == Code.SUCCESS
    _, found = raw.pulled(topic, consumerGroup=group, sysFlag=0)
    assert [each.body for each in found] == [b"2", b"3"]
    assert (
        raw.heartbeat("one", {group: {topic: "n BETWEEN 3 AND 2"}}, kind="SQL92").code == Code.SUBSCRIPTION_PARSE_FAILED
    )


@pytest.mark.parametrize(
    ("kind", "expression", "code"),
    [
        ("SQL92", "a > 1", Code.SUCCESS),
        ("SQL92", "a >", Code.SUBSCRIPTION_PARSE_FAILED),
        ("TAG", "a || b", Code.SUCCESS),
        ("TAG", "*", Code.SUCCESS),
    ],
)
def test_consumers_have_their_subscriptions_checked(raw: Raw, kind: str, expression: str, code: Code) -> None:
    asked = {"clientId": "c", "group": "g", "subscriptionData": {"subString": expression, "expressionType": kind}}
    assert raw.ask(Request.CHECK_CLIENT_CONFIG, {}, json.dumps(asked).encode()).code == code
