"""Topics, groups and filters as requests name them.

A name has the namespace before it where there is one.
"""

from __future__ import annotations

import re
from typing import Any

from headrace.broker.groups.rocketmq_group import RocketMqSubscription
from headrace.doors.rocketmq import errors
from headrace.doors.rocketmq.grpc.protocol import Code, Proto, definition
from headrace.doors.rocketmq.grpc.status import ResponseError
from headrace.doors.rocketmq.names import log_name
from headrace.doors.rocketmq.subscriptions import SQL92, TAG, parse_subscription

_d: Any = definition
GROUP_MAX = 255
_KINDS = {_d.FILTER_TYPE_UNSPECIFIED: TAG, _d.TAG: TAG, _d.SQL: SQL92}
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def topic_of(resource: Proto) -> str:
    """RocketMQ's name of a topic that is legal. Raises InvalidTopic."""
    name = full_name(resource)
    log_name(name)
    return name


def group_of(resource: Proto) -> str:
    """The name of a group that is legal. Raises ResponseError."""
    name = full_name(resource)
    if not _LEGAL.match(name) or len(name) > GROUP_MAX:
        raise ResponseError(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"{name[:40]!r} is not a group name: 1 to {GROUP_MAX} ASCII letters, digits, '%', '|', '-' and '_'",
        )
    return name


def read_filter(expression: Proto) -> RocketMqSubscription:
    """What a consumer wants of a topic. Raises ResponseError."""
    kind = _KINDS.get(expression.type) or f"{expression.type}"
    try:
        return parse_subscription(expression.expression, kind)
    except errors.ResponseError as error:
        raise ResponseError(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from None


def full_name(resource: Proto) -> str:
    """RocketMQ's name of a topic or group, legal or not."""
    namespace: str = resource.resource_namespace
    name: str = resource.name
    return f"{namespace}%{name}" if namespace and name else name
