"""As whom commands come to a broker's doors, and how they read a password.

A secret is never an argument: those are for all to see in the list of processes. A password comes from a file, from
standard input or from a prompt, a token from a file or the environment.
"""

from __future__ import annotations

import getpass
import inspect
import os
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import typer

from headrace.cli.options import Options, parse_path
from headrace.errors import HeadraceError

STDIN = "-"
SECRET_BYTES_MAX = 65_536
OTHERS = 0o077

TokenFile = Annotated[
    str,
    typer.Option("--token-file", metavar="FILE", help="Has an API token or a signed one; see also HEADRACE_TOKEN."),
]


def login_options(command: Callable[..., None]) -> Options:
    """The options that say as whom a command comes. Where the command has a --user or a --password-file of its own,
    these have the longer name alone."""
    own = inspect.signature(command).parameters
    user, file = (["--" + name] if name.replace("-", "_") not in own else [] for name in ("user", "password-file"))
    as_user = typer.Option(*user, "--as-user", envvar="HEADRACE_USER", metavar="NAME", help="Come as this user.")
    as_file = typer.Option(
        *file,
        "--as-password-file",
        envvar="HEADRACE_PASSWORD_FILE",
        metavar="FILE",
        help="Has that user's password in its first line; -: standard input. Otherwise it is asked for.",
    )
    return {
        "as_user": (Annotated[str, as_user], ""),
        "as_password_file": (Annotated[str, as_file], ""),
        "token_file": (TokenFile, ""),
    }


def read_secret(file: str, what: str) -> str:
    """The first line of a file or of standard input."""
    try:
        if file == STDIN:
            # As bytes: what stands behind it may be messages, which are read from the same buffer.
            line = sys.stdin.buffer.readline(SECRET_BYTES_MAX).decode()
        else:
            path = parse_path(file)
            if path.stat().st_mode & OTHERS:
                typer.echo(f"headrace: other users can read {path}. Close it to them: chmod 600 {path}", err=True)
            with path.open(encoding="utf-8") as opened:
                line = opened.readline(SECRET_BYTES_MAX)
    except UnicodeDecodeError:
        raise HeadraceError(f"the file with the {what} is not UTF-8") from None
    secret = line.rstrip("\r\n")
    if not secret:
        raise HeadraceError(f"there is no {what} in the first line of {'standard input' if file == STDIN else file}")
    return secret


def ask_password(file: str, prompt: str, *, twice: bool = False) -> str:
    """A password from a file, or from whoever sits at the terminal."""
    if file:
        return read_secret(file, "password")
    if not sys.stdin.isatty():
        return read_secret(STDIN, "password")
    password = getpass.getpass(f"{prompt}: ")
    if twice and getpass.getpass(f"{prompt} (again): ") != password:
        raise HeadraceError("the two passwords differ. Try again.")
    return password


@dataclass(frozen=True, slots=True)
class Login:
    """As whom a command comes: a user with a password, or a token."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @property
    def header(self) -> Mapping[str, str]:
        """What shows it to an HTTP door."""
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        return {"Authorization": "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()}


def read_login(user: str, password_file: str, token_file: str) -> Login | None:
    """What the options and the environment say; None where they say nothing."""
    token = read_secret(token_file, "token") if token_file else os.environ.get("HEADRACE_TOKEN", "").strip()
    if user and token_file:
        raise HeadraceError("--user and --token-file exclude each other. Give one of them.")
    if user:
        return Login(user, ask_password(password_file, f"Password of {user}"))
    if token:
        if not token.isascii() or not token.isprintable() or " " in token:
            raise HeadraceError("the token (--token-file or HEADRACE_TOKEN) has characters that a token cannot have")
        return Login(token=token)
    return None


def authorization(user: str, password_file: str, token_file: str) -> Mapping[str, str]:
    """The header that shows who asks; none where it is not said."""
    login = read_login(user, password_file, token_file)
    return {} if login is None else login.header
