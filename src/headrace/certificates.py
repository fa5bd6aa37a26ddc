"""The certificates of the doors: read at a start, and again when their files change or SIGHUP asks for it.

Doors hold a `ReloadingContext`, whose handshakes are those of the context that was read last. So a new certificate, or
another list of authorities, counts for who comes from then on, and connections that are there keep what they began
with. What cannot be used is logged, and what was there before stays in use.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from contextlib import suppress

import structlog

from headrace.doors.settings import SharedSettings
from headrace.doors.tls import Contexts
from headrace.errors import ConfigError
from headrace.runtime.offload import Offload

log = structlog.get_logger("headrace.server")

# A file's inode, size and time of change; None: it is not there.
Stamp = tuple[tuple[int, int, int] | None, ...]


class ReloadingContext(ssl.SSLContext):
    """The TLS of a server, which can be replaced for those who come next."""

    current: ssl.SSLContext

    def __new__(cls, current: ssl.SSLContext) -> ReloadingContext:
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made.current = current
        return made

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """As the context that was read last. Every event loop begins its handshakes by this."""
        return self.current.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


class Certificates:
    """Those of one server."""

    def __init__(self, config: SharedSettings) -> None:
        """Read them. Raises ConfigError."""
        self._config = config
        self._files = tuple(filter(None, (config.tls_cert, config.tls_key, config.tls_client_ca)))
        self._stamp = _stamp(self._files)
        self._watching: asyncio.Task[None] | None = None
        self.on_reloaded: list[Callable[[], None]] = []
        """Called after others have been read."""
        usual, without = _read(config)
        self._usual = None if usual is None else ReloadingContext(usual)
        self._without = None if without is None else ReloadingContext(without)
        self.contexts = Contexts(self._usual, self._without, self.on_reloaded)

    @property
    def are_configured(self) -> bool:
        """Whether there are any."""
        return self._usual is not None

    def watch(self, offload: Offload) -> None:
        """Look at the files from now on."""
        if self.are_configured and self._config.tls_reload_ms:
            self._watching = asyncio.get_running_loop().create_task(self._watch(offload))

    def stop(self) -> None:
        """Look at them no more."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self, offload: Offload) -> None:
        while True:
            await asyncio.sleep(self._config.tls_reload_ms / 1000)
            stamp = await offload.run(_stamp, self._files)
            if stamp != self._stamp:
                self._stamp = stamp
                await self.reload(offload)

    async def reload(self, offload: Offload) -> None:
        """Read them again."""
        try:
            usual, without = await offload.run(_read, self._config)
        except ConfigError as error:
            log.error("the new certificate is not used, and the one before stays", reason=str(error))
            return
        if self._usual is None or self._without is None or usual is None or without is None:
            return
        self._usual.current, self._without.current = usual, without
        for call in self.on_reloaded:
            call()
        log.info("certificates read again", tls_cert=self._config.tls_cert)


def _stamp(files: tuple[str, ...]) -> Stamp:
    """What tells whether files have changed."""

    def of(file: str) -> tuple[int, int, int] | None:
        with suppress(OSError):
            found = os.stat(file)
            return found.st_ino, found.st_size, found.st_mtime_ns
        return None

    return tuple(map(of, files))


def _read(config: SharedSettings) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """The TLS of doors, and that for clients that show who they are by other means. Raises ConfigError."""
    if not config.tls_cert:
        return None, None
    usual = _context(config)
    return usual, _context(config, asks_clients=False) if config.tls_client_ca else usual


def _context(config: SharedSettings, *, asks_clients: bool = True) -> ssl.SSLContext:
    """The TLS of a door with a certificate. Clients are asked for one where there is an authority for theirs. Raises
    ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def no_pass_phrase() -> str:
        # OpenSSL would ask on the terminal, and a broker wait there for an answer before it is ready.
        raise ConfigError(f"tls_key {config.tls_key} is encrypted: give the broker a key without a pass phrase")

    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, no_pass_phrase)
    except FileNotFoundError:
        missing = " and ".join(file for file in (config.tls_cert, config.tls_key) if not os.path.exists(file))
        raise ConfigError(f"tls_cert {config.tls_cert} with tls_key {config.tls_key}: there is no {missing}") from None
    except OSError as error:
        raise ConfigError(
            f"tls_cert {config.tls_cert} with tls_key {config.tls_key} cannot be used: {error.strerror or error}"
        ) from None
    if config.tls_client_ca and asks_clients:
        try:
            context.load_verify_locations(config.tls_client_ca)
        except OSError as error:
            raise ConfigError(
                f"tls_client_ca {config.tls_client_ca} cannot be used: {error.strerror or error}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context
