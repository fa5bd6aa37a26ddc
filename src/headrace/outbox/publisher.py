"""From a relay to the log: messages, and how far the outbox has come, in one Kafka transaction.

The position is committed as an offset of a group of the outbox's own, so it is in the log exactly if the messages are;
and since the producer has a transactional id, a publisher that begins shuts out all that began before it. Works with
every broker that has transactions, Apache Kafka's too.

The number itself stands in the offset's metadata. An offset must be one of a partition that exists, and a broker may
correct one that lies behind the partition's end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.client import BrokerError, Client, ClientError, Delivery
from headrace.client.errors import ProducerFenced, TransactionUnresolved, UnsupportedApi
from headrace.client.transactional import TransactionalProducer
from headrace.format.error_codes import ErrorCode
from headrace.outbox.errors import InDoubt, MessageRefused, OutboxError, RelayFenced, Unavailable
from headrace.outbox.store import Message

# Nothing is ever written to it: it lends its partition to the offsets of all outboxes.
PLACE = ("headrace-outbox", 0)

# The broker will say the same tomorrow.
REFUSALS = {
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
    ErrorCode.invalid_record,
    ErrorCode.invalid_timestamp,
    ErrorCode.invalid_topic_exception,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.topic_authorization_failed,
    ErrorCode.unsupported_for_message_format,
}
# No message is to blame, and waiting does not help.
FATAL = {
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.unsupported_version,
}


class KafkaPublisher:
    """Publishes for the outbox of one name."""

    def __init__(
        self, client: Client, name: str, *, transaction_timeout: float = 60.0, compression: str = "none"
    ) -> None:
        self._client = client
        self._id = f"outbox-{name}"
        """Of the producer, and of the group that keeps the position."""
        self._timeout = transaction_timeout
        self._compression = compression
        self._producer: TransactionalProducer | None = None

    async def start(self) -> None:
        async with _translate_errors():
            await self.close()
            # Once without retries: a broker that cannot be reached fails now.
            await self._client.cluster.any_node()
            await self._client.admin.ensure_topic(PLACE[0], 1)
            # Linger: a transaction is sent whole, so nothing is gained by waiting for more.
            producer = self._client.transactional(
                self._id,
                transaction_timeout=self._timeout,
                delivery_timeout=self._timeout / 2,
                compression=self._compression,
                linger=0.0,
            )
            try:
                await producer.init()
            except BaseException:
                await producer.close()
                raise
            self._producer = producer

    async def position(self, identity: str) -> int | None:
        async with _translate_errors():
            found = (await self._client.admin.committed(self._id, [PLACE], stable=True)).get(PLACE)
        if found is None:
            return None
        position, _, owner = found.metadata.partition(" ")
        if not position.isdigit():
            raise InDoubt(f"group {self._id} has an offset that no outbox has committed: {found.metadata!r}")
        if identity and owner != identity:
            raise InDoubt(
                f"{self._id} is the name of another outbox, which has {position} messages out: give this one a name of "
                "its own, or begin anew if the other is no more"
            )
        return int(position)

    async def publish(self, messages: list[Message], position: int, identity: str) -> None:
        producer = self._producer
        assert producer is not None
        deliveries: list[Delivery] = []
        async with _translate_errors():
            producer.begin()
            try:
                for each in messages:
                    deliveries.append(await _send(producer, each))
                await producer.flush()
                await producer.send_offsets(self._id, {PLACE: (0, f"{position} {identity}")})
                await producer.commit()
            except (ProducerFenced, TransactionUnresolved):
                raise
            except ClientError as error:
                await producer.abort()
                if suspects := await _suspects(messages, deliveries, error):
                    raise MessageRefused(str(suspects[0][1]), [message.id for message, _ in suspects]) from error
                raise

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(flush=False)


async def _send(producer: TransactionalProducer, message: Message) -> Delivery:
    return await producer.send(
        message.topic,
        message.value,
        message.key,
        headers=message.headers,
        partition=message.partition,
        timestamp=message.added_ms,
    )


async def _suspects(
    messages: list[Message], deliveries: list[Delivery], error: ClientError
) -> list[tuple[Message, ClientError]]:
    """The messages of which one was refused, and why; after an abort, when every delivery has ended."""
    if len(deliveries) < len(messages) and _code(error) in REFUSALS:
        return [(messages[len(deliveries)], error)]
    found: list[tuple[Message, ClientError]] = []
    for message, delivery in zip(messages, deliveries, strict=False):
        try:
            await delivery
        except ClientError as reason:
            if _code(reason) in REFUSALS:
                found.append((message, reason))
    return found


def _code(error: BaseException | None) -> ErrorCode | None:
    """Kafka's code for an error, or for what has led to it."""
    while error is not None and not isinstance(error, BrokerError):
        error = error.__cause__
    return None if error is None else error.error


@asynccontextmanager
async def _translate_errors() -> AsyncIterator[None]:
    try:
        yield
    except ProducerFenced as error:
        raise RelayFenced(str(error)) from error
    except UnsupportedApi as error:
        raise OutboxError(f"a relay needs transactions, which this broker has not: {error}") from error
    except ClientError as error:
        if _code(error) in FATAL:
            raise OutboxError(f"the broker does not let the relay work: {error}") from error
        raise Unavailable(f"the broker cannot answer: {error}") from error
