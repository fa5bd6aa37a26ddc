"""A log in memory, in the place of a broker: transactions, positions and fences, and faults where a test wants them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.outbox.errors import MessageRefused, RelayFenced, Unavailable
from headrace.outbox.store import Message


@dataclass
class Log:
    """What all publishers of one name share."""

    messages: list[Message] = field(default_factory=list)
    committed: tuple[int, str] | None = None
    epoch: int = 0
    transactions: list[int] = field(default_factory=list)
    """How many messages each had."""

    @property
    def values(self) -> list[bytes | None]:
        return [each.value for each in self.messages]


class StandIn:
    """A Publisher. `before` and `after` are called around each commit of messages, and may raise."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._epoch = 0
        self.refuses: Callable[[Message], bool] = lambda message: False
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.exact = False
        """Say at once which message it was that is refused."""

    async def start(self) -> None:
        self._log.epoch += 1
        self._epoch = self._log.epoch

    async def position(self, identity: str) -> int | None:
        return None if self._log.committed is None else self._log.committed[0]

    async def publish(self, messages: list[Message], position: int, identity: str) -> None:
        if self._epoch != self._log.epoch:
            raise RelayFenced("another producer has the transactional id")
        if not messages:
            self._log.committed = (position, identity)
            return
        self.before()
        if refused := [each.id for each in messages if self.refuses(each)]:
            raise MessageRefused("too large", refused[:1] if self.exact else [each.id for each in messages])
        self._log.messages += messages
        self._log.committed = (position, identity)
        self._log.transactions.append(len(messages))
        self.after()

    async def close(self) -> None:
        pass


def away() -> None:
    raise Unavailable("the broker cannot answer")
