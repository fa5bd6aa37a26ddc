"""What the commands share that talk to a broker's HTTP door: queues, timers and redrive are Headrace's own, so Kafka's
protocol has no words for them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from enum import StrEnum
from functools import wraps
from http.client import HTTPConnection, HTTPException, InvalidURL
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from headrace.config import Config, parse_address
from headrace.errors import ConfigError, HeadraceError

Http = Annotated[
    str, typer.Option("--http", envvar="HEADRACE_HTTP", metavar="HOST:PORT", help="The HTTP door of a broker.")
]
# Longer than the broker takes for anything: a request that has no answer by then will not get one.
ANSWER_SECONDS = 60.0
# Of a key or a value in a table; JSON has all of it.
SHOWN_CHARACTERS = 100
# What the NSQ door answers to a request that is none of its own, and what nsqd's API does.
NSQ_ERROR = "E_BAD_PROTOCOL"
NSQD_NOT_FOUND = "NOT_FOUND"


class Format(StrEnum):
    """How a command prints what it found."""

    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="A table for people, JSON for scripts.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as --format json.")]

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Queue = Annotated[str, typer.Argument(metavar="QUEUE")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

# Parameters by name, with their annotations and defaults, that `over_http` adds to a command.
OPTIONS: Mapping[str, tuple[Any, Any]] = {
    "http": (Http, Config.http),
    "output": (FormatOption, Format.TABLE),
    "output_json": (JsonOption, False),
}


class Api:
    """Asks a broker's HTTP door."""

    def __init__(self, address: str, as_json: bool) -> None:
        self.as_json = as_json
        """Print JSON."""
        self._address = address
        try:
            parsed = parse_address(address)
        except ConfigError as error:
            raise HeadraceError(f"--http (or HEADRACE_HTTP): {error}") from None
        if parsed is None:
            raise HeadraceError("--http (or HEADRACE_HTTP) is `off`: these commands need the HTTP door's HOST:PORT")
        self._host, self._port = parsed

    def get(self, path: str, **query: object) -> Any:
        return self.ask("GET", path, query=query)

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, object] | None = None
    ) -> Any:
        """The answer's JSON. Raises a HeadraceError with the broker's own sentence."""
        wanted = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        target = path + ("?" + urlencode(wanted) if wanted else "")
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            with closing(HTTPConnection(self._host, self._port, timeout=ANSWER_SECONDS)) as connection:
                connection.request(method, target, content, headers)
                response = connection.getresponse()
                raw = response.read()
        except (OSError, HTTPException, UnicodeError) as error:
            raise HeadraceError(unreachable(self._address, error)) from None
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("message") == NSQD_NOT_FOUND:
            raise HeadraceError(
                f"{self._address} is no HTTP door of this version: it answers {response.status} {response.reason}. "
                "Use --http with the HTTP door's address."
            )
        if response.status >= 400:
            raise HeadraceError(str(answer.get("message", answer)))
        return answer


def unreachable(address: str, error: Exception) -> str:
    """What to say where no HTTP door answers at an address."""
    if isinstance(error, HTTPException) and not isinstance(error, InvalidURL):
        protocol = "NSQ" if NSQ_ERROR in str(error) else "another protocol (Kafka's, perhaps)"
        return f"{address} answers {protocol}, not HTTP. Use --http with the HTTP door's address."
    if isinstance(error, TimeoutError):
        return f"{address} did not answer within {ANSWER_SECONDS:g} s. Is the broker overloaded? See --http."
    if isinstance(error, UnicodeError | InvalidURL):
        return f"cannot reach {address}: no host has such a name. See --http."
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"cannot reach {address}: {reason}. Is the broker running? See --http."


def over_http(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which broker it asks and how it prints; its first parameter is the `Api`."""
    own = inspect.signature(command, eval_str=True)
    parameters = list(own.parameters.values())[1:]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in OPTIONS.items()
    ]

    @wraps(command)
    def run(http: str, output: Format, output_json: bool, **arguments: Any) -> None:
        command(Api(http, output_json or output is Format.JSON), **arguments)

    # typer reads the options of a command from its signature.
    run.__signature__ = own.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
    return run


def queue_path(topic: str, queue: str) -> str:
    """Where a queue is."""
    return f"/v1/topics/{quote(topic, safe='')}/queues/{quote(queue, safe='')}"


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def shown_bytes(entry: Mapping[str, Any], name: str) -> str | None:
    """A key or a value for a table: on one line, and not all of a long one."""
    if (encoded := entry.get(name + "_base64")) is not None:
        return f"(base64) {encoded[:SHOWN_CHARACTERS]}"
    value: str | None = entry[name]
    if value is None:
        return None
    line = value if value.isprintable() else value.encode("unicode_escape").decode()
    return line if len(line) <= SHOWN_CHARACTERS else line[:SHOWN_CHARACTERS] + "..."
