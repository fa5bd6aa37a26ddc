"""Pops at Headrace and at a real RocketMQ: the answers are the same, field by field, but for what is listed."""

from __future__ import annotations

import pytest
from tests.java.rocketmq.pop_steps import PopSteps
from tests.java.rocketmq.test_beside_rocketmq import compare

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

# What RocketMQ's refusals of a pop have.
NOTHING = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}
# What differs, here and at RocketMQ; docs/rocketmq.md has the reasons.
DIFFERENCES: dict[str, tuple[object, object]] = {
    "pop a tag": ({"fields": {"startOffsetInfo": "0 0 2"}}, {"fields": {"startOffsetInfo": "0 0 0"}}),
    "pop in order while a batch is out": ({"fields": {"restNum": "4"}}, {"fields": {"restNum": "0"}}),
    "ack with a handle that is none": ({"code": 13}, {"code": 1}),
    "pop again": (
        {"fields": {"startOffsetInfo": "0 0 1", "msgOffsetInfo": "0 0 1"}},
        {"fields": {"startOffsetInfo": "1 0 0", "msgOffsetInfo": "1 0 0"}},
    ),
    "pop too many": ({"code": 29, "fields": {}}, {"code": 29, "fields": NOTHING}),
    "pop no queue": ({"code": 29, "fields": {}}, {"code": 29, "fields": NOTHING}),
    "pop no topic": ({"code": 17, "fields": {}}, {"code": 17, "fields": NOTHING}),
    "pop bad sql": ({"code": 23, "fields": {}}, {"code": 23, "fields": NOTHING}),
    "peek no queue": ({"code": 29, "fields": {}}, {"code": 29, "fields": NOTHING}),
    "peek no topic": ({"code": 17, "fields": {}}, {"code": 17, "fields": NOTHING}),
    "pop too late": ({"code": 210, "fields": {}}, {"code": 210, "fields": NOTHING}),
}


def test_the_answers_are_rocketmqs() -> None:
    compare(PopSteps, DIFFERENCES)
