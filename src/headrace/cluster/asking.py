"""Asking a node how it is, over the protocol of the nodes: for commands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.addresses import format_address
from headrace.cluster.connection import PeerConnection
from headrace.cluster.errors import NodeUnheard
from headrace.cluster.figures import Figures
from headrace.cluster.peer_network import PeerNetwork
from headrace.cluster.peer_tls import PeerTls
from headrace.cluster.wire import OPENING_MAX_BYTES, Inquiry, Message, Refusal, Report

Address = tuple[str, int]

# Longer than a node that works takes for anything.
PATIENCE_S = 5.0


class _Answer:
    """The other side's first message."""

    def __init__(self) -> None:
        self.message: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def on_message(self, connection: PeerConnection, message: Message) -> None:
        if not self.message.done():
            self.message.set_result(message)

    def on_closed(self, connection: PeerConnection) -> None:
        if not self.message.done():
            self.message.set_exception(ConnectionResetError("it closed the connection"))

    def on_drained(self, connection: PeerConnection) -> None:
        """A question is short."""


async def ask(address: Address, tls: PeerTls | None) -> Report:
    """What the node at its peer address reports. Raises NodeUnheard."""
    answer, shown = _Answer(), format_address(*address)
    connection = PeerConnection(answer, OPENING_MAX_BYTES)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await PeerNetwork(tls, Figures()).connect(connection, address)
            connection.send(Inquiry())
            message = await answer.message
    except TimeoutError:
        raise NodeUnheard(f"the node at {shown} does not answer") from None
    except OSError as error:
        raise NodeUnheard(f"the node at {shown} cannot be asked: {error}") from None
    finally:
        connection.close()
        answer.message.cancel()
    if isinstance(message, Report):
        return message
    reason = message.reason if isinstance(message, Refusal) else f"it answers {type(message).__name__}"
    raise NodeUnheard(f"the node at {shown} refuses to answer: {reason}")


async def ask_all(addresses: Sequence[Address], tls: PeerTls | None) -> list[Report]:
    """What all of them report. Raises NodeUnheard."""
    return list(await asyncio.gather(*(ask(each, tls) for each in addresses)))
