"""What the commands share that talk to a broker's Kafka door: how they connect, and what they report when they cannot.

A command waits for a broker that goes away. The first connection alone is tried once: a mistyped address should be
reported at once.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import ssl
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from headrace.cli.credentials import login_options, read_login
from headrace.cli.options import Options, add_options
from headrace.client import Client, ClientError, ConnectionLost, Credentials, Mechanism
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

Tls = Annotated[bool, typer.Option("--tls", envvar="HEADRACE_TLS", help="Speak TLS; trust the machine's authorities.")]
SaslMechanism = Annotated[
    Mechanism, typer.Option(envvar="HEADRACE_SASL_MECHANISM", help="How to show the password.", case_sensitive=False)
]
SaslPlaintext = Annotated[
    bool,
    typer.Option("--sasl-plaintext", help="Show a token or a PLAIN password without TLS, too: the network is guarded."),
]

OPTIONS: Options = {
    "bootstrap": (Bootstrap, "127.0.0.1:9092"),
    "tls": (Tls, False),
    "tls_ca": (TlsCa, ""),
    "tls_cert": (TlsCert, ""),
    "tls_key": (TlsKey, ""),
    "sasl_mechanism": (SaslMechanism, Mechanism.SCRAM_SHA_256.value),
    "sasl_plaintext": (SaslPlaintext, False),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A Kafka door, and how a command comes to it."""

    bootstrap: str
    tls: ssl.SSLContext | None
    credentials: Credentials | None
    advice: str
    """What may help where the broker hangs up."""
    header: Mapping[str, str] = field(repr=False)
    """Who comes, for an HTTP door."""
    tls_ca: str

    def client(self, client_id: str, timeout: float = 30.0) -> Client:
        """A client, which is not connected yet."""
        try:
            return Client(
                self.bootstrap, tls=self.tls, credentials=self.credentials, client_id=client_id, timeout=timeout
            )
        except ClientError as error:
            raise HeadraceError(f"--bootstrap (or HEADRACE_BOOTSTRAP): {error}") from None


def aims(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose the broker and say who comes. Its parameter `target` has the choice."""

    def run(
        bootstrap: str,
        tls: bool,
        tls_ca: str,
        tls_cert: str,
        tls_key: str,
        sasl_mechanism: Mechanism,
        sasl_plaintext: bool,
        as_user: str,
        as_password_file: str,
        token_file: str,
        **arguments: Any,
    ) -> None:
        context = tls_context(tls_ca, tls_cert, tls_key, always=tls)
        if as_user and not as_password_file and not sys.stdin.isatty():
            # There it is messages that stand on standard input, as with `headrace produce`.
            raise HeadraceError(
                f"there is no password for {as_user}. Give --password-file (or HEADRACE_PASSWORD_FILE); - is the first "
                "line of standard input."
            )
        login = read_login(as_user, as_password_file, token_file)
        credentials = None
        if login is not None:
            credentials = Credentials(
                login.user, login.password, login.token, Mechanism(sasl_mechanism), allow_plaintext=sasl_plaintext
            )
        advice, header = _hang_up_advice(context, tls_cert), {} if login is None else login.header
        command(target=Target(bootstrap, context, credentials, advice, header, tls_ca), **arguments)

    return add_options(command, run, {**OPTIONS, **login_options(command)}, ["target"])


def connects(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a plain command of a coroutine whose parameter `client` is a connected client. It gets the `target`, too, if
    it has such a parameter."""
    asks_target = "target" in inspect.signature(command).parameters

    def run(target: Target, **arguments: Any) -> None:
        if asks_target:
            arguments["target"] = target

        async def connected() -> None:
            async with target.client("headrace-cli") as client:
                try:
                    await client.cluster.any_node()
                    # A broker that wants authentication hangs up on the first question only.
                    await client.cluster.refresh(())
                except (ConnectionLost, InvalidResponse) as error:
                    raise HeadraceError(f"{error}. {_advice(error, target)}") from None
                client.cluster.watch = Outage().report
                await command(client=client, **arguments)

        asyncio.run(connected())

    return aims(add_options(command, run, {}, ["client"]))


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


def _advice(error: ClientError, target: Target) -> str:
    """What may help where no broker was reached."""
    if isinstance(error, InvalidResponse):
        return "Use --bootstrap with the Kafka door's address."
    # A broker closes the connection of a client that it does not trust, or that speaks plain text, without a word; what
    # it has not read by then makes a reset of it.
    if target.advice and any(text in str(error) for text in ("closed it", os.strerror(errno.ECONNRESET))):
        return target.advice
    return "Is the broker running? See --bootstrap."


def _hang_up_advice(tls: ssl.SSLContext | None, cert: str) -> str:
    if cert:
        return ""
    if tls is not None:
        return "--tls-cert and --tls-key show a certificate to a broker that asks for one."
    return "--tls-ca reaches a broker that speaks TLS."


def tls_context(ca: str, cert: str, key: str, prefix: str = "tls", *, always: bool = False) -> ssl.SSLContext | None:
    """A client's TLS, or None where no option of TLS is given. The prefix is that of the options' names."""
    if not (ca or cert or key or always):
        return None
    if bool(cert) != bool(key):
        raise HeadraceError(f"--{prefix}-cert and --{prefix}-key go together: give both, or neither")
    ca, cert, key = (
        local_path(file, f"--{prefix}-{name}") if file else ""
        for file, name in ((ca, "ca"), (cert, "cert"), (key, "key"))
    )
    return client_context(ca, cert, key)
