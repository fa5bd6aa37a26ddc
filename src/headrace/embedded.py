"""A broker inside any Python process: `with headrace.Broker() as broker:`.

The server runs on a loop of its own in a thread of its own, so the host may be synchronous, asyncio, Trio, or a test.
It touches nothing that is the host's: neither its event loop policy, nor its signal handlers, nor its logging.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.config import SETTINGS, Config, no_setting
from headrace.errors import ConfigError, HeadraceError
from headrace.logs import log_like_a_library
from headrace.server import Server
from headrace.targets import local_path


def new_loop() -> asyncio.AbstractEventLoop:
    """A uvloop where there is one, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Broker:
    """A real broker in this process, until `stop` or the end of the `with`.

    `data` is its directory; None makes a temporary one, removed afterwards. The other settings are those of
    `docs/configuration.md`; by default the doors take free ports of the loopback interface. A broker that
    is stopped may be started again: with a directory of one's own, the data is there again.
    """

    def __init__(
        self,
        data: str | Path | None = None,
        *,
        kafka: str = "127.0.0.1:0",
        http: str = "127.0.0.1:0",
        nsq: str = "127.0.0.1:0",
        nsq_http: str = "off",
        nsq_https: str = "off",
        lookup: str = "off",
        lookup_http: str = "off",
        rocketmq: str = "off",
        rocketmq_namesrv: str = "off",
        rocketmq_grpc: str = "off",
        durability: str = "sync",
        **settings: Any,
    ) -> None:
        if data == "":
            raise ConfigError("data: the empty text names no directory; leave it out for a temporary one")
        # As the path reads now: the host may change its working directory before the broker starts once more.
        self._data = None if data is None else os.path.abspath(local_path(data, "data"))
        try:
            # Checked now, so that a wrong setting fails where it stands.
            self._config = Config(
                data=self._data or "",
                kafka=kafka,
                http=http,
                nsq=nsq,
                nsq_http=nsq_http,
                nsq_https=nsq_https,
                lookup=lookup,
                lookup_http=lookup_http,
                rocketmq=rocketmq,
                rocketmq_namesrv=rocketmq_namesrv,
                rocketmq_grpc=rocketmq_grpc,
                durability=durability,
                **settings,
            )
        except TypeError:
            raise ConfigError(no_setting(next(name for name in settings if name not in SETTINGS))) from None
        if self._config.cluster:
            raise ConfigError("cluster: a broker inside of a program runs alone. Start the nodes with headrace serve.")
        self._thread: threading.Thread | None = None
        self._owner = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._temporary: str | None = None
        self._addresses: dict[str, str] = {}
        self._failure: BaseException | None = None

    @property
    def kafka(self) -> str:
        """HOST:PORT for Kafka clients' `bootstrap.servers`."""
        return self._address("kafka")

    def kafka_listener(self, name: str) -> str:
        """The same of one of `kafka_listeners`."""
        return self._address(f"kafka-{name}")

    @property
    def http(self) -> str:
        """HOST:PORT of the HTTP door."""
        return self._address("http")

    @property
    def nsq(self) -> str:
        """HOST:PORT of the NSQ door, nsqd's TCP side."""
        return self._address("nsq")

    @property
    def nsq_http(self) -> str:
        """HOST:PORT of the NSQ door's HTTP side."""
        return self._address("nsq-http")

    @property
    def lookup(self) -> str:
        """HOST:PORT where producers register with the look-up door."""
        return self._address("lookup")

    @property
    def lookup_http(self) -> str:
        """HOST:PORT where the look-up door answers over HTTP."""
        return self._address("lookup-http")

    @property
    def rocketmq(self) -> str:
        """HOST:PORT of the RocketMQ door."""
        return self._address("rocketmq")

    @property
    def rocketmq_namesrv(self) -> str:
        """HOST:PORT of the RocketMQ door's name server."""
        return self._address("rocketmq-namesrv")

    @property
    def rocketmq_grpc(self) -> str:
        """HOST:PORT where the RocketMQ door answers gRPC clients."""
        return self._address("rocketmq-grpc")

    @property
    def url(self) -> str:
        """The URL of `headrace.sdk.App`: where each door is, or that it is off."""
        doors = "&".join(f"{door}={self._addresses.get(door, 'off')}" for door in ("nsq", "http"))
        return f"headrace://{self.kafka}?{doors}"

    @property
    def config(self) -> Config:
        """The settings, as they were given."""
        return self._config

    @property
    def data(self) -> str:
        """The data directory."""
        directory = self._data or self._temporary
        if directory is None:
            raise HeadraceError("the broker's temporary directory exists only while it runs")
        return directory

    def start(self) -> Broker:
        """Return once every door accepts; raises what kept the server from starting."""
        if self._thread is not None:
            raise HeadraceError("this broker runs already")
        self._failure = None
        log_like_a_library()
        if self._data is None:
            import tempfile

            self._temporary = tempfile.mkdtemp(prefix="headrace-")
        ready = threading.Event()
        # A daemon: a host that forgets to stop can still end. What was acknowledged by then is as safe as after a kill;
        # but the thread must not run on while the interpreter is taken down around it.
        atexit.register(self._stop_at_exit)
        self._thread = threading.Thread(target=self._run, args=(ready.set,), name="headrace-broker", daemon=True)
        self._owner = os.getpid()
        self._thread.start()
        try:
            ready.wait()
        except BaseException:
            # Ctrl-C, perhaps. The caller has no broker that it could stop.
            ready.wait()
            self.stop()
            raise
        if self._failure is not None:
            failure = self._failure
            self._end()
            raise failure
        return self

    def stop(self) -> None:
        """Stop cleanly; does nothing if the broker does not run. Raises what went wrong in stopping."""
        # A forked child has a copy of this object but not the thread behind it: the broker is its parent's to stop.
        if self._thread is None or self._owner != os.getpid():
            return
        assert self._loop is not None
        assert self._stopping is not None
        try:
            self._loop.call_soon_threadsafe(self._stopping.set)
        except RuntimeError:
            pass  # its loop has ended already, by a failure that is raised below
        self._end()
        if self._failure is not None:
            raise self._failure

    def _stop_at_exit(self) -> None:
        # Too late for a clean stop: the interpreter gives no thread any more to sync files in.
        with contextlib.suppress(Exception):
            self.stop()

    def _end(self) -> None:
        assert self._thread is not None
        atexit.unregister(self._stop_at_exit)
        self._thread.join()
        self._thread = None
        self._addresses = {}
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _run(self, ready: Callable[[], None]) -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._serve(ready))
        except BaseException as error:
            self._failure = error
        finally:
            ready()

    async def _serve(self, ready: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = Server(replace(self._config, data=self.data))
        await server.start()
        self._addresses = dict(server.addresses)
        ready()
        try:
            await self._stopping.wait()
        finally:
            await server.stop()

    def _address(self, door: str) -> str:
        try:
            return self._addresses[door]
        except KeyError:
            why = "the broker does not run" if self._thread is None else f"the {door} door is off"
            raise HeadraceError(f"no address: {why}") from None

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Broker:
        starting = asyncio.create_task(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread goes on regardless, and a block that is not entered is not left either.
            with contextlib.suppress(Exception):
                await starting
                await asyncio.to_thread(self.stop)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)
