"""Settings of a RocketMQ group, which RocketMQ calls a subscription group: whether and how its members may consume.

They are kept under RocketMQ's own names, so that a tool gets back what it has set. A group without settings has the
defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import InvalidGroupConfig

RETRIES_MAX = 16
INT32_MAX = (1 << 31) - 1
# Of those that are objects, as text.
OBJECT_CHARACTERS_MAX = 16_384
PRIORITY_FACTOR = "priority.factor"

DEFAULTS: Mapping[str, Any] = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": RETRIES_MAX,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """A group and its settings."""

    name: str
    values: Mapping[str, Any] = field(default_factory=lambda: DEFAULTS)
    """All of them, by RocketMQ's names."""

    @classmethod
    def parse(cls, name: str, given: Mapping[str, Any]) -> SubscriptionGroup:
        """The settings that are given, and the defaults of the others. Raises InvalidGroupConfig."""
        values = dict(DEFAULTS)
        for key, default in DEFAULTS.items():
            value = given.get(key)
            if value is None:
                continue
            if type(value) is not type(default):
                raise InvalidGroupConfig(
                    f"{key} must be of the type {type(default).__name__} (got {str(value)[:40]!r})"
                )
            if type(value) is int and not -1 <= value <= INT32_MAX:
                raise InvalidGroupConfig(f"{key} must be a number of -1 to {INT32_MAX} (got {str(value)[:40]})")
            if isinstance(value, dict) and len(json.dumps(value)) > OBJECT_CHARACTERS_MAX:
                raise InvalidGroupConfig(f"{key} must have at most {OBJECT_CHARACTERS_MAX} characters")
            values[key] = value
        # As tools write them: `+NAME` is set, `-NAME` is taken back.
        attributes = values["attributes"]
        values["attributes"] = {
            name.removeprefix("+"): value for name, value in attributes.items() if not name.startswith("-")
        }
        return cls(name, values)

    @property
    def may_consume(self) -> bool:
        return bool(self.values["consumeEnable"])

    @property
    def may_broadcast(self) -> bool:
        return bool(self.values["consumeBroadcastEnable"])

    @property
    def notifies_members(self) -> bool:
        """Whether members are notified when others come or go; they find out by themselves later."""
        return bool(self.values["notifyConsumerIdsChangedEnable"])

    @property
    def retries_max(self) -> int:
        """How often a message comes again before it is dead, where the consumer leaves that to the broker."""
        return int(self.values["retryMaxTimes"])

    @property
    def retry_queues(self) -> int:
        """The queues of the retry topic; 0 and less: nothing comes again."""
        return int(self.values["retryQueueNums"])

    @property
    def priority_factor(self) -> int:
        """How many of a hundred receives of a topic with priorities go by them; the others take turns."""
        text = str(self.values["attributes"].get(PRIORITY_FACTOR, ""))
        return min(int(text), 100) if text.isascii() and text.isdecimal() and len(text) <= 18 else 100

    @property
    def sys_flag(self) -> int:
        return int(self.values["groupSysFlag"])

    def encode(self) -> bytes:
        """The settings as they are stored."""
        return json.dumps(dict(self.values), separators=(",", ":")).encode()
