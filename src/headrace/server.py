"""The composition root: a runtime, a log on it, a broker on that, and doors in front.

Nothing else in Headrace knows all layers. They start from the bottom up and stop from the doors down: a stopping
server first refuses new clients and lets the replies under way out, then flushes, so that a clean stop leaves nothing
to recover. Which doors there are is the registry's to say (`headrace.doors.registry`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import ssl
import stat
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import structlog

from headrace import format as kernels
from headrace.broker.broker import Broker
from headrace.broker.membership import Alone
from headrace.broker.settings import BrokerSettings
from headrace.config import Config, command_line
from headrace.doors.capacity import Capacity
from headrace.doors.door import DoorContext
from headrace.doors.registry import DOORS, DoorEntry
from headrace.doors.settings import SharedSettings
from headrace.errors import ConfigError, DataDirectoryInvalid
from headrace.log.native import NativeLog
from headrace.log.settings import LogSettings
from headrace.runtime import Runtime
from headrace.runtime.disk import FOLDER_MODE, OTHERS
from headrace.runtime.real import real_runtime
from headrace.version import VERSION

log = structlog.get_logger("headrace.server")

# Descriptors beside those of connections and segments, and of what is open before a start: journals, checkpoints and
# work off the loop, listening sockets, the event loop, pipes to workers, questions to other servers.
OWN_FILES = 64


class Server:
    """One broker with its doors, on the running loop."""

    broker: Broker
    """There once the server has started."""

    def __init__(self, config: Config, runtime: Runtime | None = None, doors: Sequence[DoorEntry] = DOORS) -> None:
        self.config = config
        self._doors = doors
        self.addresses: dict[str, str] = {}
        """HOST:PORT of each open listener, by its name."""
        self._runtime = runtime
        self._ready = False
        self._capacity = Capacity(unread_bytes=config.unread_max_bytes, receiving_bytes=config.receiving_max_bytes)
        self._running = AsyncExitStack()

    @property
    def ready(self) -> bool:
        """Every door accepts."""
        return self._ready

    async def start(self) -> None:
        """Start everything; raises a HeadraceError with everything stopped again."""
        # Before anything is touched, because this is the cheapest thing to get wrong.
        tls = tls_context(self.config)
        try:
            await self._start(tls)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, tls: ssl.SSLContext | None) -> None:
        config = self.config
        try:
            if self._runtime is None:
                _keep_others_out(config.data)
            runtime = self._runtime or real_runtime(config.data)
        except FileExistsError:
            raise ConfigError(f"the data directory {config.data} is no directory") from None
        except OSError as error:
            raise ConfigError(f"the data directory {config.data} cannot be made: {error.strerror}") from None
        self._running.callback(runtime.offload.close)
        if not kernels.compiled():
            log.warning("the kernels are interpreted, not compiled: install with a C compiler for full speed")

        segments = self._share_descriptors(runtime.disk.open_files_max())
        native = NativeLog(runtime, replace(config.part(LogSettings), open_files_max=segments))
        try:
            await native.start()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise DataDirectoryInvalid(
                    f"the disk of the data directory {config.data} is full: free a little room, and start again"
                ) from error
            where = f" ({error.filename})" if error.filename else ""
            raise DataDirectoryInvalid(
                f"the data directory {config.data} cannot be used: {error.strerror or error}{where}; "
                "the broker must be able to read and write all of it"
            ) from error
        self._running.push_async_callback(native.stop)
        self.broker = Broker(runtime, native, config.part(BrokerSettings), Alone(config.node_id, self.addresses))
        await self.broker.start()
        self._running.push_async_callback(self.broker.stop)

        shared, shown = config.part(SharedSettings), command_line(config)
        host_names = {"localhost", runtime.hostname, *config.host_names}
        for entry in self._doors:
            if entry.is_configured(config):
                context = DoorContext(
                    self.broker,
                    config.part(entry.settings),
                    shared,
                    self._capacity,
                    tls,
                    lambda: self._ready,
                    self.addresses,
                    host_names,
                    shown,
                )
                door = entry.load()(context)
                self._running.push_async_callback(door.stop)
                await door.start()
                self.addresses.update(door.addresses)
        # First of all at a stop: joins that wait for other members are refused, or the doors would wait for them; so
        # are polls for half messages, and producers that wait for readers.
        self._running.push_async_callback(self.broker.groups.stop)
        self._running.push_async_callback(self.broker.prepared.end_polls)
        self._running.push_async_callback(self.broker.overflow.stop)
        self._ready = True
        if not self.addresses:
            log.warning("every door is off: nothing can reach this broker")
        log.info("ready", version=VERSION, data=config.data, **self.addresses)

    def _share_descriptors(self, limit: int) -> int:
        """Share the descriptors that the process may open: first what the broker needs for itself, then segments, and
        the rest is for the connections of all doors together. How many segments may be open."""
        config = self.config
        before = len(os.listdir("/proc/self/fd")) if self._runtime is None else 0
        left = limit - before - OWN_FILES
        # Where both do not fit, segments get a third: they can be opened again, a connection cannot.
        segments = config.open_files_max
        if left - segments < config.connections_max:
            segments = max(min(segments, left // 3), 1)
        connections = max(left - segments, 1)
        self._capacity.descriptors_left = connections
        self._capacity.files_max = max(segments // 2, 1)
        if connections < config.connections_max:
            log.warning(
                f"all doors together take {connections} connections, and not {config.connections_max} each: the limit "
                f"of open files is {limit} (ulimit -n), and {segments} are for segments"
            )
        return segments

    async def stop(self) -> None:
        """Stop in order: doors, broker, log, runtime. Safe to call twice."""
        was_ready, self._ready = self._ready, False
        if was_ready:
            log.info("stopping")
        running, self._running = self._running, AsyncExitStack()
        # A cancelled caller must not leave the log half flushed.
        await asyncio.shield(running.aclose())
        if was_ready:
            log.info("stopped")
        self.addresses.clear()


def _keep_others_out(data: str) -> None:
    """Close a directory that is there and empty to other users; of one that is in use, only warn: it may be more than
    the broker's, and closing it is for its owner to decide."""
    if not os.path.isdir(data) or not (mode := os.stat(data).st_mode) & OTHERS:
        return
    # It may be another user's, who has let the broker in.
    with contextlib.suppress(PermissionError):
        if not os.listdir(data):
            os.chmod(data, FOLDER_MODE)
            return
    log.warning(
        f"other users can read the data directory {data} (mode {stat.S_IMODE(mode):04o}). Close it to them: "
        f"chmod -R go-rwx {data}"
    )


def tls_context(config: SharedSettings) -> ssl.SSLContext | None:
    """The TLS of the doors, or None where they speak in the clear."""
    if not config.tls_cert:
        return None
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
    if config.tls_client_ca:
        try:
            context.load_verify_locations(config.tls_client_ca)
        except OSError as error:
            raise ConfigError(
                f"tls_client_ca {config.tls_client_ca} cannot be used: {error.strerror or error}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context
