"""What the handlers of transactions share: the coordinator's refusals in the terms of each version."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.errors import error_code
from headrace.errors import PartitionOffline, ProducerFenced, StorageFailed


def coordinator_code(error: BaseException, version: int, fenced_from: int) -> ErrorCode:
    """Kafka's code for what the coordinator refused with. Before `fenced_from` an API knew a fenced producer only as
    one with an invalid epoch. A disk that takes nothing now is a coordinator to come back to."""
    if isinstance(error, ProducerFenced):
        return ErrorCode.producer_fenced if version >= fenced_from else ErrorCode.invalid_producer_epoch
    if isinstance(error, StorageFailed | PartitionOffline | OSError):
        return ErrorCode.coordinator_not_available
    return error_code(error)
