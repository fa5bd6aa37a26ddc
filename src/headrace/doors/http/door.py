"""The HTTP door: its routes behind a listener."""

from __future__ import annotations

from functools import partial

from headrace.addresses import format_address
from headrace.doors.door import DoorContext, open_listener
from headrace.doors.http.api.handlers import pages
from headrace.doors.http.api.routes import DOCUMENT, RestApi
from headrace.doors.http.server.authentication import HttpAuthentication
from headrace.doors.http.server.listener import BODY_MAX_BYTES, Listener
from headrace.doors.http.server.messages import Request, Response
from headrace.doors.http.settings import HttpSettings


class HttpDoor:
    """Serves health, metrics, publishing and management over a broker."""

    name = "http"

    def __init__(self, context: DoorContext[HttpSettings]) -> None:
        broker, shared = context.broker, context.shared
        self.settings = context.settings
        self._listeners = context.listeners
        self._pages = pages.Context(broker, context.is_ready)
        self._api = RestApi(broker, tls=context.settings.http_tls)
        self._tls = context.tls if context.settings.http_tls else None
        self._broker = broker
        self.listener = Listener(
            self._answer,
            broker.metrics.door("http"),
            connections_max=shared.connections_max,
            capacity=context.capacity,
            answer_max_bytes=shared.http_answer_max_bytes,
            request_seconds=shared.http_request_ms / 1000,
            hosts=context.host_names,
            # Room for a message in Base64, and whatever stands around it.
            body_max_bytes=BODY_MAX_BYTES + 2 * broker.config.message_max_bytes,
            write_error=RestApi.write_error,
            authentication=HttpAuthentication.of(broker.security, shared),
        )

    @property
    def address(self) -> tuple[str, int]:
        """Where the door listens."""
        return self.listener.address

    @property
    def addresses(self) -> dict[str, str]:
        """HOST:PORT of the door, once it is open."""
        return {"http": format_address(*self.address)} if self.listener.is_open else {}

    async def start(self) -> None:
        """Listen. Raises DoorClosed."""
        listen = partial(self.listener.listen, tls=self._tls)
        await open_listener("http", self.settings.http, listen, self._listeners)

    async def stop(self) -> None:
        """Stop accepting, let answers out, close."""
        await self.listener.stop()

    async def _answer(self, request: Request) -> Response:
        if request.path.startswith(("/v1/", "/topics/")) or request.path == DOCUMENT:
            return await self._api.answer(request)
        return await pages.answer(self._pages, request)
