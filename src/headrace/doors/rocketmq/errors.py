"""Requests that cannot be done, in RocketMQ's codes, with a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.groups.protocol import GroupError
from headrace.doors.rocketmq.codes import Code
from headrace.errors import (
    AppendRefused,
    AuthenticationFailed,
    BatchTooLarge,
    BoundReached,
    HalfFull,
    HeadraceError,
    InvalidBrokerConfig,
    InvalidDelay,
    InvalidGroupConfig,
    InvalidPartitions,
    InvalidQueue,
    InvalidTopic,
    InvalidTopicConfig,
    NotAuthorized,
    PartitionOffline,
    QuotaExceeded,
    RecordsRefused,
    StorageFailed,
    TooManyLeases,
    TopicBlocked,
    TopicFull,
    UnknownTopic,
)

_CODES: dict[type[HeadraceError], Code] = {
    NotAuthorized: Code.NO_PERMISSION,
    AuthenticationFailed: Code.NO_PERMISSION,
    InvalidTopic: Code.INVALID_PARAMETER,
    InvalidQueue: Code.INVALID_PARAMETER,
    TooManyLeases: Code.POLLING_FULL,
    InvalidTopicConfig: Code.INVALID_PARAMETER,
    InvalidGroupConfig: Code.INVALID_PARAMETER,
    InvalidBrokerConfig: Code.NO_PERMISSION,
    InvalidPartitions: Code.INVALID_PARAMETER,
    UnknownTopic: Code.TOPIC_NOT_EXIST,
    BatchTooLarge: Code.MESSAGE_ILLEGAL,
    InvalidDelay: Code.MESSAGE_ILLEGAL,
    RecordsRefused: Code.MESSAGE_ILLEGAL,
    # Clients send to another broker, or once more, after these.
    HalfFull: Code.SYSTEM_BUSY,
    QuotaExceeded: Code.SYSTEM_BUSY,
    BoundReached: Code.NO_PERMISSION,
    TopicBlocked: Code.SYSTEM_BUSY,
    TopicFull: Code.SYSTEM_BUSY,
    StorageFailed: Code.SERVICE_NOT_AVAILABLE,
    PartitionOffline: Code.SERVICE_NOT_AVAILABLE,
    AppendRefused: Code.SYSTEM_ERROR,
    GroupError: Code.SYSTEM_ERROR,
}


class ResponseError(HeadraceError):
    """A request that is answered with this code."""

    def __init__(self, response: Code, text: str, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.response = response
        self.fields = dict(fields or {})


def translate(error: HeadraceError) -> ResponseError:
    """What the broker refused."""
    if isinstance(error, ResponseError):
        return error
    for kind, response in _CODES.items():
        if isinstance(error, kind):
            return ResponseError(response, str(error))
    return ResponseError(Code.SYSTEM_ERROR, str(error))
