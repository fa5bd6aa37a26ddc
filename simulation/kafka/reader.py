"""LogReader through incremental fetch sessions: when one begins, goes on, is lost, and begins anew."""

from __future__ import annotations

from typing import Generic, TypeVar

from kio.schema.errors import ErrorCode

from headrace.client.connection import Connection
from headrace.client.errors import ClientError
from simulation.broker.producer import KafkaClient
from simulation.kafka.life import KafkaLife

SESSION_LOST = (ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch)

Life = TypeVar("Life", bound=KafkaLife)
Place = TypeVar("Place")


class SessionReader(Generic[Life, Place]):
    """A reader of several partitions. What it asks for, and what it makes of the answers, is its heirs'."""

    def __init__(self, life: Life, name: str, positions: dict[Place, int]) -> None:
        self._life = life
        self._name = name
        self._positions = positions
        self._rng = life.stream(f"reader {name}")
        self._caller = KafkaClient(life, name)
        self._dialect = life.codec(self._rng)

    async def run(self, steps: int) -> None:
        while steps > 0:
            connection = await self._caller.connection()
            session, epoch = 0, self._rng.choice((0, 0, 0, -1))
            told: dict[Place, int] = {}
            try:
                while steps > 0:
                    steps -= 1
                    error, session = await self._fetch(connection, session, epoch, told)
                    if error in SESSION_LOST:
                        self._life.require(epoch > 0, f"{self._name}: a new fetch session was refused with {error!r}")
                        session, epoch = 0, 0
                        told.clear()
                    elif session and self._rng.random() < 0.95:
                        epoch += 1
                    else:
                        epoch = 0 if epoch >= 0 else -1
                        told.clear()
            except ClientError as error:
                self._life.cut(self._name, error)
        self._caller.close()

    async def _fetch(
        self, connection: Connection, session: int, epoch: int, told: dict[Place, int]
    ) -> tuple[ErrorCode, int]:
        """One request: all partitions, or in a session those whose position the broker does not know."""
        raise NotImplementedError
