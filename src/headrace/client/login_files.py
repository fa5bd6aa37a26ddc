"""Who a client is, with the secret in a file: what settings and options can name without showing it.

The file is read anew for every use, so that a secret can change without a restart.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

from headrace.client.credentials import Credentials, Mechanism
from headrace.client.errors import AuthenticationError

SECRET_BYTES_MAX = 65_536


def read_secret_file(file: str) -> str:
    """The first line. Raises AuthenticationError, which shows nothing of it."""
    try:
        with Path(file).open(encoding="utf-8") as opened:
            line = opened.readline(SECRET_BYTES_MAX).rstrip("\r\n")
    except UnicodeDecodeError:
        raise AuthenticationError(f"{file} cannot be read: it is not UTF-8") from None
    except OSError as error:
        raise AuthenticationError(f"{file} cannot be read: {error.strerror or type(error).__name__}") from None
    if not line:
        raise AuthenticationError(f"there is no secret in the first line of {file}")
    return line


@dataclass(frozen=True, slots=True)
class LoginFiles:
    """A user with the file of the password, or the file of a token."""

    user: str = ""
    password_file: str = ""
    token_file: str = ""
    mechanism: Mechanism = Mechanism.SCRAM_SHA_256

    def credentials(self) -> Credentials:
        """With the secret, read from its file. Raises AuthenticationError."""
        if self.token_file:
            return Credentials(token=read_secret_file(self.token_file))
        return Credentials(self.user, read_secret_file(self.password_file), mechanism=self.mechanism)


def authorization_header(credentials: Credentials) -> str:
    """HTTP's Authorization."""
    if credentials.token:
        return f"Bearer {credentials.token}"
    return "Basic " + b64encode(f"{credentials.user}:{credentials.password}".encode()).decode()
