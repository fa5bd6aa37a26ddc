"""The copies that a leader gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from headrace.cluster.connection import PeerConnection
from headrace.cluster.copying.messages import Ask, decode
from headrace.cluster.copying.rate import RateLimit
from headrace.cluster.copying.sender import CopyProgress, CopySender
from headrace.cluster.json_messages import PeerProtocolError
from headrace.cluster.wire import Copy, Refusal
from headrace.log.replicated import ReplicatedLog

logger = structlog.get_logger("headrace.cluster")


class Copies:
    """Those under way, by the follower's directory."""

    def __init__(
        self,
        log: ReplicatedLog,
        bytes_per_second: int,
        refusal: Callable[[Ask, PeerConnection], Refusal | None],
    ) -> None:
        """`refusal`: why a follower gets no copy here, if it does not."""
        self._log = log
        self._rate = bytes_per_second
        self._limit = RateLimit(bytes_per_second)
        self._refusal = refusal
        self._senders: dict[str, CopySender] = {}

    @property
    def progress(self) -> Sequence[CopyProgress]:
        """How far each is."""
        return [each.progress for each in self._senders.values()]

    def open(self, connection: PeerConnection, message: Copy) -> None:
        """A follower has connected, and asks for a copy."""
        try:
            ask = decode(message.body)
            if not isinstance(ask, Ask):
                raise PeerProtocolError(f"a copy begins with a {type(ask).__name__}")
        except PeerProtocolError as error:
            logger.warning("a peer's connection is closed", error=str(error))
            connection.close()
            return
        if (refusal := self._refusal(ask, connection)) is not None:
            connection.close(refusal)
            return
        old = self._senders.pop(ask.caller.directory, None)
        if old is not None:
            old.close("another copy to the same node has begun")
        self._senders[ask.caller.directory] = CopySender(
            self._log, self._limit, self._rate, connection, ask, self._on_end
        )

    def _on_end(self, sender: CopySender) -> None:
        if self._senders.get(sender.ask.caller.directory) is sender:
            del self._senders[sender.ask.caller.directory]

    def close(self, reason: str) -> None:
        """End them all: this node does not lead any more."""
        for sender in list(self._senders.values()):
            sender.close(reason)
