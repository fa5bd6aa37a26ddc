"""The HTTP door: its routes behind a listener."""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.broker import Broker
from headrace.config import Config
from headrace.doors.capacity import Capacity
from headrace.doors.http.api.answers import refusal
from headrace.doors.http.api.handlers import Context, answer
from headrace.doors.http.server.guard import own_names
from headrace.doors.http.server.listener import BODY_MAX_BYTES, Listener
from headrace.doors.http.server.messages import Request, Response


class HttpDoor:
    """Serves health, metrics, publishing and management over a broker."""

    def __init__(
        self, broker: Broker, config: Config, ready: Callable[[], bool], capacity: Capacity | None = None
    ) -> None:
        self.context = Context(broker, ready)
        self.listener = Listener(
            self._answer,
            broker.metrics.door("http"),
            connections_max=config.connections_max,
            capacity=capacity,
            answer_max_bytes=config.http_answer_max_bytes,
            hosts=own_names(config, broker.ground.hostname),
            # Room for a message in Base64, and whatever stands around it.
            body_max_bytes=BODY_MAX_BYTES + 2 * config.message_max_bytes,
            refusal=refusal,
        )

    @property
    def address(self) -> tuple[str, int]:
        """Where the door listens."""
        return self.listener.address

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError where that cannot be."""
        await self.listener.start(host, port)

    async def stop(self) -> None:
        """Stop accepting, let answers out, close."""
        await self.listener.stop()

    async def _answer(self, request: Request) -> Response:
        return await answer(self.context, request)
