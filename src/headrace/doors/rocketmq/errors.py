"""Requests that cannot be done, in RocketMQ's codes, with a sentence."""

from __future__ import annotations

from headrace.broker.groups.protocol import GroupError
from headrace.doors.rocketmq.codes import Code
from headrace.errors import (
    AppendRefused,
    BatchTooLarge,
    HalfFull,
    HeadraceError,
    InvalidDelay,
    InvalidPartitions,
    InvalidTopic,
    InvalidTopicConfig,
    PartitionOffline,
    RecordsRefused,
    StorageFailed,
    TopicBlocked,
    TopicFull,
    UnknownTopic,
)

_CODES: dict[type[HeadraceError], Code] = {
    InvalidTopic: Code.INVALID_PARAMETER,
    InvalidTopicConfig: Code.INVALID_PARAMETER,
    InvalidPartitions: Code.INVALID_PARAMETER,
    UnknownTopic: Code.TOPIC_NOT_EXIST,
    BatchTooLarge: Code.MESSAGE_ILLEGAL,
    InvalidDelay: Code.MESSAGE_ILLEGAL,
    RecordsRefused: Code.MESSAGE_ILLEGAL,
    # Clients send to another broker, or once more, after these.
    HalfFull: Code.SYSTEM_BUSY,
    TopicBlocked: Code.SYSTEM_BUSY,
    TopicFull: Code.SYSTEM_BUSY,
    StorageFailed: Code.SERVICE_NOT_AVAILABLE,
    PartitionOffline: Code.SERVICE_NOT_AVAILABLE,
    AppendRefused: Code.SYSTEM_ERROR,
    GroupError: Code.SYSTEM_ERROR,
}


class ResponseError(HeadraceError):
    """A request that is answered with this code."""

    def __init__(self, response: Code, text: str) -> None:
        super().__init__(text)
        self.response = response


def translate(error: HeadraceError) -> ResponseError:
    """What the broker refused."""
    if isinstance(error, ResponseError):
        return error
    for kind, response in _CODES.items():
        if isinstance(error, kind):
            return ResponseError(response, str(error))
    return ResponseError(Code.SYSTEM_ERROR, str(error))
