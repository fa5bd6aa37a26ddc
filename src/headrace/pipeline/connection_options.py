"""How source and sink reach a broker, and as whom: by the names that Kafka's clients have, and by Headrace's own.

Spark shows options in plans, in its UI and in errors, and sends them to workers. So an option names the file of a
secret, and never has the secret; each process that connects reads it there, or finds it in its environment (`login`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.pipeline.option_values import InvalidOption, read_number, read_path, read_word

KNOWN = (
    "kafka.bootstrap.servers", "user", "passwordFile", "tokenFile", "kafka.sasl.mechanism", "kafka.security.protocol",
    "kafka.ssl.truststore.location", "kafka.ssl.truststore.type", "kafka.ssl.keystore.location",
    "kafka.ssl.keystore.type", "kafka.ssl.key.location", "kafka.client.id", "timeout",
)  # fmt: skip
LOGIN = ("user", "passwordFile", "tokenFile")

# The first is the default.
PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
ENCRYPTED = ("ssl", "sasl_ssl")
MECHANISMS = ("scram-sha-256", "scram-sha-512", "plain", "oauthbearer")
OAUTHBEARER = "oauthbearer"

FILES = "Give user and passwordFile, or tokenFile: files that the driver and every worker can read."
# What users of other clients try, in lower case, and what they are told.
REFUSED = {
    "kafka.sasl.jaas.config": f"plans and logs would show the password in it. {FILES}",
    "kafka.sasl.username": f"the option is user. {FILES}",
    "kafka.sasl.password": f"plans and logs would show it. {FILES}",
    "kafka.sasl.mechanisms": "the option is kafka.sasl.mechanism.",
    "password": f"plans and logs would show it. {FILES}",
    "token": f"plans and logs would show it. {FILES}",
    "username": f"the option is user. {FILES}",
    "kafka.ssl.key.password": "keys are PEM files without a password: name one in kafka.ssl.key.location.",
    "kafka.ssl.keystore.password": "certificates are PEM files without a password: see kafka.ssl.keystore.location.",
    "kafka.ssl.truststore.password": "authorities are a PEM file: name it in kafka.ssl.truststore.location.",
    "kafka.ssl.keystore.key": "plans and logs would show it. Give a PEM file in kafka.ssl.key.location.",
    "kafka.ssl.keystore.certificate.chain": "give a PEM file in kafka.ssl.keystore.location.",
    "kafka.ssl.truststore.certificates": "give a PEM file in kafka.ssl.truststore.location.",
}  # fmt: skip
SASL = "kafka.sasl."


@dataclass(frozen=True)
class ConnectionOptions:
    """How source and sink reach a broker. There are no secrets in it: it is pickled, and shown."""

    bootstrap: str
    client_id: str
    tls: bool
    ca: str
    cert: str
    key: str
    timeout: float
    user: str | None
    """As whom; empty: as nobody, whatever the environment says. None: as the environment says."""
    password_file: str
    token_file: str
    mechanism: str
    """Of SASL, for the password."""
    must_log_in: bool
    """The protocol is one with SASL."""


def refuse_secret(name: str) -> None:
    """Raise InvalidOption with the right option's name where this is one of other clients for logging in. The value is
    not shown: it may be the secret."""
    lower = name.lower()
    if lower in REFUSED:
        raise InvalidOption(f"the option {lower} is not taken: {REFUSED[lower]}")
    if lower.startswith(SASL):
        raise InvalidOption(
            f"the option {lower} is not taken: {', '.join(each.upper() for each in MECHANISMS)} are offered, in "
            f"kafka.sasl.mechanism. {FILES}"
        )


def parse_connection(options: Mapping[str, str]) -> dict[str, Any]:
    """The fields of ConnectionOptions, from options by their known names. Raises InvalidOption."""
    protocol = read_word(options, "kafka.security.protocol", PROTOCOLS)
    return {
        "bootstrap": options.get("kafka.bootstrap.servers", ""),
        "client_id": options.get("kafka.client.id", "headrace-spark"),
        "tls": _is_encrypted(options, protocol),
        "ca": read_path(options, "kafka.ssl.truststore.location"),
        "cert": read_path(options, "kafka.ssl.keystore.location"),
        "key": read_path(options, "kafka.ssl.key.location"),
        "timeout": read_number(options, "timeout", 30, least=1),
        **_login(options, protocol),
    }


def _is_encrypted(options: Mapping[str, str], protocol: str) -> bool:
    """Whether connections are encrypted; files for that imply it."""
    for name in ("kafka.ssl.truststore.type", "kafka.ssl.keystore.type"):
        read_word(options, name, ("pem",))
    files = [name for name in ("kafka.ssl.truststore.location", "kafka.ssl.keystore.location") if options.get(name)]
    if files and "kafka.security.protocol" in options and protocol not in ENCRYPTED:
        raise InvalidOption(
            f"{files[0]} is for connections that are encrypted, and kafka.security.protocol says {protocol.upper()}"
        )
    return bool(files) or protocol in ENCRYPTED


def _login(options: Mapping[str, str], protocol: str) -> dict[str, Any]:
    user, token_file = options.get("user"), read_path(options, "tokenFile")
    password_file = read_path(options, "passwordFile")
    mechanism = read_word(options, "kafka.sasl.mechanism", MECHANISMS)
    if token_file and (user or password_file):
        raise InvalidOption("user with passwordFile, and tokenFile, are two ways to come in. Give one.")
    if password_file and not user:
        raise InvalidOption(f"passwordFile ({password_file}) is the file of a user's password. Give user, too.")
    if token_file and mechanism != OAUTHBEARER and "kafka.sasl.mechanism" in options:
        raise InvalidOption(
            f"kafka.sasl.mechanism is {mechanism.upper()}, which is for passwords, and tokenFile ({token_file}) has a "
            "token. Leave the mechanism out."
        )
    if user and mechanism == OAUTHBEARER:
        raise InvalidOption("kafka.sasl.mechanism is OAUTHBEARER, which is for tokens. Give tokenFile, and no user.")
    named = [name for name in LOGIN if options.get(name)]
    must_log_in = protocol.startswith("sasl_")
    if named and not must_log_in and "kafka.security.protocol" in options:
        raise InvalidOption(
            f"{named[0]} says who comes, and kafka.security.protocol is {protocol.upper()}. Use "
            f"SASL_{protocol.upper()}, or leave it out."
        )
    if not must_log_in and "kafka.security.protocol" in options:
        # At such a listener nobody logs in, whatever the environment has for others.
        user = ""
    return {
        "user": "" if token_file else user,
        "password_file": password_file,
        "token_file": token_file,
        "mechanism": "SCRAM-SHA-256" if mechanism == OAUTHBEARER else mechanism.upper(),
        "must_log_in": must_log_in or mechanism == OAUTHBEARER,
    }
