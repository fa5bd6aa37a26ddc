"""What the commands that talk to a broker share: where it is, how to reach it, and how to show what it says."""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
import ssl
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Annotated, Any

import typer

from headrace.client import Client, ConnectionLost
from headrace.client.errors import ClientError, InvalidResponse
from headrace.errors import HeadraceError
from headrace.targets import local_path

Bootstrap = Annotated[str, typer.Option(envvar="HEADRACE_BOOTSTRAP", metavar="HOST:PORT", help="A broker.")]
TlsCa = Annotated[
    str, typer.Option(envvar="HEADRACE_TLS_CA", metavar="FILE", help="Authorities to trust (PEM); this turns TLS on.")
]
TlsCert = Annotated[
    str, typer.Option(envvar="HEADRACE_CLIENT_CERT", metavar="FILE", help="A certificate to show (PEM).")
]
TlsKey = Annotated[str, typer.Option(envvar="HEADRACE_CLIENT_KEY", metavar="FILE", help="The certificate's key (PEM).")]
Json = Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table.")]

OPTIONS = {
    "bootstrap": (Bootstrap, "127.0.0.1:9092"),
    "tls_ca": (TlsCa, ""),
    "tls_cert": (TlsCert, ""),
    "tls_key": (TlsKey, ""),
}

Command = Callable[..., Coroutine[Any, Any, None]]


def connects(command: Command) -> Callable[..., None]:
    """Make a plain command of a coroutine whose first parameter is a connected client."""
    own = inspect.signature(command, eval_str=True)
    parameters = list(own.parameters.values())[1:]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in OPTIONS.items()
    ]

    @wraps(command)
    def run(bootstrap: str, tls_ca: str, tls_cert: str, tls_key: str, **arguments: Any) -> None:
        async def connected() -> None:
            tls = tls_context(tls_ca, tls_cert, tls_key)
            try:
                made = Client(bootstrap, tls=tls, client_id="headrace-cli")
            except ClientError as error:
                raise HeadraceError(f"--bootstrap (or HEADRACE_BOOTSTRAP): {error}") from None
            async with made as client:
                # Once without retries: whoever mistyped the address wants to know now.
                try:
                    await client.cluster.any_node()
                except (ConnectionLost, InvalidResponse) as error:
                    raise HeadraceError(f"{error}. {_advice(error, tls_ca, tls_cert)}") from None
                client.cluster.watch = Away().tell
                await command(client, **arguments)

        asyncio.run(connected())

    # typer reads the options of a command from its signature.
    run.__signature__ = own.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
    return run


class Away:
    """Says that a broker is away while a command waits for it, and that it is back: once each."""

    def __init__(self) -> None:
        self._since: float | None = None

    def tell(self, lost: ConnectionLost | None) -> None:
        """What became of the last try to reach one."""
        if lost is not None and self._since is None:
            self._since = time.monotonic()
            typer.echo(f"headrace: {lost}; waiting for it", err=True)
        elif lost is None and self._since is not None:
            typer.echo(f"headrace: the broker is back after {time.monotonic() - self._since:.0f} s", err=True)
            self._since = None


def _advice(error: ClientError, tls_ca: str, tls_cert: str) -> str:
    """What may help where no broker was reached."""
    if isinstance(error, InvalidResponse):
        return "Use --bootstrap with the Kafka door's address."
    # Who is not trusted, or speaks in the clear to one who does not, is told nothing but a closed connection.
    if "closed it" in str(error) and not tls_cert:
        if tls_ca:
            return "--tls-cert and --tls-key show a certificate to a broker that asks for one."
        return "--tls-ca reaches a broker that speaks TLS."
    return "Is the broker running? See --bootstrap."


def tls_context(ca: str, cert: str, key: str) -> ssl.SSLContext | None:
    """A client's TLS, or None where nothing of it was asked for."""
    if not (ca or cert or key):
        return None
    if bool(cert) != bool(key):
        raise HeadraceError("--tls-cert and --tls-key go together: give both, or neither")
    ca, cert, key = (
        local_path(file, option) if file else ""
        for file, option in ((ca, "--tls-ca"), (cert, "--tls-cert"), (key, "--tls-key"))
    )
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if cert:
            context.load_cert_chain(cert, key)
    except OSError as error:
        files = ", ".join(file for file in (ca, cert, key) if file)
        raise HeadraceError(f"{files} cannot be used for TLS: {error.strerror or error}") from None
    return context


def show(rows: Sequence[dict[str, Any]], as_json: bool, columns: dict[str, str]) -> None:
    """Print rows as a table, or as one JSON array. `columns` gives each key its heading; JSON carries all keys."""
    if as_json:
        json.dump(rows, sys.stdout, indent=2)
        print()
        return
    right = [bool(rows) and all(isinstance(row[key], int) or row[key] is None for row in rows) for key in columns]
    cells = [["-" if row[key] is None else str(row[key]) for key in columns] for row in rows]
    # A row is one line, however narrow the terminal is: names are whole, for grep, awk and the clipboard.
    table = [list(columns.values()), *cells]
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    for number, line in enumerate(table):
        padded = (
            room + cell if to_the_right else cell + room
            for cell, room, to_the_right in zip(line, map(_room, line, widths), right, strict=True)
        )
        text = "  ".join(padded).rstrip()
        typer.echo(text if number else typer.style(text, bold=True))


def _room(cell: str, width: int) -> str:
    return " " * (width - _width(cell))


def _width(text: str) -> int:
    """Columns of a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def confirm(question: str) -> None:
    """Ask before what cannot be taken back. Ends the command unless the answer is yes."""
    # asyncio takes the first Ctrl-C for its loop, which cannot see it while it waits for an answer here.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        typer.confirm(question, abort=True, err=True)
    finally:
        signal.signal(signal.SIGINT, before)


def assignments(texts: Sequence[str], option: str) -> dict[str, str]:
    """NAME=VALUE, as often as an option was given."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise HeadraceError(f"{option} {text!r} is not NAME=VALUE")
        found[name] = value
    return found
