"""What a consumer wants of a topic, in RocketMQ's words."""

from __future__ import annotations

from headrace.broker.groups.rocketmq_group import RocketMqSubscription
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.messages import hash_tag

ALL = "*"
TAG = "TAG"
TAGS_MAX = 1_000


def parse_subscription(expression: str, kind: str, version: int = 0) -> RocketMqSubscription:
    """The subscription of an expression: `*`, or tags with `||` between them. Raises ResponseError."""
    if kind not in (TAG, ""):
        raise ResponseError(
            Code.REQUEST_CODE_NOT_SUPPORTED, f"expressions of the type {kind[:40]} are not supported. Use tags."
        )
    if expression.strip() in (ALL, ""):
        return RocketMqSubscription(ALL, version)
    tags = [tag.strip() for tag in expression.split("||")]
    found = frozenset(hash_tag(tag) for tag in tags if tag)
    if not found or len(found) > TAGS_MAX:
        raise ResponseError(
            Code.SUBSCRIPTION_PARSE_FAILED, f"{expression[:80]!r} is no list of 1 to {TAGS_MAX} tags with || between"
        )
    return RocketMqSubscription(expression, version, found)


def describe_subscription(topic: str, subscription: RocketMqSubscription) -> dict[str, object]:
    """A subscription as RocketMQ's tools read it."""
    tags = [] if subscription.expression == ALL else [tag.strip() for tag in subscription.expression.split("||")]
    return {
        "classFilterMode": False,
        "codeSet": sorted(subscription.tags),
        "expressionType": TAG,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": [tag for tag in tags if tag],
        "topic": topic,
    }
