"""What can go wrong, in words.

Every error has a machine name (`code`, the class's own) and a sentence that says what was wrong, with what value, and
what to do. The layers raise these; each door answers in its protocol's own terms. Nothing here imports anything of
Headrace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class HeadraceError(Exception):
    """The root of all errors that Headrace raises on purpose."""

    @property
    def code(self) -> str:
        """The machine-readable name."""
        return type(self).__name__


class ConfigError(HeadraceError):
    """A setting has a value that makes no sense."""


class DataDirectoryLocked(HeadraceError):
    """Another process owns the data directory."""

    def __init__(self, root: str, holder: str) -> None:
        by = f" by process {holder}" if holder else ""
        super().__init__(
            f"the data directory {root} is in use{by}: stop that broker, or give this one a directory of its own"
        )


class DataDirectoryInvalid(HeadraceError):
    """The data directory was written by something else, or by a newer version."""


class CheckpointDamaged(DataDirectoryInvalid):
    """The file that lists the topics is damaged."""


class DoorClosed(HeadraceError):
    """A door cannot listen on its configured address."""


class WorkerFailed(HeadraceError):
    """A worker process ended without an answer."""


# --- security ---------------------------------------------------------------------------------------------------------


class NotAuthorized(HeadraceError):
    """The client has no right to do that."""

    def __init__(self, operation: str, resource: str, name: str) -> None:
        super().__init__(
            f"not authorized: this takes the right {operation} on the {resource.lower().replace('_', ' ')} '{name}'. "
            "An administrator grants it: see `headrace acl grant`"
        )
        self.operation = operation
        self.resource = resource
        self.name = name


class Unregistered(NotAuthorized):
    """Nobody has registered that, and the broker asks for it."""

    def __init__(self, resource: str, name: str, *, is_known: bool = True) -> None:
        """`is_known`: the broker could read what is registered."""
        super().__init__("USE", resource, name)
        if not is_known:
            words = f"registrations cannot be read yet, so the {resource.lower()} '{name}' is refused"
            self.args = (f"{words} (registration = refuse). Try again later; the broker's log has the reason",)
            return
        self.args = (
            f"the {resource.lower()} '{name}' is not registered (registration = refuse). Ask for it in the console, or "
            "by `headrace register`",
        )


class AuthenticationFailed(HeadraceError):
    """The client is not who it says, or did not show it."""

    delay_ms = 0
    """How long a door waits before it answers, because there were many of these."""


class InvalidCredentials(HeadraceError):
    """A user's name, a password or a credential cannot be one."""


class DuplicateCredentials(InvalidCredentials):
    """One request changes the same credential of a user twice."""


class UnknownUser(HeadraceError):
    """There is no such user, or it has no such credential."""


class UserExists(HeadraceError):
    """There is a user of that name already."""


class UnknownToken(HeadraceError):
    """There is no such API token."""


class InvalidRule(HeadraceError):
    """A rule, a role or a scope makes no sense."""


class TooManyIdentities(HeadraceError):
    """There are as many users, tokens, rules or roles as may be."""


# --- quotas -----------------------------------------------------------------------------------------------------------


class InvalidQuota(HeadraceError):
    """A quota has an unknown name, a value that makes no sense, or is for nothing that can have one."""


class QuotaExceeded(HeadraceError):
    """The client has used more than its quota lets it: try again later."""

    def __init__(self, kind: str, seconds: float) -> None:
        super().__init__(f"the quota {kind} is used up. Try again in {seconds:.1f} seconds.")
        self.kind = kind
        self.seconds = seconds
        """After which it is worth trying again."""


class BoundReached(HeadraceError):
    """The user has as many connections, topics or queues as it may have."""


# --- topics -----------------------------------------------------------------------------------------------------------


class UnknownTopic(HeadraceError):
    """There is no such topic or partition."""


class UnknownPartition(UnknownTopic):
    """The topic has no such partition."""


class TopicExists(HeadraceError):
    """A topic of that name is there already."""


class InvalidTopic(HeadraceError):
    """The name cannot be a topic's."""


class InvalidPartitions(HeadraceError):
    """The number of partitions makes no sense, or would shrink the topic."""


class TooManyPartitions(InvalidPartitions):
    """The request, or the broker, would have more partitions than are allowed."""


class InvalidBrokerConfig(HeadraceError):
    """A setting of the broker cannot be changed while it runs, or not to this value."""


class InvalidGroupConfig(HeadraceError):
    """A setting of a group has an unknown name or a value that makes no sense."""


class InvalidTopicConfig(HeadraceError):
    """A topic setting has an unknown name or a value that makes no sense."""


# --- queues -----------------------------------------------------------------------------------------------------------


class InvalidQueue(HeadraceError):
    """The name cannot be a queue's."""


class UnknownQueue(HeadraceError):
    """The topic has no such queue."""


class InvalidQueueSetting(HeadraceError):
    """A queue's setting has an unknown name or a value that makes no sense."""


class InvalidHandle(HeadraceError):
    """The text is no handle of a leased message."""


class TooManyLeases(HeadraceError):
    """As many messages of the queue are leased, or as many receives wait for them, as may be."""


# --- search -----------------------------------------------------------------------------------------------------------


class InvalidSearch(HeadraceError):
    """What is searched for makes no sense."""


class TooManySearches(HeadraceError):
    """As many searches are under way as may be."""


# --- half messages ----------------------------------------------------------------------------------------------------


class InvalidHalf(HeadraceError):
    """An id, a producer group or a timeout of a half message makes no sense."""


class UnknownHalf(HeadraceError):
    """There is no such half message, or it was decided so long ago that the outcome is forgotten."""


class HalfDecided(HeadraceError):
    """The half message was decided before, the other way."""


# --- appending --------------------------------------------------------------------------------------------------------


class VersionConflict(HeadraceError):
    """What is to be changed was changed meanwhile."""


class DocumentsFull(HeadraceError):
    """There is no room for more of that, or for so much in one."""


class AppendRefused(HeadraceError):
    """The root of the reasons why a batch was not appended."""

    refused: Mapping[int, AppendRefused] = {}
    """Of an append to several partitions, what is wrong with each write that is refused, by its number."""


class CorruptBatch(AppendRefused):
    """The bytes are not a record batch, or its checksum does not fit."""


class BatchDiverges(AppendRefused):
    """A batch that comes as it is does not follow the end of the log, in its offset or its leader epoch."""


class UnsupportedBatch(AppendRefused):
    """A batch of an old format (magic below 2), or with a compression that is not known."""


class RecordsRefused(AppendRefused):
    """Records of the batch break a rule. `records` has the index and the reason of each of them, as far as they are
    counted; where it is empty, the batch as a whole is at fault."""

    def __init__(self, message: str, records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.records = records


class InvalidRecords(RecordsRefused):
    """The batch is whole, but its records break a rule of the topic (no key on a compacted topic, count off)."""


class InvalidDelay(InvalidRecords):
    """A message is to be delivered at a time that is too far away."""


class UnpacksTooLarge(InvalidRecords):
    """The records unpack to more than is allowed."""


class InvalidTimestamp(RecordsRefused):
    """The time of a record is too far from the broker's."""


class BatchTooLarge(AppendRefused):
    """The batch is larger than the topic's `max.message.bytes`."""


class OutOfOrderSequence(AppendRefused):
    """An idempotent producer's batch does not follow its last one."""


class ProducerFenced(AppendRefused):
    """A newer epoch of the same producer id has written."""


class OwnerFenced(AppendRefused):
    """The writer held the partition in an epoch that has passed."""


class StorageFailed(AppendRefused):
    """The disk is full or failed. Readers go on; writes resume once there is room."""


class AppendOffline(StorageFailed):
    """The partition is offline: it takes nothing, and others do."""


class NotLeading(StorageFailed):
    """This node does not lead its group, or no longer does: what became of an append is for the next leader to
    decide."""


class NotEnoughReplicas(StorageFailed):
    """Too few replicas of the group are in sync, or they are too far behind, for an append to be taken."""


class TransferFailed(HeadraceError):
    """The node that was to lead next did not take over; this one leads as before, if it did."""


class AlreadySettled(AppendRefused):
    """A message was to be settled together with something else, and was settled before."""


class TopicFull(AppendRefused):
    """The topic's readers are as far behind as its `overflow` setting allows."""


class TopicBlocked(TopicFull):
    """The same, where the producer was to wait: there was no room in time. Nothing was appended: try again."""


class HalfFull(AppendRefused):
    """As many half messages are undecided as may be."""


class PartitionOffline(HeadraceError):
    """The partition's files are damaged below its recovery point; it serves nothing until an operator repairs it."""


# --- transactions -----------------------------------------------------------------------------------------------------


class TransactionRefused(HeadraceError):
    """The root of what can be wrong with a request about a transaction. (See `ProducerFenced` too.)"""


class InvalidTransactionalId(TransactionRefused):
    """The text cannot be a transactional id."""


class UnknownTransactionalId(TransactionRefused):
    """No producer has begun with that transactional id."""


class TooManyTransactionalIds(TransactionRefused):
    """As many transactional ids as are allowed are known already."""


class ProducerIdMismatch(TransactionRefused):
    """The transactional id belongs to another producer id."""


class InvalidTransactionState(TransactionRefused):
    """What was asked for cannot be done in the state in which the transaction is."""


class InvalidTransactionTimeout(TransactionRefused):
    """A transaction may not take so long, or no time at all."""


class ConcurrentTransactions(TransactionRefused):
    """The producer's last transaction is still being ended: try again."""


# --- reading ----------------------------------------------------------------------------------------------------------


class OffsetOutOfRange(HeadraceError):
    """The offset lies before the start or after the end of the partition."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside of the log, which holds {start} to {end}")
        self.start = start
        self.end = end


class CorruptLog(HeadraceError):
    """A batch on disk, below the recovery point, does not fit its checksum."""
