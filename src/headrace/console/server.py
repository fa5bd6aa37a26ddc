"""The console put together: brokers, history, alerts, and the web application on a socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import structlog
import uvicorn

from headrace.addresses import format_address, host_names, is_loopback, parse_address
from headrace.console.addresses import parse_brokers
from headrace.console.alerts.channels import Deliveries, Mail
from headrace.console.alerts.store import AlertStore
from headrace.console.alerts.watch import AlertWatch
from headrace.console.brokers import BrokerEntry, RecentHistory, parse_credentials
from headrace.console.client.api import Api
from headrace.console.client.transport import ApiError, BrokerAway, Transport
from headrace.console.figures.history import History
from headrace.console.figures.sampler import Sampler
from headrace.console.guard import Guard
from headrace.console.sessions import Sessions
from headrace.console.settings import ConsoleSettings
from headrace.console.users_file import read_users
from headrace.console.web import Web, local_users_path
from headrace.errors import ConfigError

log = structlog.get_logger("headrace.console")

STOP_SECONDS = 2


class Console:
    """One console process."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._running = AsyncExitStack()
        self.entries: dict[str, BrokerEntry] = {}
        self.address = ""
        """HOST:PORT, once it listens."""

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until it is to stop."""
        settings = self._settings
        users = read_users(local_users_path(settings))
        self._refuse_exposed()
        folder = Path(settings.data)
        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the folder {folder} cannot be made: {error.strerror}. Choose another with --data."
            ) from None
        async with self._running:
            await self._open(folder)
            await asyncio.gather(*(probe(each) for each in self.entries.values()))
            sessions = Sessions(settings.session_minutes * 60.0, settings.sessions_max)
            web = Web(settings, self.entries, users, sessions)
            if not web.asks_for_login and not self._is_private and not settings.insecure:
                raise ConfigError(
                    f"other machines would reach the console on {settings.listen} without a login. Listen on "
                    "127.0.0.1, "
                    "add local users (headrace console --add-user NAME), or accept it with --insecure."
                )
            hosts = {*host_names(settings.hosts), socket.gethostname()}
            await self._serve(Guard(web.app(), hosts, settings.sockets_max), stopping)

    @property
    def _is_private(self) -> bool:
        place = parse_address(self._settings.listen)
        return place is not None and is_loopback(place[0])

    def _refuse_exposed(self) -> None:
        settings = self._settings
        if not self._is_private and not settings.tls_cert and not settings.insecure:
            raise ConfigError(
                f"other machines would send passwords to {settings.listen} in the clear. Give --tls-cert and "
                "--tls-key, "
                "listen on 127.0.0.1 behind a proxy that speaks TLS, or accept it with --insecure."
            )

    async def _open(self, folder: Path) -> None:
        settings = self._settings
        history, store = History(folder / "history.db", settings.history_bytes), AlertStore(folder / "alerts.db")
        await history.open()
        self._running.push_async_callback(history.close)
        await store.open()
        self._running.push_async_callback(store.close)
        host, _, port = settings.smtp.rpartition(":")
        password = os.environ.get("HEADRACE_CONSOLE_SMTP_PASSWORD", "")
        mail = Mail(
            *(host, int(port or 25), settings.smtp_from, settings.smtp_user),
            *(password, settings.smtp_tls, settings.smtp_ca),
        )
        deliveries = Deliveries(mail, settings.url)
        self._running.push_async_callback(deliveries.close)
        credentials = parse_credentials(os.environ)
        for name, urls in parse_brokers(settings.brokers).items():
            transport = Transport(urls, ca=settings.ca)
            alerts = AlertWatch(store, history, deliveries, f"{socket.gethostname()}:{uuid.uuid4().hex[:8]}")
            sampler = Sampler(name, Api(transport, credentials), history, alerts.on_sample)
            entry = BrokerEntry(name, transport, sampler, alerts, RecentHistory(history))
            self.entries[name] = entry
            self._running.push_async_callback(entry.close)
            sampler.start()

    async def _serve(self, app: Guard, stopping: asyncio.Event) -> None:
        settings = self._settings
        place = parse_address(settings.listen)
        if place is None:
            raise ConfigError("the console has nowhere to listen: --listen is off")
        try:
            listener = socket.create_server(
                place, family=socket.AF_INET6 if ":" in place[0] else socket.AF_INET, backlog=128
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {settings.listen}: {error.strerror}. Choose another with --listen."
            ) from None
        self.address = format_address(*listener.getsockname()[:2])
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="on",
            ws_max_size=4 << 20,
            timeout_graceful_shutdown=STOP_SECONDS,
            ssl_certfile=settings.tls_cert or None,
            ssl_keyfile=settings.tls_key or None,
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        started = asyncio.create_task(server.is_up.wait())
        await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            started.cancel()
            await serving
            raise ConfigError("the console did not start. Its log above has the reason.")
        print(f"ready console={self.address}", flush=True)
        log.info("ready", console=self.address, brokers=list(self.entries))
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving


class _Server(uvicorn.Server):
    """A server whose signals are the console's own to handle, and that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def probe(entry: BrokerEntry) -> None:
    """Find out whether a broker knows users. One that is away is taken for one that does, until it says otherwise."""
    api = Api(entry.transport)
    try:
        who = await api.ask("GET", "/v1/whoami")
        entry.has_logins = bool(who.get("has_users") or who.get("authorization"))
    except ApiError as error:
        entry.has_logins = error.status == 401
    except BrokerAway:
        entry.has_logins = False


def _on_input(stopping: asyncio.Event) -> None:
    if not os.read(0, 4096):
        asyncio.get_running_loop().remove_reader(0)
        stopping.set()


async def run(settings: ConsoleSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if os.environ.get("HEADRACE_CONSOLE_UNTIL_EOF"):
        # A broker started it: when that is gone, its end of the pipe is.
        loop.add_reader(0, _on_input, stopping)
    await Console(settings).run(stopping)
