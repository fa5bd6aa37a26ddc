"""Headrace's errors in Kafka's terms, and the door's own.

A handler that lets an error escape has its connection closed, since only the handler knows where in its reply the code
belongs; so handlers catch `HeadraceError` around what they do for each topic, partition or group.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from headrace import errors


class KafkaError(errors.HeadraceError):
    """A request, or one part of it, that only Kafka's protocol has a reason to refuse."""

    def __init__(self, code: ErrorCode, sentence: str | None) -> None:
        super().__init__(sentence)
        self.kafka_code = int(code)


class Malformed(errors.HeadraceError):
    """The bytes are not the request that they claim to be: the connection is closed."""


class Unanswerable(errors.HeadraceError):
    """A request that Kafka answers by closing the connection: unknown API or version, a failed acks=0 produce."""


_CODES: dict[type[BaseException], ErrorCode] = {
    errors.InvalidCredentials: ErrorCode.unacceptable_credential,
    errors.DuplicateCredentials: ErrorCode.duplicate_resource,
    errors.UnknownUser: ErrorCode.resource_not_found,
    errors.InvalidRule: ErrorCode.invalid_request,
    errors.TooManyIdentities: ErrorCode.policy_violation,
    errors.UnknownTopic: ErrorCode.unknown_topic_or_partition,
    errors.TopicExists: ErrorCode.topic_already_exists,
    errors.InvalidTopic: ErrorCode.invalid_topic_exception,
    errors.InvalidPartitions: ErrorCode.invalid_partitions,
    errors.TooManyPartitions: ErrorCode.policy_violation,
    errors.InvalidTopicConfig: ErrorCode.invalid_config,
    errors.InvalidGroupConfig: ErrorCode.invalid_config,
    errors.InvalidBrokerConfig: ErrorCode.invalid_request,
    errors.InvalidQuota: ErrorCode.invalid_request,
    errors.QuotaExceeded: ErrorCode.throttling_quota_exceeded,
    errors.BoundReached: ErrorCode.policy_violation,
    errors.CorruptBatch: ErrorCode.corrupt_message,
    errors.UnsupportedBatch: ErrorCode.unsupported_for_message_format,
    errors.InvalidRecords: ErrorCode.invalid_record,
    errors.InvalidTimestamp: ErrorCode.invalid_timestamp,
    errors.BatchTooLarge: ErrorCode.message_too_large,
    errors.OutOfOrderSequence: ErrorCode.out_of_order_sequence_number,
    errors.ProducerFenced: ErrorCode.invalid_producer_epoch,
    errors.OwnerFenced: ErrorCode.not_leader_or_follower,
    errors.StorageFailed: ErrorCode.kafka_storage_error,
    errors.TransferFailed: ErrorCode.preferred_leader_not_available,
    errors.NotLeading: ErrorCode.not_leader_or_follower,
    errors.NotEnoughReplicas: ErrorCode.not_enough_replicas,
    errors.TopicFull: ErrorCode.policy_violation,
    errors.TopicBlocked: ErrorCode.request_timed_out,
    errors.InvalidTransactionalId: ErrorCode.invalid_request,
    errors.UnknownTransactionalId: ErrorCode.transactional_id_not_found,
    errors.TooManyTransactionalIds: ErrorCode.policy_violation,
    errors.ProducerIdMismatch: ErrorCode.invalid_producer_id_mapping,
    errors.InvalidTransactionState: ErrorCode.invalid_txn_state,
    errors.InvalidTransactionTimeout: ErrorCode.invalid_transaction_timeout,
    errors.ConcurrentTransactions: ErrorCode.concurrent_transactions,
    errors.PartitionOffline: ErrorCode.kafka_storage_error,
    errors.OffsetOutOfRange: ErrorCode.offset_out_of_range,
    errors.CorruptLog: ErrorCode.kafka_storage_error,
    OSError: ErrorCode.kafka_storage_error,
    TimeoutError: ErrorCode.request_timed_out,
}


_UNAUTHORIZED = {
    "TOPIC": ErrorCode.topic_authorization_failed,
    "GROUP": ErrorCode.group_authorization_failed,
    "TRANSACTIONAL_ID": ErrorCode.transactional_id_authorization_failed,
    "DELEGATION_TOKEN": ErrorCode.delegation_token_authorization_failed,
}


def error_code(error: BaseException) -> ErrorCode:
    """Kafka's code for an error: the nearest of its classes that has one. An error class of another layer may carry its
    own by an attribute `kafka_code`, a number."""
    own = getattr(error, "kafka_code", None)
    if own is not None:
        return ErrorCode(own)
    if isinstance(error, errors.NotAuthorized):
        return _UNAUTHORIZED.get(error.resource, ErrorCode.cluster_authorization_failed)
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            return code
    return ErrorCode.unknown_server_error


def coordinator_code(error: BaseException, version: int, fenced_from: int) -> ErrorCode:
    """Kafka's code for what the coordinator refused with. Before `fenced_from` an API knew a fenced producer only as
    one with an invalid epoch. A disk that takes nothing now, or too few replicas, is a coordinator to come back to."""
    if isinstance(error, errors.NotLeading):
        return ErrorCode.not_coordinator
    if isinstance(error, errors.ProducerFenced):
        return ErrorCode.producer_fenced if version >= fenced_from else ErrorCode.invalid_producer_epoch
    if isinstance(error, errors.StorageFailed | errors.PartitionOffline | OSError):
        return ErrorCode.coordinator_not_available
    return error_code(error)


def controller_code(error: BaseException) -> ErrorCode:
    """Kafka's code for what the controller refused with."""
    return ErrorCode.not_controller if isinstance(error, errors.NotLeading) else error_code(error)
