"""EndTransaction, and the questions to producers that have not ended theirs.

A transaction is a prepared message (`broker/prepared`), and its id is that message's: durable, and known to every
connection and after every restart. The producers that are asked about a message are those of its topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.prepared import Check
from headrace.broker.publish import Headers
from headrace.broker.security import Operation, Resource, Session
from headrace.doors.rocketmq.grpc.clients import Stream
from headrace.doors.rocketmq.grpc.methods import Caller
from headrace.doors.rocketmq.grpc.proto_messages import to_ms, write_message
from headrace.doors.rocketmq.grpc.protocol import Code, Proto, definition, service
from headrace.doors.rocketmq.grpc.resources import topic_of
from headrace.doors.rocketmq.grpc.status import ResponseError, make_status
from headrace.doors.rocketmq.messages import Host
from headrace.doors.rocketmq.names import rocketmq_name
from headrace.doors.rocketmq.records import message_of

_d: Any = definition
_s: Any = service
NO_HOST = Host(bytes(4), 0)


class TransactionHandlers:
    """Prepares, commits and rolls back."""

    def __init__(self, broker: Broker) -> None:
        self._prepared = broker.prepared
        self._security = broker.security
        self._timeout_max = broker.config.half_timeout_max_ms

    async def prepare(
        self,
        session: Session,
        topic: str,
        name: str,
        queue: int,
        message: Proto,
        row: tuple[bytes | None, bytes, Headers],
    ) -> str:
        """Store a message that no reader sees until it is committed; the id of its transaction. `name` is the log's of
        the topic. Raises a HeadraceError."""
        key, body, headers = row
        recovery: Sequence[Proto] = ()
        system = message.system_properties
        if system.HasField("orphaned_transaction_recovery_duration"):
            recovery = (system.orphaned_transaction_recovery_duration,)
        timeout_ms = next((min(to_ms(each), self._timeout_max) for each in recovery if to_ms(each) > 0), None)
        return await self._prepared.prepare(
            name,
            body,
            group=topic,
            key=key,
            headers=headers,
            partition=queue,
            timeout_ms=timeout_ms,
            session=session,
        )

    async def end_transaction(self, caller: Caller, request: Proto) -> Proto:
        """EndTransaction."""
        topic_of(request.topic)
        if not request.transaction_id:
            raise ResponseError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        if request.resolution in (_d.COMMIT, _d.ROLLBACK):
            # The request's topic is what the client says, and the message's is what counts.
            status = await self._prepared.find(request.transaction_id)
            if status.topic:
                self._security.check(caller.session, Operation.WRITE, Resource.TOPIC, status.topic)
        if request.resolution == _d.COMMIT:
            await self._prepared.commit(request.transaction_id)
        elif request.resolution == _d.ROLLBACK:
            await self._prepared.rollback(request.transaction_id)
        # Else it is not known yet, and will be asked again.
        return _s.EndTransactionResponse(status=make_status())

    @staticmethod
    def ask(stream: Stream, check: Check) -> None:
        """Ask a producer what became of its local transaction."""
        message = check.message
        record = (0, message.prepared_ms, message.key, message.value, list(message.headers))
        topic = rocketmq_name(message.topic) or message.topic
        stored = message_of(record, topic, max(message.partition, 0), 0, NO_HOST)
        written = write_message(stored, _d.Resource(name=topic))
        written.system_properties.message_type = _d.TRANSACTION
        command = _s.RecoverOrphanedTransactionCommand(message=written, transaction_id=check.id)
        stream.send(_s.TelemetryCommand(status=make_status(), recover_orphaned_transaction_command=command))
