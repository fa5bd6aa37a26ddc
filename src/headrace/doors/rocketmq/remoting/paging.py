"""Parts of long lists, as RocketMQ's tools ask for them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.broker import Broker
from headrace.doors.rocketmq.connection import Call


def page(call: Call, names: Sequence[str], first: str, most: str) -> Sequence[str]:
    """The names from the place on that the one field gives, as many as the other; all where neither is there."""
    begin = max(call.number(first, 0), 0)
    count = call.number(most, len(names))
    return names[begin : begin + max(count, 0)]


def describe_version(broker: Broker) -> dict[str, int]:
    """The version of the data, by which slaves of a RocketMQ broker see whether they have it: there are none."""
    return {"counter": 0, "stateVersion": 0, "timestamp": broker.runtime.clock.now_ms()}
