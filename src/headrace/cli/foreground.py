"""Commands that run until a signal stops them: `outbox relay` and `subscribe`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Annotated

import typer

from headrace.errors import HeadraceError
from headrace.logs import LEVELS


def _check_level(level: str) -> str:
    if level not in LEVELS:
        raise HeadraceError(f"--log-level must be one of {', '.join(LEVELS)} (got {level!r})")
    return level


LogLevel = Annotated[str, typer.Option(callback=_check_level, help=", ".join(LEVELS) + ".")]
LogFormat = Annotated[str, typer.Option(help="console, json, or auto.")]


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` on the first SIGTERM or SIGINT. The second ends the process."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
        stop()

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, on_signal)
