"""What the commands share that talk to a broker's HTTP door. Kafka's protocol has no requests for queues, timers,
prepared messages and redrive."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, InvalidURL
from socket import gaierror
from ssl import SSLCertVerificationError, SSLContext
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer

from headrace.addresses import parse_address
from headrace.cli.credentials import authorization, login_options
from headrace.cli.options import FORMAT_OPTIONS, Format, Http, Options, add_options
from headrace.cli.output import print_json
from headrace.doors.http.settings import HttpSettings
from headrace.errors import ConfigError, HeadraceError
from headrace.targets import local_path

NOBODY: Mapping[str, str] = MappingProxyType({})
# Longer than the broker takes for anything: a request that has no answer by then will not get one.
ANSWER_SECONDS = 60.0
# How long a group may take to have a leader again, for a command that only reads, and the pause between two questions.
LEADER_SECONDS = 10.0
PAUSE_SECONDS = 0.3
REDIRECT, UNAVAILABLE = 307, 503
NOT_LEADING = "NotLeading"
# The most entries that the broker gives in one answer.
PAGE = 1_000
# What the NSQ door answers to a request that is none of its own, and what nsqd's API does.
NSQ_ERROR = "E_BAD_PROTOCOL"
NSQD_NOT_FOUND = "NOT_FOUND"

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Queue = Annotated[str, typer.Argument(metavar="QUEUE")]

TlsCa = Annotated[
    str,
    typer.Option(
        "--tls-ca",
        envvar="HEADRACE_TLS_CA",
        metavar="FILE",
        help="Trust these authorities (PEM) with https://HOST:PORT.",
    ),
]
OPTIONS: Options = {"http": (Http, HttpSettings.http), "tls_ca": (TlsCa, "")}
HTTPS, HTTP = "https://", "http://"


class Api:
    """Calls a broker's HTTP door, and prints its answers."""

    def __init__(self, address: str, as_json: bool, login: Mapping[str, str] = NOBODY, tls_ca: str = "") -> None:
        """`login`: the header that says who asks."""
        self._login = login
        self._tls: SSLContext | None = None
        if HTTPS in address:
            # Imported here: most commands speak to this machine.
            from headrace.client.tls import client_context

            self._tls = client_context(local_path(tls_ca, "--tls-ca") if tls_ca else "")
        address = address.replace(HTTPS, "").replace(HTTP, "").rstrip("/")
        self.as_json = as_json
        """Print JSON."""
        if address == "off":
            raise HeadraceError("--http (or HEADRACE_HTTP) is `off`: these commands need the HTTP door's HOST:PORT")
        try:
            self._places = [_place(each) for each in filter(None, (part.strip() for part in address.split(",")))]
        except ConfigError as error:
            raise HeadraceError(f"--http (or HEADRACE_HTTP): {error}") from None
        if not self._places:
            raise HeadraceError("--http (or HEADRACE_HTTP) is empty: these commands need the HTTP door's HOST:PORT")
        self._address = address

    def get(self, path: str, **query: object) -> Any:
        return self.ask("GET", path, query=query)

    def get_pages(self, path: str, entries: str, limit: int, /, **query: object) -> list[dict[str, Any]]:
        """The `entries`, as they are called there, of as many answers as it takes, up to a limit."""
        found: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None and len(found) < limit:
            page = self.get(path, limit=min(PAGE, limit - len(found)), after=after, **query)
            found += page[entries]
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
        headers = {**self._login, **({} if body is None else {"Content-Type": "application/json"})}
        until = time.monotonic() + LEADER_SECONDS
        while True:
            response, raw = self._send(method, target, content, headers)
            location = urlsplit(response.getheader("Location", ""))
            if response.status == REDIRECT and location.hostname and location.port:
                # A node that follows names the one that leads.
                self._prefer(location.netloc, (location.hostname, location.port))
            elif response.status != UNAVAILABLE or not _is_leaderless(raw) or method != "GET":
                break
            if time.monotonic() > until:
                break
            if response.status == UNAVAILABLE:
                self._places.append(self._places.pop(0))
                time.sleep(PAUSE_SECONDS)
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("message") == NSQD_NOT_FOUND:
            raise HeadraceError(
                f"{self._address} is not an HTTP door of this version: it answers {response.status} {response.reason}. "
                "Use --http with the HTTP door's address."
            )
        if response.status >= REDIRECT:
            raise HeadraceError(str(answer.get("message", answer)))
        return answer

    def _prefer(self, address: str, place: tuple[str, int]) -> None:
        if place not in self._places:
            self._places.append(place)
        self._places.remove(place)
        self._places.insert(0, place)
        self._address = address

    def _send(
        self, method: str, target: str, content: str | None, headers: Mapping[str, str]
    ) -> tuple[HTTPResponse, bytes]:
        """The answer of the first of the addresses that takes a connection."""
        for _ in range(len(self._places) - 1):
            try:
                return self._ask(method, target, content, headers)
            except (ConnectionRefusedError, gaierror):
                self._places.append(self._places.pop(0))
        try:
            return self._ask(method, target, content, headers)
        except (OSError, HTTPException, UnicodeError) as error:
            raise HeadraceError(unreachable(self._address, error)) from None

    def _ask(
        self, method: str, target: str, content: str | None, headers: Mapping[str, str]
    ) -> tuple[HTTPResponse, bytes]:
        place = self._places[0]
        if self._tls is None:
            made = HTTPConnection(*place, timeout=ANSWER_SECONDS)
        else:
            made = HTTPSConnection(*place, timeout=ANSWER_SECONDS, context=self._tls)
        with closing(made) as connection:
            connection.request(method, target, content, dict(headers))
            response = connection.getresponse()
            return response, response.read()


def _place(address: str) -> tuple[str, int]:
    place = parse_address(address)
    if place is None:
        raise ConfigError("`off` is not an address that can be connected to")
    return place


def _is_leaderless(raw: bytes) -> bool:
    """Whether an answer says that no node leads just now."""
    try:
        answer = json.loads(raw)
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("error") == NOT_LEADING


def unreachable(address: str, error: Exception) -> str:
    """What to say where no HTTP door answers at an address."""
    if isinstance(error, HTTPException) and not isinstance(error, InvalidURL):
        protocol = "NSQ" if NSQ_ERROR in str(error) else "another protocol (Kafka's, perhaps)"
        return f"{address} answers {protocol}, not HTTP. Use --http with the HTTP door's address."
    if isinstance(error, TimeoutError):
        return f"{address} did not answer within {ANSWER_SECONDS:g} s. Is the broker overloaded? See --http."
    if isinstance(error, UnicodeError | InvalidURL):
        return f"cannot reach {address}: no host has such a name. See --http."
    if isinstance(error, SSLCertVerificationError):
        return f"{address} shows a certificate that is not trusted: {error.verify_message}. See --tls-ca."
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"cannot reach {address}: {reason}. Is the broker running? See --http."


def over_http(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose the broker, who asks, and the format. Its first parameter is the `Api`."""

    def run(
        http: str,
        tls_ca: str,
        as_user: str,
        as_password_file: str,
        token_file: str,
        output: Format,
        output_json: bool,
        **arguments: Any,
    ) -> None:
        login = authorization(as_user, as_password_file, token_file)
        command(Api(http, output_json or output is Format.JSON, login, tls_ca), **arguments)

    return add_options(command, run, {**OPTIONS, **login_options(command), **FORMAT_OPTIONS}, ["api"])


def queue_path(topic: str, queue: str) -> str:
    """Where a queue is."""
    return f"/v1/topics/{quote(topic, safe='')}/queues/{quote(queue, safe='')}"
