"""Reading through incremental fetch sessions: when one begins, goes on, is lost, and begins anew."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from kio.schema.errors import ErrorCode

from headrace.client import wire
from headrace.client.connection import Connection
from headrace.client.errors import ClientError
from simulation.history import Place, require
from simulation.kafka.client import KafkaClient
from simulation.kafka.life import KafkaLife

SESSION_LOST = (ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch)

Life = TypeVar("Life", bound=KafkaLife)


class SessionReader(ABC, Generic[Life]):
    """A reader of several partitions. What it makes of the answers is a subclass's."""

    def __init__(self, life: Life, name: str, positions: dict[Place, int], committed: bool = False) -> None:
        self._life = life
        self._name = name
        self._positions = positions
        self._committed = committed
        self._rng = life.stream(f"reader {name}")
        self._client = KafkaClient(life, name)
        self._codec = life.codec(self._rng)

    async def run(self, steps: int) -> None:
        while steps > 0:
            connection = await self._client.connection()
            session, epoch = 0, self._rng.choice((0, 0, 0, -1))
            known: dict[Place, int] = {}
            try:
                while steps > 0:
                    steps -= 1
                    error, session = await self._fetch(connection, (session, epoch), known)
                    if error in SESSION_LOST:
                        require(epoch > 0, f"{self._name}: a new fetch session was refused with {error!r}")
                        session, epoch = 0, 0
                        known.clear()
                    elif session and self._rng.random() < 0.95:
                        epoch += 1
                    else:
                        epoch = 0 if epoch >= 0 else -1
                        known.clear()
            except ClientError as error:
                self._life.on_cut(self._name, error)
        self._client.close()

    async def _fetch(
        self, connection: Connection, session: tuple[int, int], known: dict[Place, int]
    ) -> tuple[ErrorCode, int]:
        """One request: all partitions, or in a session those whose position the broker does not know."""
        wanted = [
            (place, position, self._rng.choice((500, 1 << 20)))
            for place, position in self._positions.items()
            if known.get(place) != position
        ]
        wait, least = self._rng.choice((0, 5, 50, 500)), self._rng.choice((1, 1, 1_000))
        asked = dict(self._positions)
        self.on_request()
        error, found, number = await self._codec.fetch(connection, wanted, wait, least, session, self._committed)
        if not error:
            known.update(asked)
            for fetched in found:
                place = fetched.topic, fetched.partition
                self._positions[place] = self.take(place, fetched, self._positions[place])
        return ErrorCode(error), number

    def on_request(self) -> None:
        """A request is about to leave."""

    @abstractmethod
    def take(self, place: Place, fetched: wire.Fetched, position: int) -> int:
        """Record an answer; the position to go on at."""
