"""As whom an application comes, as a URL names it: a user before the host, and the files that have the secrets.

A secret never stands in the URL, which is logged and shown. The files are read anew whenever a transport is opened.
"""

from __future__ import annotations

import os
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.client import Credentials, Mechanism
from headrace.client.errors import AuthenticationError

OPTIONS = {"password_file", "token_file", "sasl_mechanism"}
SECRET_BYTES_MAX = 65_536
# librdkafka wants to know when a token ends, and asks for it again before that.
TOKEN_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class Login:
    """A user with the file of the password, or the file of a token."""

    user: str = ""
    password_file: str = ""
    token_file: str = ""
    mechanism: Mechanism = Mechanism.SCRAM_SHA_256

    def credentials(self) -> Credentials:
        """With the secret, read from its file. Raises AuthenticationError."""
        if self.token_file:
            return Credentials(token=_read(self.token_file))
        return Credentials(self.user, _read(self.password_file), mechanism=self.mechanism)

    def nsq_secret(self) -> bytes:
        """What NSQ's AUTH shows."""
        found = self.credentials()
        return (found.token or f"{found.user}:{found.password}").encode()

    def header(self) -> str:
        """HTTP's Authorization."""
        found = self.credentials()
        if found.token:
            return f"Bearer {found.token}"
        return "Basic " + b64encode(f"{found.user}:{found.password}".encode()).decode()

    def librdkafka(self, *, encrypted: bool) -> dict[str, Any]:
        """For Kafka's own library."""
        found = self.credentials()
        found.check_way(encrypted=encrypted)
        settings: dict[str, Any] = {
            "security.protocol": "SASL_SSL" if encrypted else "SASL_PLAINTEXT",
            "sasl.mechanisms": found.sasl_mechanism,
        }
        if self.token_file:
            file = self.token_file
            return settings | {"oauth_cb": lambda _: (_read(file), time.time() + TOKEN_SECONDS)}
        return settings | {"sasl.username": found.user, "sasl.password": found.password}


def parse_login(scheme: str, user: str, options: Mapping[str, str]) -> Login | None:
    """What a URL says before its host and in its options. Raises ValueError, which shows no secret."""
    if ":" in user:
        raise ValueError(
            f"{scheme}://: a password in a URL is seen in logs. Put it into a file: {scheme}://USER@HOST?password_file=FILE"
        )
    token_file, named = options.get("token_file", ""), options.get("password_file", "")
    if token_file and (user or named):
        raise ValueError(f"{scheme}://: a user and token_file are two ways to come in. Use one")
    if token_file:
        return Login(token_file=token_file)
    if not user:
        if named:
            raise ValueError(f"{scheme}://: password_file needs a user: {scheme}://USER@HOST?password_file=FILE")
        return None
    file = named or os.environ.get("HEADRACE_PASSWORD_FILE", "")
    if not file:
        raise ValueError(
            f"{scheme}://{user}@: there is no password. Give password_file=FILE behind the question mark, or "
            "HEADRACE_PASSWORD_FILE"
        )
    try:
        mechanism = Mechanism(options.get("sasl_mechanism", Mechanism.SCRAM_SHA_256).upper())
    except ValueError:
        raise ValueError(f"sasl_mechanism must be one of {', '.join(Mechanism)}") from None
    return Login(user, file, mechanism=mechanism)


def _read(file: str) -> str:
    try:
        with Path(file).open(encoding="utf-8") as opened:
            line = opened.readline(SECRET_BYTES_MAX).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise AuthenticationError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not line:
        raise AuthenticationError(f"there is no secret in the first line of {file}")
    return line
