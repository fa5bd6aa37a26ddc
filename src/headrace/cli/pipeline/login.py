"""As whom a job comes, and over TLS or not: the flags that other commands have, as options of the source.

Spark's workers read the files, so a password comes from no prompt and from no standard input.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from headrace.cli.credentials import STDIN
from headrace.cli.options import Options
from headrace.errors import HeadraceError

OPTIONS: Options = {
    "user": (
        Annotated[str, typer.Option(envvar="HEADRACE_USER", metavar="NAME", help="Come as this user.")],
        "",
    ),
    "password_file": (
        Annotated[
            str,
            typer.Option(
                envvar="HEADRACE_PASSWORD_FILE",
                metavar="FILE",
                help="Has that user's password in its first line, for the driver and on every worker.",
            ),
        ],
        "",
    ),
    "token_file": (
        Annotated[
            str,
            typer.Option(
                envvar="HEADRACE_TOKEN_FILE",
                metavar="FILE",
                help="Has an API token or a signed one, likewise; see also HEADRACE_TOKEN.",
            ),
        ],
        "",
    ),
    "sasl_mechanism": (
        Annotated[
            str,
            typer.Option(
                envvar="HEADRACE_SASL_MECHANISM",
                metavar="NAME",
                help="How to show the password: SCRAM-SHA-256 (by default), SCRAM-SHA-512, PLAIN.",
            ),
        ],
        "",
    ),
    "tls": (
        Annotated[
            bool, typer.Option("--tls", envvar="HEADRACE_TLS", help="Speak TLS; trust the machine's authorities.")
        ],
        False,
    ),
    "tls_ca": (
        Annotated[
            str,
            typer.Option(envvar="HEADRACE_TLS_CA", metavar="FILE", help="Trust these authorities (PEM). Turns TLS on."),
        ],
        "",
    ),
    "tls_cert": (
        Annotated[
            str, typer.Option(envvar="HEADRACE_CLIENT_CERT", metavar="FILE", help="Present this certificate (PEM).")
        ],
        "",
    ),
    "tls_key": (
        Annotated[str, typer.Option(envvar="HEADRACE_CLIENT_KEY", metavar="FILE", help="The certificate's key (PEM).")],
        "",
    ),
}  # fmt: skip
# The names of what is a file, and of what is a word, among the source's options.
NAMES = {
    "user": "user",
    "password_file": "passwordFile",
    "token_file": "tokenFile",
    "sasl_mechanism": "kafka.sasl.mechanism",
    "tls_ca": "kafka.ssl.truststore.location",
    "tls_cert": "kafka.ssl.keystore.location",
    "tls_key": "kafka.ssl.key.location",
}


def source_options(settings: dict[str, Any]) -> dict[str, str]:
    """Take the flags out of the settings of a job, as options of the source."""
    given = {name: settings.pop(name) for name in OPTIONS}
    if given["password_file"] == STDIN or given["token_file"] == STDIN:
        raise HeadraceError("Spark's workers cannot read standard input. Give --password-file or --token-file a file.")
    if given["user"] and given["token_file"]:
        raise HeadraceError("--user and --token-file are two ways to come in. Use one.")
    if not given["user"]:
        # From the environment, where another command needs it.
        given["password_file"] = ""
    if given["token_file"] or not given["user"]:
        given["sasl_mechanism"] = ""
    found = {option: given[name] for name, option in NAMES.items() if given[name]}
    if given["tls"]:
        logs_in = given["user"] or given["token_file"] or os.environ.get("HEADRACE_TOKEN", "")
        found["kafka.security.protocol"] = "SASL_SSL" if logs_in else "SSL"
    return found
