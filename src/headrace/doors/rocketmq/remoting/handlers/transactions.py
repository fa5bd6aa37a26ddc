"""END_TRANSACTION (37), and CHECK_TRANSACTION_STATE (39), by which a producer is asked how a transaction has ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from headrace.broker.prepared import Check
from headrace.broker.security import Operation, Resource
from headrace.doors.rocketmq import messages
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.connection import Call, RemotingConnection
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.messages import offset_id, read_properties
from headrace.doors.rocketmq.producers import Producer
from headrace.doors.rocketmq.records import UNIQUE_KEY
from headrace.doors.rocketmq.transactions import Outcome
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

log = structlog.get_logger("headrace.rocketmq")


class TransactionHandler:
    """Ends transactions."""

    def __init__(self, remoting: Remoting) -> None:
        self._transactions = remoting.transactions

    async def end(self, call: Call) -> None:
        """END_TRANSACTION."""
        number = call.number("commitOrRollback")
        try:
            outcome = Outcome(number)
        except ValueError:
            raise ResponseError(
                Code.INVALID_PARAMETER,
                f"commitOrRollback must be {Outcome.COMMIT} to commit, {Outcome.ROLL_BACK} to roll back or "
                f"{Outcome.UNKNOWN} (got {number})",
            ) from None
        await self._transactions.end(
            call.connection.session,
            call.number("commitLogOffset"),
            call.text("producerGroup"),
            outcome,
            call.number("tranStateTableOffset"),
        )
        call.answer()


class TransactionChecker:
    """Asks the producer of one connection."""

    def __init__(self, remoting: Remoting, connection: RemotingConnection) -> None:
        self._remoting = remoting
        self._connection = connection
        self._asking: set[asyncio.Task[None]] = set()

    def join(self, client_id: str, call: Call) -> Producer:
        """The producer of the connection, which leaves its groups when the connection is lost."""
        host, port = self._connection.address
        request = call.request
        producer = Producer(client_id, f"{host}:{port}", self.ask, request.language, request.version)
        self._connection.on_lost.append(lambda: self._remoting.producers.leave_all(producer))
        return producer

    def ask(self, check: Check) -> None:
        """Ask about a message. The place of one that another door has prepared may have to be numbered first."""
        task = self._remoting.loop.create_task(self._ask(check))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, check: Check) -> None:
        remoting = self._remoting
        host = remoting.store_host(self._connection)
        try:
            place = await remoting.transactions.place(check.id)
        except (HeadraceError, OSError) as error:
            log.warning("a producer could not be asked about a prepared message", id=check.id, error=str(error))
            return
        security, session = remoting.broker.security, self._connection.session
        if not security.allows(session, Operation.WRITE, Resource.TOPIC, check.message.topic):
            # It is in the producer group by its own word alone.
            return
        message = remoting.transactions.message(check, place, host)
        unique_key = read_properties(message.properties).get(UNIQUE_KEY, "")
        self._connection.request(
            Request.CHECK_TRANSACTION_STATE,
            {
                "topic": message.topic,
                "bname": remoting.settings.rocketmq_broker_name,
                "tranStateTableOffset": str(place.queue_offset),
                "commitLogOffset": str(place.physical_offset),
                "msgId": unique_key,
                "transactionId": unique_key,
                "offsetMsgId": offset_id(host, place.physical_offset),
            },
            messages.encode(message),
        )
