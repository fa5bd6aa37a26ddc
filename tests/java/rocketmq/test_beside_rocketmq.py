"""The same requests to Headrace and to a real RocketMQ: the answers are the same, field by field."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from bench.peers import Missing
from bench.peers.rocketmq import RocketMq
from tests.java.rocketmq.steps import Steps

import headrace

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

LEVELS = "1s 2s 3s"
# What differs, here and at RocketMQ; docs/rocketmq.md has the reasons.
DIFFERENCES = {
    "send to TBW102": ({"code": 29, "fields": {}}, {"code": 0}),
    "send later": ({"fields": {"queueOffset": "0"}}, {"fields": {"queueOffset": "1"}}),
    "update": ((0, {}), (26, {})),
    "position": ((0, {"offset": "3"}), (0, {"offset": "0"})),
}


def test_the_answers_are_rocketmqs() -> None:
    compare(Steps, DIFFERENCES)


def compare(steps: type[Steps], differences: Mapping[str, tuple[object, object]]) -> None:
    """Take the steps here and at RocketMQ: the answers are the same, but for what is listed."""
    any_port = "127.0.0.1:0"
    try:
        peer = RocketMq(LEVELS)
    except Missing as reason:
        pytest.skip(str(reason))
    with headrace.Broker(rocketmq=any_port, rocketmq_namesrv=any_port, rocketmq_delay_levels=LEVELS) as broker:
        own = steps(broker.rocketmq, broker.rocketmq_namesrv).run()
    try:
        peer.start()
        beside = steps(f"127.0.0.1:{peer.port}", f"127.0.0.1:{peer.namesrv_port}").run()
    finally:
        peer.stop()
    assert list(own) == list(beside)
    assert {
        name: (own[name], beside[name]) for name in own if name not in differences and own[name] != beside[name]
    } == {}
    for name, (here, there) in differences.items():
        assert _holds(here, own[name]), name
        assert _holds(there, beside[name]), name


def _holds(expected: object, found: object) -> bool:
    """Whether all that is expected was found."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(name in found and _holds(value, found[name]) for name, value in expected.items())
    return expected == found
