"""As whom an application comes, as a URL names it: a user before the host, and the files that have the secrets.

A secret never stands in the URL, which is logged and shown. The files are read anew whenever a transport is opened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from headrace.client import Mechanism
from headrace.client.login_files import LoginFiles, authorization_header, read_secret_file

OPTIONS = {"password_file", "token_file", "sasl_mechanism"}
# librdkafka wants to know when a token ends, and asks for it again before that.
TOKEN_SECONDS = 3_600.0


class Login(LoginFiles):
    """A user with the file of the password, or the file of a token."""

    __slots__ = ()

    def nsq_secret(self) -> bytes:
        """What NSQ's AUTH shows."""
        found = self.credentials()
        return (found.token or f"{found.user}:{found.password}").encode()

    def header(self) -> str:
        """HTTP's Authorization."""
        return authorization_header(self.credentials())

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
            return settings | {"oauth_cb": lambda _: (read_secret_file(file), time.time() + TOKEN_SECONDS)}
        return settings | {"sasl.username": found.user, "sasl.password": found.password}


def parse_login(scheme: str, user: str, options: Mapping[str, str]) -> Login | None:
    """What a URL says before its host and in its options. Raises ValueError, which shows no secret."""
    if ":" in user:
        raise ValueError(
            f"{scheme}://: a password in a URL is seen in logs. Put it into a file: {scheme}://USER@HOST?password_file=FILE"
        )
    token_file, named = options.get("token_file", ""), options.get("password_file", "")
    if token_file and (user or named):
        raise ValueError(f"{scheme}://: a user and token_file exclude each other. Give one of them")
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
