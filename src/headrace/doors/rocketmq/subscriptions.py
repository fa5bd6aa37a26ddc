"""What a consumer wants of a topic, in RocketMQ's words: tags, or an expression of SQL92 on properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.groups.rocketmq_group import RocketMqSubscription
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.messages import hash_tag
from headrace.doors.rocketmq.records import properties_of, tag_of
from headrace.doors.rocketmq.sql92 import InvalidExpression, compile_sql
from headrace.format.records import Record

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"
TAGS_MAX = 1_000
# The parts of an expression that cost about as much as all else that is done for a record.
PARTS_FREE = 16


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records a consumer wants."""

    accepts: Callable[[Record], bool]
    tags: frozenset[int] | None = None
    """The hashes of which a record's tag must have one; None: it is of another kind."""
    cost: int = 1
    """Of looking at a record, as a multiple of what it costs without an expression."""

    @property
    def is_by_tag(self) -> bool:
        """Whether nothing but the tag of a record is looked at, if that."""
        return self is ALL_RECORDS or self.tags is not None


def parse_subscription(expression: str, kind: str, version: int = 0) -> RocketMqSubscription:
    """The subscription of an expression: `*`, tags with `||` between them, or SQL92. Raises ResponseError."""
    if kind == SQL92:
        try:
            compile_sql(expression)
        except InvalidExpression as error:
            raise ResponseError(Code.SUBSCRIPTION_PARSE_FAILED, f"{expression[:80]!r} is not SQL92: {error}") from None
        return RocketMqSubscription(expression, version, kind=SQL92)
    if kind not in (TAG, ""):
        raise ResponseError(
            Code.REQUEST_CODE_NOT_SUPPORTED,
            f"expressions of the type {kind[:40]} are not supported. Use {TAG} or {SQL92}.",
        )
    if expression.strip() in (ALL, ""):
        return RocketMqSubscription(ALL, version)
    tags = [tag.strip() for tag in expression.split("||")]
    found = frozenset(hash_tag(tag) for tag in tags if tag)
    if not found or len(found) > TAGS_MAX:
        raise ResponseError(
            Code.SUBSCRIPTION_PARSE_FAILED, f"{expression[:80]!r} is not a list of 1 to {TAGS_MAX} tags with || between"
        )
    return RocketMqSubscription(expression, version, found)


def describe_subscription(topic: str, subscription: RocketMqSubscription) -> dict[str, object]:
    """A subscription as RocketMQ's tools read it."""
    has_tags = subscription.kind == TAG and subscription.expression != ALL
    tags = [tag.strip() for tag in subscription.expression.split("||")] if has_tags else []
    return {
        "classFilterMode": False,
        "codeSet": sorted(subscription.tags),
        "expressionType": subscription.kind,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": [tag for tag in tags if tag],
        "topic": topic,
    }


def filter_of(subscription: RocketMqSubscription) -> RecordFilter:
    """The filter of a subscription."""
    if subscription.kind == SQL92:
        sql = compile_sql(subscription.expression)
        return RecordFilter(lambda record: sql.accepts(properties_of(record[4])), cost=2 + sql.parts // PARTS_FREE)
    tags = subscription.tags
    if not tags:
        return ALL_RECORDS
    # As RocketMQ hashes: a message without a tag has the hash 0, which no tag is searched by.
    return RecordFilter(lambda record: (tag := tag_of(record[4])) != "" and hash_tag(tag) in tags, tags)


def exact_filter_of(subscription: RocketMqSubscription) -> Callable[[Record], bool] | None:
    """The filter of a subscription for readers that do not look again: tags are compared as text. None: all."""
    if subscription.kind == SQL92:
        return filter_of(subscription).accepts
    if not subscription.tags:
        return None
    tags = frozenset(tag.strip() for tag in subscription.expression.split("||"))
    return lambda record: tag_of(record[4]) in tags


ALL_RECORDS = RecordFilter(lambda _: True)
