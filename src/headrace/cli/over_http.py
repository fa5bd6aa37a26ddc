"""What the commands share that talk to a broker's HTTP door. Kafka's protocol has no requests for queues, timers,
prepared messages and redrive."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, InvalidURL
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from headrace.addresses import parse_address
from headrace.cli.options import FORMAT_OPTIONS, Format, Http, Options, add_options
from headrace.cli.output import print_json
from headrace.doors.http.settings import HttpSettings
from headrace.errors import ConfigError, HeadraceError

# Longer than the broker takes for anything: a request that has no answer by then will not get one.
ANSWER_SECONDS = 60.0
# The most entries that the broker gives in one answer.
PAGE = 1_000
# What the NSQ door answers to a request that is none of its own, and what nsqd's API does.
NSQ_ERROR = "E_BAD_PROTOCOL"
NSQD_NOT_FOUND = "NOT_FOUND"

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Queue = Annotated[str, typer.Argument(metavar="QUEUE")]

OPTIONS: Options = {"http": (Http, HttpSettings.http), **FORMAT_OPTIONS}


class Api:
    """Calls a broker's HTTP door, and prints its answers."""

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

    def get_pages(self, path: str, name: str, limit: int, **query: object) -> list[dict[str, Any]]:
        """The entries called `name` of as many answers as it takes, up to a limit."""
        found: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None and len(found) < limit:
            page = self.get(path, limit=min(PAGE, limit - len(found)), after=after, **query)
            found += page[name]
            after = page["next"] or None
        return found

    def print_answer(self, answer: Any) -> None:
        """Print an answer that only scripts want to see."""
        if self.as_json:
            print_json(answer)

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
                f"{self._address} is not an HTTP door of this version: it answers {response.status} {response.reason}. "
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
    """Give a command the options that choose the broker and the format. Its first parameter is the `Api`."""

    def run(http: str, output: Format, output_json: bool, **arguments: Any) -> None:
        command(Api(http, output_json or output is Format.JSON), **arguments)

    return add_options(command, run, OPTIONS, ["api"])


def queue_path(topic: str, queue: str) -> str:
    """Where a queue is."""
    return f"/v1/topics/{quote(topic, safe='')}/queues/{quote(queue, safe='')}"
