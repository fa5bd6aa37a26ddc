"""Where log lines go.

The layers call `structlog.get_logger("headrace.part")` and never say where to. `headrace serve` owns its process and
writes to standard error, in lines for people or in JSON for machines. Inside a host's process the lines go to
Python's own `logging`, under the same names, where the host decides.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog

LEVELS = ("debug", "info", "warning", "error")
_METHODS = (*LEVELS, "exception", "critical")


class _ServerLogger(structlog.make_filtering_bound_logger(logging.DEBUG)):  # type: ignore[misc]
    """The loggers of a server. They are kept once they were used, so a change of level is made in this class."""


class _LossyStream:
    """Standard error, which may be a pipe without a reader, or a file on a disk that is full. A line that
    cannot be written is lost, and what the broker was about to do beside saying so is done."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


_level = "info"


def level() -> str:
    """The least that is logged."""
    return _level


def set_level(wanted: str) -> None:
    """Log this and worse from now on. Raises ValueError for what is no level. In a host's process this is the
    level of the logger `headrace`."""
    global _level
    if wanted not in LEVELS:
        raise ValueError(f"{wanted!r} is not one of {', '.join(LEVELS)}")
    _level = wanted
    number = getattr(logging, wanted.upper())
    logging.getLogger("headrace").setLevel(number)
    filtering = structlog.make_filtering_bound_logger(number)
    for method in _METHODS:
        setattr(_ServerLogger, method, getattr(filtering, method))


def log_like_a_server(least: str, form: str) -> None:
    """Write to standard error: `form` is console, json, or auto (console on a terminal)."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if console:
        processors.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    set_level(least)
    structlog.configure(
        processors=processors,
        wrapper_class=_ServerLogger,
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _LossyStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def log_like_a_library() -> None:
    """Hand the lines to `logging`, unless the host uses structlog itself and has configured where its lines go."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            _as_logging_wants_it,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def _as_logging_wants_it(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> tuple[tuple[Any], dict[str, Any]]:
    """The arguments of a `logging` call; the exception stays one, for the host's own formatter."""
    error = event.pop("exc_info", None)
    message = " ".join([str(event.pop("event")), *(f"{name}={value}" for name, value in event.items())])
    return (message,), {"exc_info": error}
