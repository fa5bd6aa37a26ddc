"""The console beside a broker: `headrace serve --console HOST:PORT` starts it as a process of its own.

It is a child that the broker knows nothing of: it costs the broker's loop what any client costs it. One that ends is
started again; it ends with the broker, also with one that is killed, because its standard input is a pipe from here.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

import structlog

from headrace.addresses import format_address, parse_address
from headrace.config import Config
from headrace.errors import ConfigError, HeadraceError

log = structlog.get_logger("headrace.server")

READY_SECONDS = 60.0
STOP_SECONDS = 5.0
AGAIN_SECONDS, AGAIN_MOST = 1.0, 60.0
UNTIL_EOF = "HEADRACE_CONSOLE_UNTIL_EOF"
"""In the environment of a console that ends with the one who started it."""


class ConsoleProcess:
    """The child."""

    def __init__(self, config: Config, addresses: Mapping[str, str]) -> None:
        if "http" not in addresses:
            raise ConfigError("--console needs the HTTP door, which is off. Open it with --http HOST:PORT.")
        if config.http_tls:
            raise ConfigError(
                "--console cannot start a console for an HTTP door with TLS. Start it by itself: headrace console "
                f"--brokers https://NAME:PORT --ca FILE --listen {config.console}"
            )
        self._listen = config.console
        self._broker = _reachable(addresses["http"])
        self._data = config.data.rstrip("/") + "-console"
        self._insecure = config.insecure
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start it; HOST:PORT where it listens."""
        self._listen = await self._start()
        self._watching = asyncio.create_task(self._watch(), name="console")
        return self._listen

    async def _start(self) -> str:
        flags = ["--listen", self._listen, "--brokers", f"broker={self._broker}"]
        if "HEADRACE_CONSOLE_DATA" not in os.environ:
            flags += ["--data", self._data]
        if self._insecure:
            flags.append("--insecure")
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "headrace.cli", "console", *flags),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {UNTIL_EOF: "1"},
            # Ctrl-C is for the broker, which then ends it.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), READY_SECONDS)
        except TimeoutError:
            line = b""
        words = line.decode().split()
        if words[:1] != ["ready"]:
            await self._end()
            raise HeadraceError("the console did not start. Its log above has the reason.")
        return words[1].partition("=")[2]

    async def _watch(self) -> None:
        """Start it again when it ends."""
        pause = AGAIN_SECONDS
        while True:
            assert self._process is not None
            status = await self._process.wait()
            log.warning("the console ended, and is started again", status=status, seconds=pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, AGAIN_MOST)
            with suppress(HeadraceError):
                await self._start()

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


def _reachable(address: str) -> str:
    """The address of a listener, for a client on this machine."""
    place = parse_address(address)
    assert place is not None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(place[0], place[0])
    return format_address(host, place[1])
