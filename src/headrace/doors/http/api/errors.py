"""Errors of the routes under `/v1`: `{"error": CODE, "message": SENTENCE}` under the status that fits.

The code is for programs (an error class of `headrace.errors`, or one of this door's), the sentence for people.
"""

from __future__ import annotations

from headrace.doors.http.api.responses import json_response
from headrace.doors.http.server.messages import HttpError, Response, retry_after
from headrace.errors import (
    AppendRefused,
    BatchTooLarge,
    BoundReached,
    DocumentsFull,
    HalfDecided,
    HeadraceError,
    InvalidCredentials,
    InvalidHalf,
    InvalidPartitions,
    InvalidQueue,
    InvalidQueueSetting,
    InvalidQuota,
    InvalidRecords,
    InvalidRule,
    InvalidSearch,
    InvalidTopic,
    InvalidTopicConfig,
    NotAuthorized,
    OffsetOutOfRange,
    PartitionOffline,
    QuotaExceeded,
    TooManyIdentities,
    TooManySearches,
    TopicExists,
    UnknownHalf,
    UnknownQueue,
    UnknownToken,
    UnknownTopic,
    UnknownTransactionalId,
    UnknownUser,
    UserExists,
    VersionConflict,
)

# The first class that fits counts.
STATUSES: tuple[tuple[type[HeadraceError], int], ...] = (
    (NotAuthorized, 403),
    (UnknownUser, 404),
    (UnknownToken, 404),
    (UserExists, 409),
    (InvalidCredentials, 400),
    (InvalidRule, 400),
    (TooManyIdentities, 409),
    (UnknownTopic, 404),
    (TopicExists, 409),
    (UnknownTransactionalId, 404),
    (VersionConflict, 409),
    (DocumentsFull, 400),
    (InvalidTopicConfig, 400),
    (OffsetOutOfRange, 400),
    (UnknownQueue, 404),
    (InvalidTopic, 400),
    (InvalidPartitions, 400),
    (InvalidQueue, 400),
    (InvalidQueueSetting, 400),
    (UnknownHalf, 404),
    (InvalidHalf, 400),
    (HalfDecided, 409),
    (InvalidQuota, 400),
    (QuotaExceeded, 429),
    (BoundReached, 403),
    (InvalidSearch, 400),
    (TooManySearches, 503),
    (BatchTooLarge, 413),
    (InvalidRecords, 400),
    (AppendRefused, 503),
    (PartitionOffline, 503),
)
# What never reached a handler, by its status.
CODES = {
    403: "ForeignOrigin",
    408: "RequestTimeout",
    413: "RequestTooLarge",
    421: "ForeignHost",
    431: "HeadTooLarge",
    500: "Failed",
    501: "NotImplemented",
    507: "AnswerTooLarge",
}


def bad_request(message: str) -> HttpError:
    return HttpError(400, "BadRequest", message)


def translate(error: HeadraceError) -> HttpError:
    """What the broker refused."""
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    headers = retry_after(error.seconds) if isinstance(error, QuotaExceeded) else ()
    return HttpError(status, error.code, str(error), headers)


def write_error(error: HttpError) -> Response:
    """The response for an error of a handler, or of the server before one."""
    code = error.code or CODES.get(error.status, "BadRequest")
    return json_response({"error": code, "message": str(error)}, error.status, error.headers)
