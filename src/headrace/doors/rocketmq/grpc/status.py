"""Requests that cannot be done, in the gRPC protocol's codes, with a sentence.

Nearly every answer carries a status. Only what goes wrong in a Telemetry stream, and what is no request at all, ends
with a status of gRPC itself.
"""

from __future__ import annotations

from headrace.doors.rocketmq import errors
from headrace.doors.rocketmq.codes import Code as RemotingCode
from headrace.doors.rocketmq.grpc.protocol import Code, Proto, definition
from headrace.errors import (
    BatchTooLarge,
    BoundReached,
    HalfDecided,
    HalfFull,
    HeadraceError,
    InvalidDelay,
    InvalidHalf,
    InvalidHandle,
    InvalidQueue,
    InvalidRecords,
    InvalidTopic,
    NotAuthorized,
    PartitionOffline,
    QuotaExceeded,
    RecordsRefused,
    StorageFailed,
    TooManyLeases,
    TopicBlocked,
    TopicFull,
    UnknownHalf,
    UnknownTopic,
    UnpacksTooLarge,
)

# The first that fits: what is more particular stands before.
_CODES: dict[type[HeadraceError], int] = {
    NotAuthorized: Code.FORBIDDEN,
    InvalidDelay: Code.ILLEGAL_DELIVERY_TIME,
    InvalidTopic: Code.ILLEGAL_TOPIC,
    UnknownTopic: Code.TOPIC_NOT_FOUND,
    InvalidQueue: Code.ILLEGAL_CONSUMER_GROUP,
    InvalidHandle: Code.INVALID_RECEIPT_HANDLE,
    TooManyLeases: Code.TOO_MANY_REQUESTS,
    BatchTooLarge: Code.MESSAGE_BODY_TOO_LARGE,
    UnpacksTooLarge: Code.MESSAGE_BODY_TOO_LARGE,
    InvalidRecords: Code.MESSAGE_CORRUPTED,
    RecordsRefused: Code.MESSAGE_CORRUPTED,
    InvalidHalf: Code.INVALID_TRANSACTION_ID,
    UnknownHalf: Code.INVALID_TRANSACTION_ID,
    HalfDecided: Code.INVALID_TRANSACTION_ID,
    # Clients do not send again at once after these.
    HalfFull: Code.TOO_MANY_REQUESTS,
    QuotaExceeded: Code.TOO_MANY_REQUESTS,
    BoundReached: Code.FORBIDDEN,
    TopicBlocked: Code.TOO_MANY_REQUESTS,
    TopicFull: Code.TOO_MANY_REQUESTS,
    StorageFailed: Code.HA_NOT_AVAILABLE,
    PartitionOffline: Code.HA_NOT_AVAILABLE,
}


class ResponseError(HeadraceError):
    """A request that is answered with this code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.status_code = code


def make_status(code: int = Code.OK, text: str = "OK") -> Proto:
    """A status, as answers carry it."""
    return definition.Status(code=code, message=text)


def status_of(error: HeadraceError) -> Proto:
    """The status of what was refused."""
    if isinstance(error, ResponseError):
        return make_status(error.status_code, str(error))
    if isinstance(error, errors.ResponseError):
        code = Code.TOPIC_NOT_FOUND if error.response is RemotingCode.TOPIC_NOT_EXIST else Code.BAD_REQUEST
        return make_status(code, str(error))
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return make_status(code, str(error))
    return make_status(Code.INTERNAL_SERVER_ERROR, str(error))
