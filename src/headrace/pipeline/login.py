"""As whom a process of Spark comes to a broker: as its options say, or as its environment does.

Every process that connects does this for itself, the driver and each worker: a secret is in the memory of who needs it,
and in nothing that Spark sends, keeps or shows.
"""

from __future__ import annotations

import os

from headrace.client import Credentials, Mechanism
from headrace.client.errors import AuthenticationError
from headrace.client.login_files import LoginFiles
from headrace.pipeline.connection_options import ConnectionOptions
from headrace.pipeline.option_values import InvalidOption

USER, PASSWORD_FILE = "HEADRACE_USER", "HEADRACE_PASSWORD_FILE"
TOKEN, TOKEN_FILE = "HEADRACE_TOKEN", "HEADRACE_TOKEN_FILE"


def read_credentials(options: ConnectionOptions) -> Credentials | None:
    """Who comes; None for nobody. Raises InvalidOption, which shows no secret."""
    try:
        found = _read(options)
    except AuthenticationError as error:
        raise InvalidOption(str(error)) from None
    if found is None and options.must_log_in:
        raise InvalidOption(
            "kafka.security.protocol (or kafka.sasl.mechanism) wants a login, and there is none. Give user and "
            f"passwordFile, or tokenFile, or set {USER} and {PASSWORD_FILE}, {TOKEN_FILE} or {TOKEN} in the "
            "environment of the driver and of every worker."
        )
    return found


def _read(options: ConnectionOptions) -> Credentials | None:
    environment = os.environ
    mechanism = Mechanism(options.mechanism)
    if options.token_file:
        return LoginFiles(token_file=options.token_file).credentials()
    user = options.user
    if user is None:
        if file := environment.get(TOKEN_FILE, ""):
            return LoginFiles(token_file=file).credentials()
        if token := environment.get(TOKEN, "").strip():
            return Credentials(token=token)
        user = environment.get(USER, "")
    if not user:
        return None
    file = options.password_file or environment.get(PASSWORD_FILE, "")
    if not file:
        raise InvalidOption(
            f"there is no password for the user {user!r}. Give passwordFile, or set {PASSWORD_FILE} in the environment "
            "of the driver and of every worker."
        )
    return LoginFiles(user, file, mechanism=mechanism).credentials()
