"""Queries by key, to Headrace and to a real RocketMQ: the answers are the same, field by field."""

from __future__ import annotations

import pytest
from tests.java.rocketmq.query_steps import QuerySteps
from tests.java.rocketmq.test_beside_rocketmq import compare

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

# What differs, here and at RocketMQ; docs/rocketmq.md has the reasons.
DIFFERENCES: dict[str, tuple[object, object]] = {}


def test_the_answers_are_rocketmqs() -> None:
    compare(QuerySteps, DIFFERENCES)
