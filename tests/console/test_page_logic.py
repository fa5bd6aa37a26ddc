"""What pages decide, without a browser: why a group is behind, where offsets go, what a form means."""

from __future__ import annotations

import pytest

from headrace.console.client.models import AppDetail, GroupDetail, GroupPartition, LiveSetting, Message, Rule
from headrace.console.pages.alerts import id_of, rule_body
from headrace.console.pages.app import current
from headrace.console.pages.app import parsed as live
from headrace.console.pages.browse import key_of, parse_id, pretty, value_of
from headrace.console.pages.group import target, why_behind
from headrace.console.pages.queue import parsed, shown
from headrace.console.pages.topics import parse_settings
from headrace.console.ui.formats import zone_named
from headrace.console.web import _way_back
from headrace.errors import ConfigError


def group(members: int, *lags: int, member: str | None = "m") -> GroupDetail:
    places = [
        GroupPartition(topic="orders", partition=number, lag=lag, member_id=member) for number, lag in enumerate(lags)
    ]
    return GroupDetail(group="billing", members=members, partition_list=places)


@pytest.mark.parametrize(
    ("of", "reads", "arrives", "kind", "words"),
    [
        (group(1, 0), 0, 5, "good", "read everything"),
        (group(0, 50, member=None), 0, 5, "bad", "no members"),
        (group(2, 50, 0, member=None), 3, 5, "bad", "No member reads the 1 partition"),
        (group(1, 50), 0, 5, "bad", "read nothing"),
        (group(1, 50), None, 5, "warn", "shows in some seconds"),
        (group(1, 50), 5, 50, "bad", "come faster (50/s) than the group reads (5/s)"),
        (group(2, 900, 10), 50, 50, "warn", "Most of the lag is in orders/0"),
        (group(1, 100), 20, 10, "warn", "level in about 10 s"),
        (group(1, 100), 10, 10, "warn", "keeps pace"),
    ],
)
def test_why_a_group_is_behind(of: GroupDetail, reads: float | None, arrives: float, kind: str, words: str) -> None:
    lag = sum(each.lag or 0 for each in of.partition_list)
    found = why_behind(of, reads, arrives, lag)
    assert found[0] == kind
    assert words in found[1]


def test_where_offsets_go() -> None:
    berlin = zone_named("Europe/Berlin")
    assert target({"to": "earliest"}) == "earliest"
    assert target({"to": "shift", "value": "-10"}) == {"shift": -10}
    assert target({"to": "time", "value": "2026-11-19T12:00"}, berlin) == {"time_ms": 1795086000000}
    assert target({"to": "time", "value": "2026-11-19T12:00+00:00"}, berlin) == {"time_ms": 1795089600000}
    with pytest.raises(ConfigError, match="whole number"):
        target({"to": "offset", "value": "x"})


def test_settings_as_they_are_written() -> None:
    assert parse_settings("a=1\n\n b = x=y ") == {"a": "1", "b": "x=y"}
    with pytest.raises(ConfigError):
        parse_settings("nonsense")
    assert parsed("1000, 2000", [1]) == [1000, 2000]
    assert (parsed("true", False), parsed("5", 1), parsed("0.5", 1.0), parsed("x", "")) == (True, 5, 0.5, "x")
    with pytest.raises(ConfigError):
        parsed("five", 1)
    assert (shown([1, 2]), shown([]), shown(""), shown(True), shown(5)) == ("1,2", "empty", "empty", "true", "5")


def test_messages_are_shown_as_they_fit() -> None:
    assert parse_id("a/b/0/12") == ("a/b", 0, 12)
    message = Message(partition=0, offset=1, value='{"b": 1}', key_base64="AA==")
    assert pretty(message) == '{\n  "b": 1\n}'
    assert key_of(message) == "base64:AA=="
    assert value_of(Message(partition=0, offset=1)) == "–"
    assert pretty(Message(partition=0, offset=1, value="not json")) == "not json"
    assert value_of(Message(partition=0, offset=1, value_json={"a": "ä"})) == '{"a": "ä"}'


def test_the_value_of_a_live_setting_is_what_counts_now() -> None:
    code = [{"topic": "orders", "group": "shop", "tuning": {"workers": 8, "ladder": [1.0, 5.0]}}]
    app = AppDetail(app="shop", subscriptions=code)
    assert current(app, "workers", "") == "8"
    set_ = AppDetail(app="shop", subscriptions=code, live=[LiveSetting(setting="workers", value=16)])
    assert current(set_, "workers", "") == "16"
    assert current(set_, "rate", "") == ""
    assert current(app, "ladder", "orders/shop") == "[1.0, 5.0]"
    assert current(app, "workers", "other/shop") == ""
    assert live("workers", "16") == 16
    assert (live("pause", "true"), live("ladder", "1, 5"), live("log_level", "info")) == (True, [1, 5], "info")
    assert live("workers", "") is None
    with pytest.raises(ConfigError):
        live("workers", "many")


def test_a_rules_form() -> None:
    body = rule_body(
        {"name": "Lag", "figure": "group_lag", "threshold": "1e3", "for": "60", "group": "b*", "channels": "a, b"}
    )
    assert (body["threshold"], body["for_ms"], body["scope"]) == (1000.0, 60_000, {"group": "b*"})
    assert (body["channels"], body["enabled"]) == (["a", "b"], False)
    with pytest.raises(ConfigError):
        rule_body({"threshold": "much"})
    assert id_of("Lag of billing!") == "lag-of-billing"
    assert Rule(id="x", name="x", figure="f", threshold=1).compare == ">"


@pytest.mark.parametrize(
    ("to", "leads"),
    [("/b/topics", "/b/topics"), ("//evil.example", "/"), ("https://evil", "/"), ("/\\evil", "/"), ("", "/")],
)
def test_a_login_leads_back_to_the_console_alone(to: str, leads: str) -> None:
    assert _way_back(to) == leads
