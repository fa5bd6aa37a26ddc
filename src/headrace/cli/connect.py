"""What the commands share that talk to a broker's Kafka door: how they connect, and what they report when they cannot.

A command waits for a broker that goes away. The first connection alone is tried once: a mistyped address should be
reported at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import typer

from headrace.cli.options import Options, add_options
from headrace.client import Client, ClientError, ConnectionLost
from headrace.client.errors import InvalidResponse
from headrace.client.tls import client_context
from headrace.errors import HeadraceError
from headrace.targets import local_path

Bootstrap = Annotated[
    str, typer.Option(envvar="HEADRACE_BOOTSTRAP", metavar="HOST:PORT", help="The broker's Kafka door.")
]
TlsCa = Annotated[
    str, typer.Option(envvar="HEADRACE_TLS_CA", metavar="FILE", help="Trust these authorities (PEM). Turns TLS on.")
]
TlsCert = Annotated[
    str, typer.Option(envvar="HEADRACE_CLIENT_CERT", metavar="FILE", help="Present this certificate (PEM).")
]
TlsKey = Annotated[str, typer.Option(envvar="HEADRACE_CLIENT_KEY", metavar="FILE", help="The certificate's key (PEM).")]

OPTIONS: Options = {
    "bootstrap": (Bootstrap, "127.0.0.1:9092"),
    "tls_ca": (TlsCa, ""),
    "tls_cert": (TlsCert, ""),
    "tls_key": (TlsKey, ""),
}


def connects(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a plain command of a coroutine whose parameter `client` is a connected client."""

    def run(bootstrap: str, tls_ca: str, tls_cert: str, tls_key: str, **arguments: Any) -> None:
        async def connected() -> None:
            tls = tls_context(tls_ca, tls_cert, tls_key)
            try:
                made = Client(bootstrap, tls=tls, client_id="headrace-cli")
            except ClientError as error:
                raise HeadraceError(f"--bootstrap (or HEADRACE_BOOTSTRAP): {error}") from None
            async with made as client:
                try:
                    await client.cluster.any_node()
                except (ConnectionLost, InvalidResponse) as error:
                    raise HeadraceError(f"{error}. {_advice(error, tls_ca, tls_cert)}") from None
                client.cluster.watch = Outage().report
                await command(client=client, **arguments)

        asyncio.run(connected())

    return add_options(command, run, OPTIONS, ["client"])


class Outage:
    """Reports that the broker went away while a command waits for it, and that it is back: once each."""

    def __init__(self) -> None:
        self._since: float | None = None

    def report(self, lost: ConnectionLost | None) -> None:
        """Take the outcome of the last attempt to reach a broker."""
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
    # A broker closes the connection of a client that it does not trust, or that speaks plain text, without a word; what
    # it has not read by then makes a reset of it.
    if not tls_cert and any(text in str(error) for text in ("closed it", os.strerror(errno.ECONNRESET))):
        if tls_ca:
            return "--tls-cert and --tls-key show a certificate to a broker that asks for one."
        return "--tls-ca reaches a broker that speaks TLS."
    return "Is the broker running? See --bootstrap."


def tls_context(ca: str, cert: str, key: str, prefix: str = "tls") -> ssl.SSLContext | None:
    """A client's TLS, or None where no option of TLS is given. The prefix is that of the options' names."""
    if not (ca or cert or key):
        return None
    if bool(cert) != bool(key):
        raise HeadraceError(f"--{prefix}-cert and --{prefix}-key go together: give both, or neither")
    ca, cert, key = (
        local_path(file, f"--{prefix}-{name}") if file else ""
        for file, name in ((ca, "ca"), (cert, "cert"), (key, "key"))
    )
    return client_context(ca, cert, key)
